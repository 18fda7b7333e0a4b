//! Files that a program is likely to map while it runs: what it has mapped in earlier runs, what lies in folders of its own,
//! beside the libraries that it has there, and what these need.
//!
//! What is expected in vain costs a little room, and what is missed is found when it is mapped.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, ReadRef};

use super::{Module, ModuleFiles, ModuleTable, Pid};

/// Most files that are expected, each an open one (1,024 are allowed by default). A JDK has 40 libraries, and Emacs maps 140
/// files of Lisp that was compiled ahead.
pub const MAX_EXPECTED: usize = 256;
/// Most entries of a folder of libraries that are looked at.
const MAX_ENTRIES: usize = 256;
/// Most folders that are looked into.
const MAX_FOLDERS: usize = 64;
/// The program waits meanwhile. The loader looks into the same folders after it.
const MAX_TIME: Duration = Duration::from_millis(200);
/// Where everybody may put something, what lies there is anybody's.
const WRITABLE_BY_ALL: u32 = 0o002;
/// Folders of a run path have libraries in folders of their own, one below the other.
const MAX_DEPTH: usize = 2;

/// What a file says of those that are loaded with it (the dynamic section).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dynamic {
    /// Names of libraries.
    pub(super) needed: Vec<String>,
    /// Folders to look for them in, before those of the system.
    pub(super) run_path: Vec<PathBuf>,
}

impl ModuleFiles {
    /// Opens the files that a process is likely to map besides those that it maps, as far as they are there. `program` is the
    /// path of what it runs, and `earlier` are those of files that it has mapped before.
    pub fn expected(
        &mut self,
        pid: Pid,
        program: &Path,
        mapped: &ModuleTable,
        earlier: &[PathBuf],
    ) -> Vec<Rc<Module>> {
        let mut search = Search::new();
        for (_, module) in mapped.iter() {
            search.known.insert(module.path.clone());
            search.folders.extend(module.path.parent().map(Path::to_path_buf));
        }
        search.waiting.extend(earlier.iter().cloned());
        for (_, module) in mapped.iter() {
            let run_path = dynamic_of(module).run_path;
            for folder in run_path.iter().filter_map(|folder| folder.canonicalize().ok()) {
                search.add_folder(&folder, MAX_DEPTH);
            }
            if let Some(folder) = module.path.parent() {
                search.add_folder(folder, 1);
            }
        }
        for folder in own_folders(program) {
            search.add_folder(&folder, MAX_DEPTH);
        }
        let mut expected = Vec::new();
        while let Some(path) = search.waiting.pop_front() {
            if expected.len() >= MAX_EXPECTED || search.is_over() {
                break;
            }
            // As the kernel will name it.
            let Ok(path) = path.canonicalize() else { continue };
            if !search.known.insert(path.clone()) {
                continue;
            }
            let Ok(module) = self.open_path(pid, &path) else { continue };
            search.add_needed(&path, &dynamic_of(&module));
            expected.push(module);
        }
        expected
    }
}

/// The state of a search.
struct Search {
    end: Instant,
    folders_left: usize,
    known: HashSet<PathBuf>,
    /// Where the program's libraries are.
    folders: HashSet<PathBuf>,
    waiting: VecDeque<PathBuf>,
}

