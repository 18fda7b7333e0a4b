//! Programs and their libraries by path: for processes that end before their mappings can be read, and for programs that are
//! about to run.

use std::collections::{HashSet, VecDeque};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use object::elf::ELFMAG;

use super::prefetch::{MAX_FOLDERS, SYSTEM, dynamic_of};
use super::{FileId, FileVersion, Module, ModuleFiles, Pid};

/// Maximum number of libraries of a program to look up. Large programs need about a hundred.
const MAX_NEEDED: usize = 256;
/// Maximum number of names of libraries to look for, found or not; the names are the program's.
const MAX_NAMES: usize = 2 * MAX_NEEDED;
/// Time limit of the search: each name is looked for in each folder. From the disk, a hundred libraries take some 100 ms.
const MAX_TIME: Duration = Duration::from_secs(1);
/// Maximum number of words of a command to inspect.
const MAX_WORDS: usize = 256;
/// Maximum number of programs of a command to prepare for.
const MAX_NAMED: usize = 16;
/// Execute bits of a file's mode.
const EXECUTABLE: u32 = 0o111;

/// A program and its libraries.
#[derive(Debug)]
pub struct ProgramFiles {
    /// The program, its libraries, and their dependencies.
    pub modules: Vec<Rc<Module>>,
    /// True if a library was not found.
    pub lacks: bool,
}

impl ModuleFiles {
    /// Opens a program that a process has run, if its path still leads to it in the root of one of these processes; relative
    /// paths start in the working directory. Returns the process whose root was used.
    pub fn open_program(
        &mut self,
        pids: &[Pid],
        path: &Path,
        version: Option<FileVersion>,
    ) -> Option<(Pid, Rc<Module>)> {
        // On overlayfs, the kernel side reports another device than /proc shows.
        let is_it = |module: &Rc<Module>| {
            let is_version = |version: FileVersion| {
                version.file.inode == module.version.file.inode && version.changed == module.version.changed
            };
            version.is_none_or(is_version)
        };
        let inside = |files: &mut Self, pid: Pid| {
            let folder = fs::read_link(pid.proc_file("cwd")).unwrap_or_default();
            let module = files.open_in_root(pid, &folder.join(path)).ok().filter(is_it)?;
            Some((pid, module))
        };
        pids.iter().find_map(|pid| inside(self, *pid))
    }

    /// Opens a file that a process has mapped, if it is open already, or its path still leads to it in the root of one of these
    /// processes.
    pub fn open_recorded(&mut self, pids: &[Pid], path: &Path, file: FileId) -> Option<Rc<Module>> {
        if let Some(module) = self.find_file(file) {
            return Some(module);
        }
        let opened = pids.iter().filter_map(|pid| self.open_in_root(*pid, path).ok());
        opened.into_iter().find(|module| module.version.file == file)
    }

    /// Finds the libraries of a program by name, in the root of a process. Searches like the loader, without its environment
    /// variables and cache.
    pub fn needed_by(&mut self, pid: Pid, program: &Rc<Module>) -> ProgramFiles {
        self.needed_until(Instant::now() + MAX_TIME, pid, program)
    }

    fn needed_until(&mut self, end: Instant, pid: Pid, program: &Rc<Module>) -> ProgramFiles {
        let (mut modules, mut lacks) = (vec![Rc::clone(program)], false);
        let (mut known, mut next) = (HashSet::new(), 0);
        let (mut run_path, mut looked_for) = (Vec::new(), 0);
        while let Some(module) = modules.get(next).cloned()
            && modules.len() < MAX_NEEDED
        {
            next += 1;
            let dynamic = dynamic_of(&module);
            add_folders(&mut run_path, dynamic.run_path);
            for name in dynamic.needed.into_iter().filter(|name| known.insert(name.clone())) {
                if looked_for == MAX_NAMES || Instant::now() >= end {
                    return ProgramFiles { modules, lacks: true };
                }
                looked_for += 1;
                let beside = module.path.parent().map(Path::to_path_buf);
                let system = SYSTEM.iter().map(PathBuf::from);
                let folders = run_path.iter().cloned().chain(beside).chain(system);
                let opened = folders
                    .map(|folder| folder.join(&name))
                    .find_map(|path| self.open_in_root(pid, &path).ok());
                lacks |= opened.is_none();
                modules.extend(opened);
            }
        }
        ProgramFiles { modules, lacks }
    }

