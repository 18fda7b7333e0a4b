//! The files a process maps for execution, remembered while their addresses may need names.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use jjleak_common::unwind::{MAX_FOUND, code_identity};
use object::ReadCache;

use super::headers::Headers;
use super::regions::Regions;
use super::{FileId, FileVersion, Mapping, Pid, debug_file, exports, is_alive, mapped_file};

/// Largest file that is read into memory. Builds of browsers and compilers with all their debug information come close;
/// what a hostile target maps can say that it is of any size.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;

/// A mapped file.
#[derive(Debug)]
pub struct Module {
    /// Which file it is.
    pub version: FileVersion,
    /// Its path, as the process sees it.
    pub path: PathBuf,
    /// The open file: it stays readable when the process has ended or the path leads elsewhere.
    file: File,
    headers: Headers,
    /// A process that maps it.
    mapped_by: Pid,
    /// Whether it exports the variables that somebody has asked for.
    exported: RefCell<BTreeMap<&'static str, bool>>,
}

impl Module {
    fn open(pid: Pid, file_id: FileId, mapping: &Mapping) -> io::Result<Self> {
        Self::of(mapped_file::open(pid, file_id, mapping)?, file_id, pid, mapping.path.clone())
    }

    fn of(file: File, file_id: FileId, pid: Pid, path: PathBuf) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        let version = FileVersion { file: file_id, changed };
        Ok(Self {
            version,
            path,
            headers: Headers::read(&file),
            file,
            mapped_by: pid,
            exported: RefCell::default(),
        })
    }

    /// Whether the file is another one now than when it was opened: somebody has written to it.
    fn has_changed(&self) -> bool {
        // A file that cannot be asked any more stays what it was.
        self.file.metadata().is_ok_and(|now| (now.ctime(), now.ctime_nsec()) != self.version.changed)
    }

    /// A path that leads to the file for as long as this value lives.
    #[must_use]
    pub fn stable_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// The address that the program headers give to an offset in the file.
    #[must_use]
    pub fn address_of(&self, file_offset: u64) -> Option<u64> {
        self.headers.address_of(file_offset)
    }

    /// Where mappings of the file's code begin: the offset in the file, and the address that the program headers give to it.
    pub fn code_places(&self) -> impl Iterator<Item = (u64, u64)> {
        self.headers.code_offsets().filter_map(|offset| Some((offset, self.address_of(offset)?)))
    }

    /// Build ID in hex; empty when it has none.
    #[must_use]
    pub fn build_id(&self) -> &str {
        &self.headers.build_id
    }

    /// Whether it exports a variable of this name that is as large as a pointer. It is looked at once.
    #[must_use]
    pub fn exports_word(&self, name: &'static str) -> bool {
        let look = || self.file().is_ok_and(|file| exports::exports_word(file, name));
        *self.exported.borrow_mut().entry(name).or_insert_with(look)
    }

    /// The bytes of the separate debug file that belongs to this file, whose bytes are `elf`.
    #[must_use]
    pub fn read_debug_file(&self, elf: &[u8]) -> Option<Vec<u8>> {
        debug_file::read(self.mapped_by, &self.path, self.build_id(), elf)
    }

    /// The file's bytes. Read rather than mapped: a file truncated under a mapping would kill jjleak.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut file = self.file()?;
        file.rewind()?;
        let mut bytes = Vec::new();
        // It may grow while it is read.
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The file, for those who need little of it: each part is read when it is asked for, and kept.
    pub fn parts(&self) -> io::Result<ReadCache<&File>> {
        Ok(ReadCache::new(self.file()?))
    }

    fn file(&self) -> io::Result<&File> {
        let length = self.file.metadata()?.len();
        if length > MAX_FILE_BYTES {
            let gibibytes = MAX_FILE_BYTES >> 30;
            let why = format!("it has {length} bytes, and jjleak reads files of up to {gibibytes} GiB");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        Ok(&self.file)
    }
}

/// The mapped files of all processes, each opened once. While a file is open, no other gets its number.
#[derive(Debug, Default)]
pub struct ModuleFiles {
    open: HashMap<FileId, Weak<Module>>,
    /// Those that were opened last: the next process that maps them may be over before anybody can open what it maps.
    recent: VecDeque<Rc<Module>>,
}

/// Files that stay open when no process maps them any more: the programs and libraries of a build, say.
const MAX_RECENT: usize = 256;

impl ModuleFiles {
    /// The file in this version, if it is open.
    #[must_use]
    pub fn find(&self, version: FileVersion) -> Option<Rc<Module>> {
        let module = self.open.get(&version.file).and_then(Weak::upgrade);
        module.filter(|module| module.version == version)
    }

    fn open(&mut self, pid: Pid, file: FileId, mapping: &Mapping) -> io::Result<Rc<Module>> {
        if let Some(module) = self.known(file) {
            return Ok(module);
        }
        Ok(self.keep(Module::open(pid, file, mapping)?))
    }

    /// Opens a file that a process may map, by its path on this host.
    pub(super) fn open_path(&mut self, pid: Pid, path: &Path) -> io::Result<Rc<Module>> {
        let (id, file) = mapped_file::open_path(path)?;
        if let Some(module) = self.known(id) {
            return Ok(module);
        }
        Ok(self.keep(Module::of(file, id, pid, path.to_path_buf())?))
    }

