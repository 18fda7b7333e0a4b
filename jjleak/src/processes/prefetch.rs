//! Files that a program is likely to map later: the ones mapped in earlier runs, the ones in its own folders and beside its
//! libraries, and their dependencies.
//!
//! A wrong guess costs a little space; a missed file is found when it is mapped.

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
use crate::file_content::Content;

/// Maximum number of expected files, each an open file (the default limit is 1,024). A JDK has 40 libraries, and Emacs maps
/// 140 files of compiled Lisp.
pub const MAX_EXPECTED: usize = 256;
/// Maximum number of entries read of a folder of libraries.
const MAX_ENTRIES: usize = 256;
/// Maximum number of folders to read, and of folders in a run path.
pub(super) const MAX_FOLDERS: usize = 64;
/// Time limit of the search. The program waits meanwhile, and the loader reads the same folders afterwards.
const MAX_TIME: Duration = Duration::from_millis(200);
/// Mode bit of world-writable folders: any user may have placed files there.
const WRITABLE_BY_ALL: u32 = 0o002;
/// Depth of the search in folders of a run path, which have nested folders of libraries.
const MAX_DEPTH: usize = 2;

/// Dependencies of a file (the dynamic section).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dynamic {
    /// Names of needed libraries.
    pub(super) needed: Vec<String>,
    /// Folders to search before the system's folders.
    pub(super) run_path: Vec<PathBuf>,
}

impl ModuleFiles {
    /// Opens existing files that a process is likely to map later. `program` is the path of its program, `earlier` the paths of
    /// files mapped in earlier runs.
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
            // The path that the kernel will show.
            let Ok(path) = path.canonicalize() else { continue };
            if !search.known.insert(path.clone()) {
                continue;
            }
            let Ok(module) = self.open_path(pid, &path) else { continue };
            search.add_needed(&path, &dynamic_of(&module));
            expected.push(module);
        }
        tracing::debug!(
            files = expected.len(),
            left = search.waiting.len(),
            seconds = search.begin.elapsed().as_secs_f64(),
            "expected files"
        );
        expected
    }
}

/// State of a search.
struct Search {
    begin: Instant,
    folders_left: usize,
    known: HashSet<PathBuf>,
    /// Folders of the program's libraries.
    folders: HashSet<PathBuf>,
    waiting: VecDeque<PathBuf>,
}

impl Search {
    fn new() -> Self {
        Self {
            begin: Instant::now(),
            folders_left: MAX_FOLDERS,
            known: HashSet::new(),
            folders: HashSet::new(),
            waiting: VecDeque::new(),
        }
    }

    fn is_over(&self) -> bool {
        self.begin.elapsed() >= MAX_TIME
    }

    /// Adds the libraries in a folder.
    fn add_folder(&mut self, folder: &Path, depth: usize) {
        // Nearly all libraries in the system's folders belong to other programs.
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
        // `file_type` reads the directory entry only; stat(2) could trigger an automount.
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

    /// Adds the dependencies of a library, which are loaded right after it.
    fn add_needed(&mut self, path: &Path, dynamic: &Dynamic) {
        for name in dynamic.needed.iter().filter(|name| !name.contains('/')) {
            if self.is_over() {
                return;
            }
            let own = dynamic.run_path.iter().map(PathBuf::as_path).chain(path.parent());
            let found = own.chain(self.folders.iter().map(PathBuf::as_path)).map(|folder| folder.join(name));
            let found = found.into_iter().find(|path| path.exists());
            self.waiting.extend(found);
        }
    }
}

/// Default folders of the loader (ld.so(8)), and those of Debian.
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

/// Folders of libraries, relative to the parent of a program's folder.
const LIBRARIES: [&str; 3] = ["lib", "lib64", "lib/x86_64-linux-gnu"];

/// Folders that may contain libraries of this program only: folders of its name within library folders (Filesystem Hierarchy
/// Standard, 4.6), and the library folders themselves if the program has its own installation prefix.
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
    module
        .content()
        .ok()
        .and_then(|content| read_dynamic(Content::from(&content), origin))
        .unwrap_or_default()
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
                let room = MAX_FOLDERS - dynamic.run_path.len();
                dynamic.run_path.extend(folders.filter(|folder| folder.is_absolute()).take(room));
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
    fn the_dynamic_section_lists_what_a_program_needs() {
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
