//! Files mapped for execution, each opened once.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use super::descriptors::FileSlot;
use super::headers::Headers;
use super::layout::{FileParts, Part, Segment};
use super::{FileId, FileVersion, Mapping, Pid, Root, debug_file, exports, mapped_file};
use crate::file_content::{Content, LazyFile};

/// Maximum length of a file. Builds of browsers with full debug information have 5 GiB. Only what is needed is read, but each
/// 64 KiB cost a byte of memory, and address space; a hostile target can map a file of any apparent size.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 30;

/// A mapped file.
#[derive(Debug)]
pub struct Module {
    /// Identity and version of the file.
    pub version: FileVersion,
    /// Path of the file, as the process sees it.
    pub path: PathBuf,
    /// The open file, readable after the process has ended or its path has changed.
    file: File,
    _slot: FileSlot,
    headers: Headers,
    /// A process that has it mapped.
    mapped_by: Pid,
    /// Results of [`Module::exported_word`].
    exported: RefCell<BTreeMap<&'static str, Option<u64>>>,
    /// A debug file that is not where debuggers look for it.
    debug_file: OnceCell<File>,
}

/// A mapped file and its separate debug files.
#[derive(Debug)]
pub struct SymbolFiles {
    /// The file.
    pub file: File,
    /// Its separate debug file.
    pub debug_file: Option<File>,
    /// The file with what several debug files have in common (`.gnu_debugaltlink`).
    pub supplement: Option<File>,
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
            _slot: FileSlot::take()?,
            file,
            mapped_by: pid,
            exported: RefCell::default(),
            debug_file: OnceCell::new(),
        })
    }

    /// Returns true if the file was modified after it was opened.
    fn has_changed(&self) -> bool {
        // A file without readable metadata counts as unchanged.
        self.file.metadata().is_ok_and(|now| (now.ctime(), now.ctime_nsec()) != self.version.changed)
    }

    /// A path to the file that is valid for the lifetime of this value.
    #[must_use]
    pub fn stable_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Difference between the addresses in the program headers and the file offsets of mapped code, wrapping. `mapped` are all
    /// parts of the file that the process maps. `None` if the part is not code of the file, or the result is not certain.
    pub(super) fn addend(&self, code: &Part, mapped: &FileParts) -> Option<u64> {
        self.headers.layout.addend(code, mapped)
    }

    /// Build ID in hex; empty if there is none.
    #[must_use]
    pub fn build_id(&self) -> &str {
        &self.headers.build_id
    }

    /// Key for caches on disk: the build ID, or the version of the file if it has none, as most files linked by LLD.
    #[must_use]
    pub fn key(&self) -> String {
        if self.build_id().is_empty() { self.version.key() } else { self.build_id().to_owned() }
    }

    /// Address of a variable that it exports under this name and with the size of a pointer. Cached.
    #[must_use]
    pub fn exported_word(&self, name: &'static str) -> Option<u64> {
        let read = || exports::word(Content::from(&self.content().ok()?), name);
        *self.exported.borrow_mut().entry(name).or_insert_with(read)
    }

    /// Opens the separate debug file that matches this file with this content.
    #[must_use]
    pub fn find_debug_file(&self, elf: Content<'_>) -> Option<File> {
        debug_file::find(self.mapped_by, &self.path, self.build_id(), elf)
    }

    /// File offset of the code at an address of the program headers.
    #[must_use]
    pub fn offset_of_code(&self, address: u64) -> Option<u64> {
        self.headers.layout.offset_of_code(address)
    }

    /// Fills the buffer with bytes from a file offset; `false` if there are too few.
    #[must_use]
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> bool {
        self.file.read_exact_at(buffer, offset).is_ok()
    }

    /// Opens the file at a path in the root file system of another host.
    pub(super) fn open_in_folder(folder: &Path, path: &Path) -> io::Result<Rc<Self>> {
        let file = Root::folder(folder)?.open(path)?;
        let own = Pid::new(std::process::id()).ok_or_else(|| io::Error::other("PID 0"))?;
        let id = mapped_file::identify(&file)?;
        Self::of(file, id, own, path.to_owned()).map(Rc::new)
    }

    /// Sets the debug file, in place of one that debuggers would find.
    pub(super) fn set_debug_file(&self, file: File) {
        self.debug_file.get_or_init(|| file);
    }

    /// Segments with code.
    pub(super) fn code(&self) -> impl Iterator<Item = &Segment> {
        self.headers.layout.segments().iter().filter(|segment| segment.executable)
    }

    /// Opens the file and its separate debug files, for a process that reads symbols from them.
    pub fn symbol_files(&self) -> io::Result<SymbolFiles> {
        let file = self.file.try_clone()?;
        // The content of a file that is too large to read is not searched for a link.
        let content = self.content().ok();
        let content = content.as_ref().map_or(Content::Memory(&[]), Content::from);
        let (debug_file, supplement) = debug_file::find_with_supplement(
            self.mapped_by,
            &self.path,
            self.build_id(),
            content,
            self.debug_file.get().map(File::try_clone).transpose()?,
        );
        Ok(SymbolFiles { file, debug_file, supplement })
    }

    /// The content of the file, read when it is needed.
    pub fn content(&self) -> io::Result<LazyFile<'_>> {
        LazyFile::new(self.bounded()?)
    }

    /// The open file, if it is not too large to read; the target controls its content.
    pub fn bounded(&self) -> io::Result<&File> {
        let length = self.file.metadata()?.len();
        if length > MAX_FILE_BYTES {
            let gibibytes = MAX_FILE_BYTES >> 30;
            let why = format!("it has {length} bytes, and jjleak reads files of up to {gibibytes} GiB");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        Ok(&self.file)
    }
}