    fn known(&self, file: FileId) -> Option<Rc<Module>> {
        self.open.get(&file).and_then(Weak::upgrade).filter(|module| !module.has_changed())
    }

    fn keep(&mut self, module: Module) -> Rc<Module> {
        let (file, module) = (module.version.file, Rc::new(module));
        self.open.retain(|_, module| module.strong_count() > 0);
        self.open.insert(file, Rc::downgrade(&module));
        self.recent.push_back(Rc::clone(&module));
        if self.recent.len() > MAX_RECENT {
            self.recent.pop_front();
        }
        module
    }
}

/// Index of a module in its [`ModuleTable`]; never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub(super) usize);

/// One process's modules by address. What was mapped stays known after it was unmapped.
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
    /// Its path, as the process sees it.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

impl ModuleTable {
    /// The table of a process that began as a copy of this one's.
    #[must_use]
    pub fn of_child(&self) -> Self {
        Self {
            modules: self.modules.clone(),
            by_file: self.by_file.clone(),
            regions: self.regions.clone(),
            unopened: BTreeMap::new(),
        }
    }

    /// Takes in what the process maps now, of which `pid` is a thread; returns the modules that are new. Files that cannot be opened are
    /// left out: their addresses stay unknown, and show as such. They are tried once for as long as they are mapped.
    pub fn refresh(&mut self, files: &mut ModuleFiles, pid: Pid, mappings: &[Mapping]) -> Vec<ModuleId> {
        self.regions.begin_look();
        let mut new = Vec::new();
        let mut tried = std::mem::take(&mut self.unopened);
        for mapping in mappings.iter().filter(|mapping| mapping.executable) {
            let Some(file_id) = mapping.file else { continue };
            let known = self.by_file.get(&file_id).copied();
            if let Some(module) = known.or_else(|| self.open(files, pid, file_id, mapping, &mut tried)) {
                if known.is_none() {
                    new.push(module);
                }
                self.regions.map(&mapping.addresses, mapping.file_offset, mapping.identity(), module);
            }
        }
        new
    }

    /// Takes in a mapping that somebody has told of.
    pub fn learn(&mut self, addresses: &Range<u64>, file_offset: u64, module: Rc<Module>) {
        let FileId { device, inode } = module.version.file;
        let identity = code_identity(device, inode, addresses.start.wrapping_sub(file_offset));
        let known = self.by_file.get(&module.version.file).copied();
        let module = known.unwrap_or_else(|| self.add(module));
        self.regions.map(addresses, file_offset, identity, module);
    }

    /// The file behind a mapping, and the address in it (as its program headers have it) of the mapping's start.
    #[must_use]
    pub fn place(&self, mapping: &Mapping) -> Option<(FileVersion, u64)> {
        if mapping.is_vdso() {
            return Some((FileVersion::VDSO, 0));
        }
        let (id, offset) = self.find(mapping.addresses.start)?;
        let module = self.get(id);
        Some((module.version, module.address_of(offset)?))
    }

    /// Files that are mapped and could not be opened.
    pub fn unopened(&self) -> impl Iterator<Item = &Unopened> {
        self.unopened.values()
    }

    /// Opens a file that is not known. Those that were `tried` before are not tried again.
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
            // Whoever was asked has ended meanwhile: that says nothing of the file.
            Err(_) if !is_alive(pid, pid) => None,
            Err(error) => {
                let path = mapping.path.clone();
                tracing::warn!(path = %path.display(), %error, "cannot open mapped file");
                self.unopened.insert(id, Unopened { path, error });
                None
            }
        }
    }

    /// The folders of all modules.
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

    /// The module that was mapped last at an address, and the address's offset in its file.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(ModuleId, u64)> {
        self.regions.newest(address)
    }

    /// The module that was mapped at an address of a frame when its stack was taken, if that is certain, and the address's
    /// offset in its file. The frame tells its layer, and its stack what the kernel side has found.
    #[must_use]
    pub fn find_frame(&self, address: u64, layer: u16, found: &[u64; MAX_FOUND]) -> Option<(ModuleId, u64)> {
        self.regions.of_frame(address, layer, found)
    }

    /// Which of the files that have been mapped there a mapping is.
    #[must_use]
    pub fn layer(&self, mapping: &Mapping) -> u16 {
        self.regions.layer(mapping)
    }

    /// Where a module's code is mapped, from its first to its last executable address.
    #[must_use]
    pub fn text(&self, id: ModuleId) -> Option<Range<u64>> {
        self.regions.extent(id)
    }

    fn add(&mut self, module: Rc<Module>) -> ModuleId {
        let id = ModuleId(self.modules.len());
        self.by_file.insert(module.version.file, id);
        self.modules.push(module);
        id
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// A mapping that only its path leads from, for its addresses are not mapped.
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
    fn an_address_leads_to_its_file_and_offset() {
        let (table, mappings, _) = own_modules();
        let exe = std::env::current_exe().unwrap();
        let text = mappings.iter().find(|m| m.executable && m.path == exe).unwrap();
        let (module, offset) = table.find(text.addresses.start + 5).unwrap();
        assert_eq!(table.get(module).path, exe);
        assert_eq!(offset, text.file_offset + 5);
        assert!(table.find(0).is_none());
    }

    #[test]
    fn a_second_look_finds_nothing_new() {
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
        table.regions.map(&over.addresses, 0, over.identity(), other);
        assert_eq!(table.find(middle + 1), Some((other, 1)));
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
        assert_eq!(table.get(id).read().unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
