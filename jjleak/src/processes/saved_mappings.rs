//! Mappings that a file lists: their process may have ended. Mapped files are opened by their paths.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::layout::{FileParts, Part};
use super::module::Module;
use super::regions::FilePlace;
use super::{FileId, FileSources, Mapping, ModuleTable, Unopened};

/// Maximum number of files to open.
const MAX_FILES: usize = 4096;

/// Modules of a list of mappings.
#[derive(Debug)]
pub struct SavedMappings {
    /// The files that could be opened.
    pub modules: ModuleTable,
    /// Files with code that could not be opened.
    pub unopened: Vec<Unopened>,
    /// Files that are not those that were mapped, by their device and inode: they were replaced, or are another host's.
    pub others: Vec<PathBuf>,
    sources: FileSources,
}

impl SavedMappings {
    /// Opens the files with code.
    #[must_use]
    pub fn open(mappings: &[Mapping], sources: &FileSources) -> Self {
        let mut saved = Self {
            modules: ModuleTable::default(),
            unopened: Vec::new(),
            others: Vec::new(),
            sources: sources.clone(),
        };
        let mut parts = BTreeMap::<&Path, FileParts>::new();
        for mapping in mappings {
            parts.entry(&mapping.path).or_default().push(Part::of(mapping));
        }
        let mut files = BTreeMap::new();
        for mapping in mappings.iter().filter(|mapping| mapping.executable && mapping.file.is_some()) {
            let file = files.entry(&mapping.path).or_insert_with(|| saved.open_file(mapping));
            if let Some(module) = file {
                let module = saved.modules.add_once(module);
                let addend = saved.modules.get(module).addend(&Part::of(mapping), &parts[&*mapping.path]);
                let place = FilePlace { module, offset: mapping.file_offset, addend };
                saved.modules.map(mapping, place);
            }
        }
        saved
    }

    fn open_file(&mut self, mapping: &Mapping) -> Option<Rc<Module>> {
        let path = mapping.path.clone();
        match self.try_open(mapping) {
            Ok(module) => {
                // Files of another host have other inodes.
                if self.sources.root.is_none()
                    && !mapping.file.is_none_or(|listed| is_it(listed, module.version.file))
                {
                    self.others.push(path);
                }
                Some(module)
            }
            Err(error) => {
                self.unopened.push(Unopened { path, error });
                None
            }
        }
    }

    fn try_open(&self, mapping: &Mapping) -> io::Result<Rc<Module>> {
        if mapping.deleted {
            return Err(io::Error::other("it had been deleted when the profile was written"));
        }
        if self.modules.iter().count() >= MAX_FILES {
            return Err(io::Error::other(format!("the profile has more than {MAX_FILES} files")));
        }
        self.sources.open(&mapping.path, "")
    }
}

/// Returns true if a file that is listed can be this one. gperftools lists inodes, but no devices.
fn is_it(listed: FileId, file: FileId) -> bool {
    const NO_DEVICE: (u32, u32) = (0, 0);
    listed == file || listed.device == NO_DEVICE && listed.inode == file.inode
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::Pid;

    fn own_mappings() -> Vec<Mapping> {
        Mapping::all(Pid::new(std::process::id()).unwrap()).unwrap()
    }

    #[test]
    fn addresses_lead_to_the_files_that_the_list_names() {
        let mappings = own_mappings();
        let exe = std::env::current_exe().unwrap();
        let text = mappings.iter().find(|mapping| mapping.executable && mapping.path == exe).unwrap();
        let saved = SavedMappings::open(&mappings, &FileSources::default());
        let located = saved.modules.find(text.addresses.start + 5).unwrap();
        assert_eq!(saved.modules.get(located.module).path, exe);
        assert_eq!(located.offset, text.file_offset + 5);
        assert!(located.address.is_some() && saved.others.is_empty(), "{:?}", saved.others);
    }

    #[test]
    fn files_that_are_gone_or_others_are_named() {
        let mut mappings = own_mappings();
        mappings.retain(|mapping| mapping.executable && mapping.file.is_some());
        mappings[0].path = "/nowhere/library.so".into();
        mappings[1].file = Some(FileId { device: (0, 0), inode: 1 });
        let saved = SavedMappings::open(&mappings[..2], &FileSources::default());
        assert_eq!(saved.unopened.len(), 1);
        assert_eq!(saved.unopened[0].path, Path::new("/nowhere/library.so"));
        assert_eq!(saved.others, [mappings[1].path.clone()]);
        // gperftools lists no devices.
        let mut mappings = own_mappings();
        mappings.iter_mut().filter_map(|mapping| mapping.file.as_mut()).for_each(|file| file.device = (0, 0));
        assert!(SavedMappings::open(&mappings, &FileSources::default()).others.is_empty());
    }
}