/// The mapped files of all processes, each opened once. While a file is open, its inode number is not reused.
#[derive(Debug, Default)]
pub struct ModuleFiles {
    open: HashMap<FileId, Weak<Module>>,
    /// Most recently opened files: the next process that maps them may end before they can be opened again.
    recent: VecDeque<Rc<Module>>,
}

/// Number of files kept open after no process maps them, such as programs and libraries of a build.
const MAX_RECENT: usize = 384;

impl ModuleFiles {
    /// The file in this version, if it is open.
    #[must_use]
    pub fn find(&self, version: FileVersion) -> Option<Rc<Module>> {
        self.find_file(version.file).filter(|module| module.version == version)
    }

    /// The file, if it is open. Its inode number cannot be reused meanwhile.
    pub(super) fn find_file(&self, file: FileId) -> Option<Rc<Module>> {
        self.open.get(&file).and_then(Weak::upgrade)
    }

    /// Opens a file that a process maps, unless it is open.
    pub(super) fn open(&mut self, pid: Pid, file: FileId, mapping: &Mapping) -> io::Result<Rc<Module>> {
        if let Some(module) = self.known(file) {
            return Ok(module);
        }
        Ok(self.keep(Module::open(pid, file, mapping)?))
    }

    /// Opens a file that a process may map later, by its path on this host.
    pub(super) fn open_path(&mut self, pid: Pid, path: &Path) -> io::Result<Rc<Module>> {
        let (id, file) = mapped_file::open_path(pid, path)?;
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
        // The path that the kernel will show, if the root is that of jjleak.
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let shown =
            shown.ok().filter(|shown| mapped_file::open_path(pid, shown).is_ok_and(|(here, _)| here == id));
        Ok(self.keep(Module::of(file, id, pid, shown.unwrap_or_else(|| path.to_path_buf()))?))
    }

    /// The file in its current version, if it is open. Otherwise makes room for another file, if it must.
    fn known(&mut self, file: FileId) -> Option<Rc<Module>> {
        let known = self.find_file(file).filter(|module| !module.has_changed());
        while known.is_none() && FileSlot::is_none_left() && self.recent.pop_front().is_some() {}
        known
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
