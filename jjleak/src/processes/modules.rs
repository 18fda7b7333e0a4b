//! Files that a process maps for execution, kept while their addresses may need symbols.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use jjleak_common::unwind::{MAX_FOUND, code_identity};

use super::layout::{FileParts, Part};
use super::module::{Module, ModuleFiles};
use super::regions::{FilePlace, Regions};
use super::{FileId, FileVersion, Mapping, Pid, is_alive};
use crate::fast_map::{FastMap, fast_map};

/// Index of a module in its [`ModuleTable`]; stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub(super) usize);

/// An address of a process, resolved to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Located {
    /// The file.
    pub module: ModuleId,
    /// File offset.
    pub offset: u64,
    /// Address before relocation, as in the module's program headers; `None` if it is not in code of an ELF file.
    pub address: Option<u64>,
}

/// Modules of one process by address. Unmapped modules stay in the table.
#[derive(Debug, Default)]
pub struct ModuleTable {
    modules: Vec<Rc<Module>>,
    by_file: HashMap<FileId, ModuleId>,
    regions: Regions,
    unopened: BTreeMap<FileId, Unopened>,
}

/// A mapped file that could not be opened.
#[derive(Debug)]
pub struct Unopened {
    /// Path of the file, as the process sees it.
    pub path: PathBuf,
    /// The cause.
    pub error: io::Error,
}

impl ModuleTable {
    /// Table of a forked child, with the parent's modules.
    #[must_use]
    pub fn of_child(&self) -> Self {
        Self {
            modules: self.modules.clone(),
            by_file: self.by_file.clone(),
            regions: self.regions.clone(),
            unopened: BTreeMap::new(),
        }
    }

    /// Adds the current mappings of the process, of which `pid` is a thread; returns the new modules. Files that cannot be opened
    /// are left out, and their addresses stay unknown; they are not retried while they stay mapped.
    pub fn refresh(&mut self, files: &mut ModuleFiles, pid: Pid, mappings: &[Mapping]) -> Vec<ModuleId> {
        self.regions.begin_look();
        let mut new = Vec::new();
        let mut tried = std::mem::take(&mut self.unopened);
        let parts = parts_by_file(mappings);
        for mapping in mappings.iter().filter(|mapping| mapping.executable) {
            let Some(file_id) = mapping.file else { continue };
            let known = self.by_file.get(&file_id).copied();
            if let Some(module) = known.or_else(|| self.open(files, pid, file_id, mapping, &mut tried)) {
                if known.is_none() {
                    new.push(module);
                }
                let addend = self.get(module).addend(&Part::of(mapping), &parts[&file_id]);
                let place = FilePlace { module, offset: mapping.file_offset, addend };
                self.regions.map(&mapping.addresses, mapping.identity(), place);
            }
        }
        new
    }

    /// Adds a mapping that the kernel side has reported.
    pub fn learn(&mut self, addresses: &Range<u64>, file_offset: u64, module: Rc<Module>) {
        let FileId { device, inode } = module.version.file;
        let identity = code_identity(device, inode, addresses.start.wrapping_sub(file_offset));
        let known = self.by_file.get(&module.version.file).copied();
        let module = known.unwrap_or_else(|| self.add(module));
        let addend = self.get(module).addend(&Part::of_code(addresses, file_offset), &FileParts::default());
        self.regions.map(addresses, identity, FilePlace { module, offset: file_offset, addend });
    }

    /// The module with this index, to be kept beyond the table.
    #[must_use]
    pub fn share(&self, module: ModuleId) -> Rc<Module> {
        Rc::clone(&self.modules[module.0])
    }

    /// Returns true if the process maps this file or has mapped it.
    #[must_use]
    pub fn maps(&self, file: FileId) -> bool {
        self.by_file.contains_key(&file)
    }

    /// The file of a mapping, and the address of the mapping's start before relocation.
    #[must_use]
    pub fn place(&self, mapping: &Mapping) -> Option<(FileVersion, u64)> {
        if mapping.is_vdso() {
            return Some((FileVersion::VDSO, 0));
        }
        let located = self.find(mapping.addresses.start)?;
        Some((self.get(located.module).version, located.address?))
    }

    /// Mapped files that could not be opened.
    pub fn unopened(&self) -> impl Iterator<Item = &Unopened> {
        self.unopened.values()
    }

