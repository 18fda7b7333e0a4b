//! Opens the files that a profile names, after its process has ended or on another host.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::layout::{FileParts, Part};
use super::module::{Module, ModuleFiles};
use super::regions::FilePlace;
use super::{ModuleTable, Pid, debug_file};
use crate::file_content::Content;

/// First address that no process has (x86-64 with four levels of page tables).
const END_OF_ADDRESSES: u64 = 1 << 47;

/// Kinds of files that a store has of each build ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Artifact {
    /// The program or library itself.
    Executable,
    /// Its separate debug file.
    DebugFile,
}

/// A store of files by build ID.
pub trait FileStore: fmt::Debug {
    /// Path of the file on this host; `None` if the store does not have it.
    fn get(&self, artifact: Artifact, build_id: &str) -> Option<PathBuf>;
}

/// Places where the files of a profile are looked for.
#[derive(Debug, Clone, Default)]
pub struct FileSources {
    /// Folder with the root file system of the profile's host, if it is not this one.
    pub root: Option<PathBuf>,
    /// A store for what is not found here.
    pub store: Option<Rc<dyn FileStore>>,
}

impl FileSources {
    /// Opens the file at a path, and finds its debug file. With a build ID, it is the file that has it, or none.
    pub(super) fn open(&self, path: &Path, build_id: &str) -> io::Result<Rc<Module>> {
        let own = Pid::new(std::process::id()).ok_or_else(|| io::Error::other("PID 0"))?;
        let on_this_host = |path: &Path| ModuleFiles::default().open_path(own, path);
        let open = || match &self.root {
            Some(root) => Module::open_in_folder(root, path),
            None => on_this_host(path),
        };
        let stored = || on_this_host(&self.in_store(Artifact::Executable, build_id)?).ok();
        let module = open()
            .and_then(|module| with_build_id(module, build_id))
            .or_else(|error| stored().and_then(|module| with_build_id(module, build_id).ok()).ok_or(error))?;
        if let Some(file) = self.debug_file(&module) {
            module.set_debug_file(file);
        }
        Ok(module)
    }

    /// The modules of a profile that has this one file at these addresses, each with the file offset of the first.
    ///
    /// A part without a beginning, an end and an offset is the whole file at the addresses that it states, as the pprof tool has it
    /// (`GetBase` in `internal/elfexec/elfexec.go`): the profile's writer has converted its addresses.
    pub fn modules(
        &self,
        path: &Path,
        build_id: &str,
        parts: &[(Range<u64>, u64)],
    ) -> io::Result<ModuleTable> {
        let module = self.open(path, build_id)?;
        let mut modules = ModuleTable::default();
        let id = modules.add_once(&module);
        let (whole, parts): (Vec<_>, Vec<_>) = parts.iter().partition(|part| is_whole(part));
        if !whole.is_empty() {
            for segment in module.code() {
                let place =
                    FilePlace { module: id, offset: segment.file_offset, addend: Some(segment.addend()) };
                modules.map_code(&segment.addresses(), place);
            }
        }
        let within = |(addresses, _): &&&(Range<u64>, u64)| {
            addresses.start < addresses.end && addresses.end <= END_OF_ADDRESSES
        };
        let parts: Vec<_> = parts.iter().filter(within).collect();
        let mapped = parts.iter().map(|(addresses, offset)| Part::of_code(addresses, *offset));
        let mapped: FileParts = mapped.collect();
        for (addresses, offset) in parts {
            // Data is mapped, too.
            if let Some(addend) = module.addend(&Part::of_code(addresses, *offset), &mapped) {
                modules.map_code(addresses, FilePlace { module: id, offset: *offset, addend: Some(addend) });
            }
        }
        Ok(modules)
    }

    /// The debug file of a module, if it is not where debuggers look for it on this host.
    fn debug_file(&self, module: &Module) -> Option<File> {
        let content = module.content().ok()?;
        let content = Content::from(&content);
        let build_id = module.build_id();
        let in_folder = |root: &PathBuf| debug_file::find_in_folder(root, &module.path, build_id, content);
        self.root.as_ref().and_then(in_folder).or_else(|| {
            let has_names = debug_file::has_debug_info(content) || module.find_debug_file(content).is_some();
            let stored = if has_names { None } else { self.in_store(Artifact::DebugFile, build_id) };
            debug_file::open(&stored?, build_id)
        })
    }