    /// Opens the programs that the arguments of a command name, also within words of a script. Each has the name that it would
    /// run under.
    pub fn named_by(&mut self, pid: Pid, words: &[OsString]) -> Vec<(String, Rc<Module>)> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = env::split_paths(&path).collect();
        let mut opened = Vec::new();
        for path in programs_in(words, &folders) {
            let module = path.canonicalize().and_then(|path| self.open_path(pid, &path));
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            opened.extend(name.zip(module.ok()));
        }
        opened
    }
}

/// Adds folders to a run path, each once, up to a limit: they are the program's.
fn add_folders(run_path: &mut Vec<PathBuf>, folders: Vec<PathBuf>) {
    for folder in folders {
        if run_path.len() < MAX_FOLDERS && !run_path.contains(&folder) {
            run_path.push(folder);
        }
    }
}

/// Paths of programs named by words, either directly or through `folders` as a shell does.
fn programs_in(words: &[OsString], folders: &[PathBuf]) -> Vec<PathBuf> {
    let mut known = HashSet::new();
    let mut waiting: VecDeque<&[u8]> = VecDeque::new();
    for word in words.iter().take(MAX_WORDS) {
        let word = word.as_bytes();
        waiting.push_back(word);
        waiting.extend(word.split(|byte| is_between_words(*byte)).filter(|part| part.len() < word.len()));
    }
    let found = waiting.into_iter().take(MAX_WORDS).filter(|word| !word.is_empty()).filter_map(|word| {
        let word = Path::new(OsStr::from_bytes(word));
        let is_path = word.as_os_str().as_bytes().contains(&b'/');
        let places = folders.iter().filter(|_| !is_path).map(|folder| folder.join(word));
        let direct = is_path.then(|| word.to_path_buf());
        direct.into_iter().chain(places).find(|place| is_program(place))
    });
    found.filter(|path| known.insert(path.clone())).take(MAX_NAMED).collect()
}

/// Returns true if the byte separates words of a script, or an option from its value.
fn is_between_words(byte: u8) -> bool {
    byte.is_ascii_whitespace() || b";&|()<>{}`\"'=$".contains(&byte)
}

/// Returns true for an executable ELF file.
fn is_program(path: &Path) -> bool {
    let is_runnable = |about: &fs::Metadata| about.is_file() && about.permissions().mode() & EXECUTABLE != 0;
    let mut magic = [0; ELFMAG.len()];
    fs::metadata(path).is_ok_and(|about| is_runnable(&about))
        && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == ELFMAG
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_arguments_and_in_the_words_of_scripts() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let folders = [PathBuf::from("/nonexistent"), PathBuf::from("/usr/bin")];
        let found = |arguments: &[&str]| programs_in(&words(arguments), &folders);
        let (env, nice) = (PathBuf::from("/usr/bin/env"), PathBuf::from("/usr/bin/nice"));
        assert_eq!(found(&["nice", "-n", "5", "/usr/bin/env"]), [nice.clone(), env.clone()]);
        assert_eq!(found(&["-c", "cd /; exec /usr/bin/env>x&&nice"]), [env.clone(), nice]);
        assert_eq!(found(&["--program=/usr/bin/env", "env"]), [env]);
        assert!(found(&["/etc/passwd", "/usr/bin", "", "nothing-of-this-name"]).is_empty());
    }

    #[test]
    fn a_program_is_loaded_with_the_libraries_that_it_needs() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut files = ModuleFiles::default();
        let (_, program) = files.open_program(&[pid], &env::current_exe().unwrap(), None).unwrap();
        let ProgramFiles { modules, lacks } = files.needed_by(pid, &program);
        let has = |name: &str| modules.iter().any(|module| module.path.to_string_lossy().contains(name));
        assert!(has("libc.so") && !lacks, "{modules:?}");
        let ProgramFiles { modules, lacks } = files.needed_until(Instant::now(), pid, &program);
        assert!(modules.len() == 1 && lacks, "the time is over");
        let other = FileVersion { changed: (1, 1), ..program.version };
        assert!(ModuleFiles::default().open_program(&[pid], Path::new("/bin/sh"), Some(other)).is_none());
    }

    #[test]
    fn a_run_path_has_each_folder_once_and_no_more_than_any_program_needs() {
        let mut run_path = Vec::new();
        for _ in 0..2 {
            add_folders(&mut run_path, vec!["/a".into(), "/b".into(), "/a".into()]);
        }
        assert_eq!(run_path, ["/a", "/b"].map(PathBuf::from));
        add_folders(&mut run_path, (0..1000).map(|number| format!("/{number}").into()).collect());
        assert_eq!(run_path.len(), MAX_FOLDERS);
    }
}