    /// Opens a new file. Files in `tried`, which failed before, are not retried.
    fn open(
        &mut self,
        files: &mut ModuleFiles,
        pid: Pid,
        id: FileId,
        mapping: &Mapping,
        tried: &mut BTreeMap<FileId, Unopened>,
    ) -> Option<ModuleId> {
        if self.unopened.contains_key(&id) {
            return None;
        }
        if let Some(unopened) = tried.remove(&id) {
            self.unopened.insert(id, unopened);
            return None;
        }
        match files.open(pid, id, mapping) {
            Ok(module) => Some(self.add(module)),
            // The process has ended, so the failure says nothing about the file.
            Err(_) if !is_alive(pid, pid) => None,
            Err(error) => {
                let path = mapping.path.clone();
                tracing::warn!(path = %path.display(), %error, "cannot open mapped file");
                self.unopened.insert(id, Unopened { path, error });
                None
            }
        }
    }

    /// Folders of all modules.
    #[must_use]
    pub fn folders(&self) -> BTreeSet<&Path> {
        self.modules.iter().filter_map(|module| module.path.parent()).collect()
    }

    /// The module with this ID.
    #[must_use]
    pub fn get(&self, id: ModuleId) -> &Rc<Module> {
        &self.modules[id.0]
    }

    /// All modules.
    pub fn iter(&self) -> impl Iterator<Item = (ModuleId, &Rc<Module>)> {
        self.modules.iter().enumerate().map(|(index, module)| (ModuleId(index), module))
    }

    /// Resolves an address to the file mapped there last.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Located> {
        self.regions.newest(address)
    }

    /// Resolves an address to the only file that has been mapped there, and its layer.
    #[must_use]
    pub fn find_only(&self, address: u64) -> Option<(Located, u16)> {
        self.regions.only(address)
    }

    /// Layer of the code with this [identity](code_identity) at an address.
    #[must_use]
    pub fn layer_of(&self, address: u64, identity: u64) -> Option<u16> {
        self.regions.layer_of(address, identity)
    }

    /// Resolves the address of a frame to the file mapped there when its stack was captured, if that is certain. `layer` is the
    /// frame's, and `found` holds the identities that the kernel side stored with the stack.
    #[must_use]
    pub fn find_frame(&self, address: u64, layer: u16, found: &[u64; MAX_FOUND]) -> Option<Located> {
        self.regions.of_frame(address, layer, found)
    }

    /// Layer of a mapping: its position among the files mapped at these addresses.
    #[must_use]
    pub fn layer(&self, mapping: &Mapping) -> u16 {
        self.regions.layer(mapping)
    }

    /// Address range of a module's code, from its first to its last executable address.
    #[must_use]
    pub fn text(&self, id: ModuleId) -> Option<Range<u64>> {
        self.regions.extent(id)
    }

    /// Adds a module unless the table has it.
    pub(super) fn add_once(&mut self, module: &Rc<Module>) -> ModuleId {
        let known = self.by_file.get(&module.version.file).copied();
        known.unwrap_or_else(|| self.add(Rc::clone(module)))
    }

    /// Adds a mapping of a module.
    pub(super) fn map(&mut self, mapping: &Mapping, place: FilePlace) {
        self.regions.map(&mapping.addresses, mapping.identity(), place);
    }

    /// Adds code of a module, in a table of nothing else.
    pub(super) fn map_code(&mut self, addresses: &Range<u64>, place: FilePlace) {
        self.regions.map(addresses, 0, place);
    }

    fn add(&mut self, module: Rc<Module>) -> ModuleId {
        let id = ModuleId(self.modules.len());
        self.by_file.insert(module.version.file, id);
        self.modules.push(module);
        id
    }
}