    fn in_store(&self, artifact: Artifact, build_id: &str) -> Option<PathBuf> {
        let store = self.store.as_ref().filter(|_| !build_id.is_empty())?;
        store.get(artifact, build_id)
    }
}

const fn is_whole((addresses, offset): &(Range<u64>, u64)) -> bool {
    addresses.start == 0 && *offset == 0 && matches!(addresses.end, 0 | u64::MAX)
}

/// The module, if it has this build ID, or if none is asked for.
fn with_build_id(module: Rc<Module>, build_id: &str) -> io::Result<Rc<Module>> {
    let found = match module.build_id() {
        found if build_id.is_empty() || found.eq_ignore_ascii_case(build_id) => return Ok(module),
        "" => "no build ID".to_owned(),
        found => format!("build ID {found}"),
    };
    Err(io::Error::other(format!("the file there has {found}, not {build_id}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::Mapping;

    fn own() -> (PathBuf, Rc<Module>, Vec<Mapping>) {
        let exe = std::env::current_exe().unwrap();
        let module = FileSources::default().open(&exe, "").unwrap();
        let mut mappings = Mapping::all(Pid::new(std::process::id()).unwrap()).unwrap();
        mappings.retain(|mapping| mapping.path == exe);
        (exe, module, mappings)
    }

    #[test]
    fn an_address_of_a_mapped_part_and_of_the_file_lead_to_the_same_code() {
        let (exe, module, mappings) = own();
        let parts: Vec<_> =
            mappings.iter().map(|mapping| (mapping.addresses.clone(), mapping.file_offset)).collect();
        let mapped = FileSources::default().modules(&exe, module.build_id(), &parts).unwrap();
        let code = mappings.iter().find(|mapping| mapping.executable).unwrap();
        // The first page can have data, too.
        let within = (code.addresses.end - code.addresses.start) / 2;
        let in_process = mapped.find(code.addresses.start + within).unwrap();
        assert_eq!(in_process.offset, code.file_offset + within);
        let in_file = in_process.address.unwrap();
        for end in [0, u64::MAX] {
            let whole = FileSources::default().modules(&exe, "", &[(0..end, 0)]).unwrap();
            let found = whole.find(in_file).unwrap();
            assert_eq!((found.offset, found.address), (in_process.offset, Some(in_file)));
        }
        let hostile = [(5..5, 0), (0..u64::MAX, 1), (u64::MAX - 1..u64::MAX, u64::MAX)];
        assert!(FileSources::default().modules(&exe, "", &hostile).unwrap().find(in_file).is_none());
    }

    #[derive(Debug)]
    struct Store(PathBuf);

    impl FileStore for Store {
        fn get(&self, artifact: Artifact, build_id: &str) -> Option<PathBuf> {
            (artifact == Artifact::Executable && !build_id.is_empty()).then(|| self.0.clone())
        }
    }

    #[test]
    fn a_file_with_another_build_id_is_not_the_program() {
        let (exe, module, _) = own();
        let error = FileSources::default().modules(&exe, "00ff", &[]).unwrap_err();
        assert!(error.to_string().ends_with(", not 00ff"), "{error}");
        let build_id = module.build_id().to_uppercase();
        if build_id.is_empty() {
            return;
        }
        FileSources::default().modules(&exe, &build_id, &[]).unwrap();
        let store: Option<Rc<dyn FileStore>> = Some(Rc::new(Store(exe)));
        let sources = FileSources { store, ..FileSources::default() };
        sources.modules(Path::new("/nowhere"), &build_id, &[]).unwrap();
        assert!(sources.modules(Path::new("/nowhere"), "00ff", &[]).is_err());
    }

    #[test]
    fn files_of_another_host_are_below_its_root() {
        let (exe, ..) = own();
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(exe, folder.path().join("app")).unwrap();
        let sources = FileSources { root: Some(folder.path().to_owned()), ..FileSources::default() };
        sources.modules(Path::new("/app"), "", &[]).unwrap();
        std::os::unix::fs::symlink("/app", folder.path().join("link")).unwrap();
        sources.modules(Path::new("/link"), "", &[]).unwrap();
    }
}
