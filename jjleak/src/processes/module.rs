//! The files that processes map for execution, each opened once.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use object::ReadCache;

use super::headers::Headers;
use super::layout::Part;
use super::{FileId, FileVersion, Mapping, Pid, Root, debug_file, exports, mapped_file};

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

    /// What to add to offsets of mapped code to get addresses as the program headers have them, wrapping. `mapped` is what the
    /// process maps, of this file and of others. `None` when it is not code of the file, or not certain which.
    pub(super) fn addend(&self, code: &Part, mapped: &[Mapping]) -> Option<u64> {
        let of_file = mapped.iter().filter(|mapping| mapping.file == Some(self.version.file));
        self.headers.layout.addend(code, &of_file.map(Part::of))
    }

    /// Build ID in hex; empty when it has none.
    #[must_use]
    pub fn build_id(&self) -> &str {
        &self.headers.build_id
    }

    /// Whether it exports a variable of this name that is as large as a pointer. It is looked at once.
    #[must_use]
    pub fn exports_word(&self, name: &'static str) -> bool {
        let look = || self.bounded().is_ok_and(|file| exports::exports_word(file, name));
        *self.exported.borrow_mut().entry(name).or_insert_with(look)
    }

    /// The bytes of the separate debug file that belongs to this file, whose bytes are `elf`.
    #[must_use]
    pub fn read_debug_file(&self, elf: &[u8]) -> Option<Vec<u8>> {
        debug_file::read(self.mapped_by, &self.path, self.build_id(), elf)
    }

    /// The file's bytes. Read rather than mapped: a file truncated under a mapping would kill jjleak.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut file = self.bounded()?;
        file.rewind()?;
        let mut bytes = Vec::new();
        // It may grow while it is read.
        file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Where in the file the code at an address is, as the program headers have it.
    #[must_use]
    pub fn offset_of_code(&self, address: u64) -> Option<u64> {
        self.headers.layout.offset_of_code(address)
    }

    /// Fills the buffer with the file's bytes from an offset on; `false` where there are too few.
    #[must_use]
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.file.read_exact_at(buffer, offset).is_ok()
    }

    /// The file, whose content is the target's choice.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// The separate debug file of its build ID, if there is one.
    #[must_use]
    pub fn open_debug_file(&self) -> Option<File> {
        debug_file::open(self.mapped_by, self.build_id())
    }

    /// The file, for those who need little of it: each part is read when it is asked for, and kept.
    pub fn parts(&self) -> io::Result<ReadCache<&File>> {
        Ok(ReadCache::new(self.bounded()?))
    }

    /// The file, unless it is too large to be read.
    fn bounded(&self) -> io::Result<&File> {
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
const MAX_RECENT: usize = 384;

impl ModuleFiles {
    /// The file in this version, if it is open.
    #[must_use]
    pub fn find(&self, version: FileVersion) -> Option<Rc<Module>> {
        let module = self.open.get(&version.file).and_then(Weak::upgrade);
        module.filter(|module| module.version == version)
    }

    /// The file that a process maps, opened unless it is.
    pub(super) fn open(&mut self, pid: Pid, file: FileId, mapping: &Mapping) -> io::Result<Rc<Module>> {
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

    /// Opens a file by its path in a process's root.
    pub(super) fn open_in_root(&mut self, pid: Pid, path: &Path) -> io::Result<Rc<Module>> {
        let file = Root::of(pid)?.open(path)?;
        let id = mapped_file::identify(&file)?;
        if let Some(module) = self.known(id) {
            return Ok(module);
        }
        // As the kernel will name it, where the root is jjleak's own.
        let canonical = path
            .canonicalize()
            .ok()
            .filter(|path| mapped_file::open_path(path).is_ok_and(|(here, _)| here == id));
        Ok(self.keep(Module::of(file, id, pid, canonical.unwrap_or_else(|| path.to_path_buf()))?))
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