/// The mapped parts of each file.
fn parts_by_file(mappings: &[Mapping]) -> FastMap<FileId, FileParts> {
    let mut parts = fast_map::<_, FileParts>(0);
    for mapping in mappings {
        if let Some(file) = mapping.file {
            parts.entry(file).or_default().push(Part::of(mapping));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::super::mapped_file;
    use super::*;

    /// A mapping whose file can be opened by path only, because its addresses are not mapped.
    fn by_path(path: &Path, inode: u64) -> Mapping {
        let metadata = fs::metadata(path).unwrap();
        let device = mapped_file::device(&metadata);
        Mapping {
            addresses: 0..4096,
            executable: true,
            file_offset: 0,
            file: Some(FileId { device, inode }),
            path: path.to_owned(),
            deleted: false,
        }
    }

    fn own_modules() -> (ModuleTable, Vec<Mapping>, Vec<ModuleId>) {
        let pid = Pid::new(std::process::id()).unwrap();
        let mappings = Mapping::all(pid).unwrap();
        let mut table = ModuleTable::default();
        let new = table.refresh(&mut ModuleFiles::default(), pid, &mappings);
        (table, mappings, new)
    }

    #[test]
    fn an_address_leads_to_its_file_its_offset_and_its_address_there() {
        let (table, mappings, _) = own_modules();
        let exe = std::env::current_exe().unwrap();
        let text = mappings.iter().find(|m| m.executable && m.path == exe).unwrap();
        let Located { module, offset, address } = table.find(text.addresses.start + 5).unwrap();
        assert_eq!(table.get(module).path, exe);
        assert_eq!(offset, text.file_offset + 5);
        assert_eq!(address, table.place(text).map(|(_, address)| address + 5));
        assert!(table.find(0).is_none());
    }

    #[test]
    fn a_second_scan_finds_nothing_new() {
        let (mut table, mappings, first) = own_modules();
        assert!(!first.is_empty());
        let mut files = ModuleFiles::default();
        assert!(table.refresh(&mut files, Pid::new(std::process::id()).unwrap(), &mappings).is_empty());
    }

    #[test]
    fn a_file_of_two_processes_is_opened_once() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mappings = Mapping::all(pid).unwrap();
        let (mut files, mut one, mut other) =
            (ModuleFiles::default(), ModuleTable::default(), ModuleTable::default());
        let first = one.refresh(&mut files, pid, &mappings)[0];
        let second = other.refresh(&mut files, pid, &mappings)[0];
        assert!(Rc::ptr_eq(one.get(first), other.get(second)));
    }

    #[test]
    fn a_file_mapped_over_another_replaces_it() {
        let (mut table, mappings, _) = own_modules();
        let text = mappings.iter().find(|m| m.executable && m.file.is_some()).unwrap().clone();
        let other = table.iter().last().unwrap().0;
        let middle = text.addresses.start + 4096;
        let file = Some(table.get(other).version.file);
        let over = Mapping { addresses: middle..middle + 4096, file_offset: 0, file, ..text.clone() };
        table.regions.begin_look();
        let place = FilePlace { module: other, offset: 0, addend: None };
        table.regions.map(&over.addresses, over.identity(), place);
        assert_eq!(table.find(middle + 1), Some(Located { module: other, offset: 1, address: None }));
        assert_eq!(table.layer(&over), table.layer(&text) + 1);
    }

    #[test]
    fn a_device_is_not_opened_and_not_tried_again() {
        let pid = Pid::new(std::process::id()).unwrap();
        let zero = by_path(Path::new("/dev/zero"), fs::metadata("/dev/zero").unwrap().ino());
        let mut table = ModuleTable::default();
        for _ in 0..2 {
            assert!(
                table.refresh(&mut ModuleFiles::default(), pid, &[zero.clone(), zero.clone()]).is_empty()
            );
            assert_eq!(table.unopened().count(), 1);
        }
        table.refresh(&mut ModuleFiles::default(), pid, &[]);
        assert_eq!(table.unopened().count(), 0);
    }

    #[test]
    fn a_thread_that_has_ended_says_nothing_of_the_files_that_its_process_maps() {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        child.wait().unwrap();
        let zero = by_path(Path::new("/dev/zero"), fs::metadata("/dev/zero").unwrap().ino());
        let mut table = ModuleTable::default();
        table.refresh(&mut ModuleFiles::default(), Pid::new(child.id()).unwrap(), &[zero]);
        assert_eq!(table.unopened().count(), 0, "another thread can be asked");
    }

    #[test]
    fn a_file_that_has_taken_the_path_of_a_mapped_one_is_not_taken_for_it() {
        let pid = Pid::new(std::process::id()).unwrap();
        let exe = std::env::current_exe().unwrap();
        let inode = fs::metadata(&exe).unwrap().ino();
        assert_eq!(
            ModuleTable::default().refresh(&mut ModuleFiles::default(), pid, &[by_path(&exe, inode)]).len(),
            1
        );
        assert!(
            ModuleTable::default()
                .refresh(&mut ModuleFiles::default(), pid, &[by_path(&exe, inode + 1)])
                .is_empty()
        );
    }

    #[test]
    fn a_file_that_says_it_is_huge_is_not_read() {
        let pid = Pid::new(std::process::id()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 40).unwrap();
        let mut table = ModuleTable::default();
        let huge = by_path(file.path(), file.as_file().metadata().unwrap().ino());
        let [id] = table.refresh(&mut ModuleFiles::default(), pid, &[huge])[..] else { panic!("not opened") };
        assert_eq!(table.get(id).content().unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