impl Search {
    fn new() -> Self {
        Self {
            end: Instant::now() + MAX_TIME,
            folders_left: MAX_FOLDERS,
            known: HashSet::new(),
            folders: HashSet::new(),
            waiting: VecDeque::new(),
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Adds the libraries in a folder.
    fn add_folder(&mut self, folder: &Path, depth: usize) {
        // Where the system's libraries are, nearly all are other programs'.
        if SYSTEM.iter().any(|system| folder == Path::new(system)) || !self.known.insert(folder.to_path_buf())
        {
            return;
        }
        if self.folders_left == 0 || self.is_over() {
            return;
        }
        self.folders_left -= 1;
        let is_open = |about: fs::Metadata| about.permissions().mode() & WRITABLE_BY_ALL != 0;
        if fs::metadata(folder).is_ok_and(is_open) {
            return;
        }
        let Ok(entries) = fs::read_dir(folder) else { return };
        // What a folder is, it says itself: to look at it could mount something.
        let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        let entries = entries.take(MAX_ENTRIES).flatten();
        let mut paths: Vec<_> = entries.map(|entry| (entry.path(), is_folder(&entry))).collect();
        paths.sort();
        for (path, is_folder) in paths {
            if is_folder {
                if depth > 1 {
                    self.add_folder(&path, depth - 1);
                }
            } else if is_library(&path) {
                self.waiting.push_back(path);
            }
        }
    }

    /// Adds the libraries that one needs. They are loaded right after it.
    fn add_needed(&mut self, path: &Path, dynamic: &Dynamic) {
        for name in dynamic.needed.iter().filter(|name| !name.contains('/')) {
            let own = dynamic.run_path.iter().map(PathBuf::as_path).chain(path.parent());
            let found = own.chain(self.folders.iter().map(PathBuf::as_path)).map(|folder| folder.join(name));
            let found = found.into_iter().find(|path| path.exists());
            self.waiting.extend(found);
        }
    }
}

/// The loader's default folders (ld.so(8)), and Debian's.
pub(super) const SYSTEM: [&str; 9] = [
    "/",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
];

/// Where libraries are, below a folder that has programs in another one.
const LIBRARIES: [&str; 3] = ["lib", "lib64", "lib/x86_64-linux-gnu"];

/// Where things may be that only this program loads: in folders of its name where libraries are (Filesystem Hierarchy Standard,
/// 4.6), and beside them, if it is installed in a place of its own.
fn own_folders(program: &Path) -> Vec<PathBuf> {
    let place = program.parent().and_then(Path::parent);
    let Some((place, name)) = place.zip(program.file_name()) else { return Vec::new() };
    let folders = LIBRARIES.map(|libraries| place.join(libraries));
    folders
        .into_iter()
        .flat_map(|folder| [folder.join(name), folder])
        .filter(|folder| folder.is_dir())
        .collect()
}

fn is_library(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "so")
}

pub(super) fn dynamic_of(module: &Module) -> Dynamic {
    let origin = module.path.parent().unwrap_or(Path::new("/"));
    module.parts().ok().and_then(|parts| read_dynamic(&parts, origin)).unwrap_or_default()
}

/// Reads the dynamic section of a file in the folder `origin`.
fn read_dynamic<'data>(elf: impl ReadRef<'data>, origin: &Path) -> Option<Dynamic> {
    let header = FileHeader64::<Endianness>::parse(elf).ok()?;
    let endian = header.endian().ok()?;
    let table = header.sections(endian, elf).ok()?.dynamic_table(endian, elf).ok()?;
    let mut dynamic = Dynamic::default();
    for entry in table.dynamics().iter().take(MAX_ENTRIES) {
        let text = || {
            let offset = u32::try_from(entry.d_val(endian)).ok()?;
            Some(std::str::from_utf8(table.strings().get(offset).ok()?).ok()?.to_owned())
        };
        match entry.d_tag(endian) {
            DT_NEEDED => dynamic.needed.extend(text()),
            DT_RPATH | DT_RUNPATH => {
                let path = text().unwrap_or_default();
                let origin = origin.to_string_lossy();
                let folders = path.split(':').map(|folder| {
                    PathBuf::from(folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
                });
                dynamic.run_path.extend(folders.filter(|folder| folder.is_absolute()));
            }
            _ => {}
        }
    }
    Some(dynamic)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::processes::Mapping;

    fn own() -> (Pid, ModuleTable, ModuleFiles) {
        let pid = Pid::new(std::process::id()).unwrap();
        let (mut modules, mut files) = (ModuleTable::default(), ModuleFiles::default());
        modules.refresh(&mut files, pid, &Mapping::all(pid).unwrap());
        (pid, modules, files)
    }

    fn paths(modules: &[Rc<Module>]) -> Vec<&Path> {
        modules.iter().map(|module| &*module.path).collect()
    }

    #[test]
    fn the_dynamic_section_tells_what_a_program_needs() {
        let program = fs::read(std::env::current_exe().unwrap()).unwrap();
        let dynamic = read_dynamic(&*program, Path::new("/")).unwrap();
        assert!(dynamic.needed.contains(&"libc.so.6".to_owned()), "{dynamic:?}");
        assert_eq!(read_dynamic(&program[..1000], Path::new("/")), None);
    }

    #[test]
    fn what_was_mapped_earlier_is_expected_once_and_nothing_that_is_mapped_or_gone() {
        let (pid, modules, mut files) = own();
        let folder = TempDir::new().unwrap();
        let library = folder.path().canonicalize().unwrap().join("libit.so.1");
        let program = std::env::current_exe().unwrap();
        fs::copy("/bin/true", &library).unwrap();
        let earlier = [library.clone(), program, library.clone(), PathBuf::from("/nonexistent")];
        let expected = files.expected(pid, Path::new(""), &modules, &earlier);
        assert!(paths(&expected).contains(&&*library), "{:?}", paths(&expected));
        assert_eq!(expected.iter().filter(|module| module.path == library).count(), 1);
        assert!(!expected.iter().any(|module| modules.iter().any(|(_, mapped)| mapped.path == module.path)));
    }

    #[test]
    fn libraries_in_a_folder_are_expected_and_other_files_are_not() {
        let folder = TempDir::new().unwrap();
        for name in ["b.so", "a.so", "text.txt", "below/c.so", "below/too/deep.so"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(open.join("d.so"), "").unwrap();
        let mut search = Search::new();
        search.add_folder(folder.path(), MAX_DEPTH);
        search.add_folder(Path::new("/usr/lib"), MAX_DEPTH);
        let names = ["a.so", "b.so", "below/c.so"].map(|name| folder.path().join(name));
        assert_eq!(search.waiting, names);
    }

    #[test]
    fn a_program_has_folders_of_its_name_and_a_place_of_its_own() {
        let place = TempDir::new().unwrap();
        let place = place.path();
        for folder in ["bin", "lib/python3/lib-dynload", "lib/python2", "lib/x86_64-linux-gnu/python3"] {
            fs::create_dir_all(place.join(folder)).unwrap();
        }
        let names = ["lib/python3", "lib", "lib/x86_64-linux-gnu/python3", "lib/x86_64-linux-gnu"];
        assert_eq!(own_folders(&place.join("bin/python3")), names.map(|name| place.join(name)));
        assert_eq!(own_folders(Path::new("")), Vec::<PathBuf>::new());
        let libraries =
            [Path::new("/usr/lib"), Path::new("/usr/lib64"), Path::new("/usr/lib/x86_64-linux-gnu")];
        let mut search = Search::new();
        for folder in &own_folders(Path::new("/usr/bin/nothing")) {
            search.add_folder(folder, MAX_DEPTH);
        }
        assert!(search.waiting.is_empty() && !libraries.iter().any(|folder| search.known.contains(*folder)));
    }
}
