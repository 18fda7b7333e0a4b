//! Files that programs mapped in earlier runs, saved on disk: one file per program, one path per line, the latest
//! first. Files that a program maps after an `exec` count for it too, because scripts start many programs.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::cache_folder::CacheFolder;
use crate::processes::MAX_EXPECTED;

/// Maximum size of a saved file. Paths have up to 4 KiB, but few have more than some hundred bytes.
const MAX_BYTES: u64 = 64 << 10;

/// Maximum number of a program's files with allocators that get probes before they are mapped: a shell runs many
/// programs, and each file takes a moment.
const MAX_ALLOCATORS: usize = 16;

/// Files mapped in earlier runs.
pub(super) struct EarlierRuns {
    /// Folder of the saved files; without one, nothing is saved.
    files: Option<CacheFolder>,
}

impl EarlierRuns {
    pub(super) const fn new(files: Option<CacheFolder>) -> Self {
        Self { files }
    }

    /// Files that a program mapped.
    pub(super) fn of(&self, program: &Program) -> Vec<PathBuf> {
        self.paths(&program.0)
    }

    /// Files with allocators that were found too late, in the program or in one that it became or started.
    pub(super) fn allocators_of(&self, program: &Program) -> Vec<PathBuf> {
        self.paths(&program.allocators())
    }

    /// Adds a file with an allocator that was found too late.
    pub(super) fn add_allocator(&self, program: &Program, path: &Path) {
        let earlier = self.allocators_of(program);
        let mut merged = merge([path.to_path_buf()].into_iter(), &earlier);
        merged.truncate(MAX_ALLOCATORS);
        self.keep(&program.allocators(), &merged, &earlier);
    }

    fn paths(&self, name: &str) -> Vec<PathBuf> {
        let Some(files) = &self.files else { return Vec::new() };
        let mut content = Vec::new();
        let read = files.open(name).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut content));
        if read.is_err() {
            return Vec::new();
        }
        let path = |line: &[u8]| PathBuf::from(OsString::from_vec(line.to_vec()));
        let paths = content.split(|byte| *byte == b'\n').map(path);
        paths.filter(|path| path.is_absolute()).take(MAX_EXPECTED).collect()
    }

    /// Adds the files that a program mapped in this run.
    pub(super) fn add(&self, program: &Program, paths: impl Iterator<Item = PathBuf>) {
        let earlier = self.of(program);
        self.keep(&program.0, &merge(paths, &earlier), &earlier);
    }

    fn keep(&self, name: &str, merged: &[PathBuf], earlier: &[PathBuf]) {
        let Some(files) = &self.files else { return };
        if merged == earlier {
            return;
        }
        let content: Vec<u8> =
            merged.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\n"].concat()).collect();
        if let Err(error) = files.write(name, &content) {
            tracing::debug!(%error, "cannot save the list of files that the program has mapped");
        }
    }
}

/// A program, by the name of its saved file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program(String);

impl Program {
    /// Identifies a program by the key of its file and its name.
    pub(super) fn new(key: &str, comm: &str) -> Self {
        Self(format!("{key}-{:08x}.mapped", crc32fast::hash(comm.as_bytes())))
    }

    /// Identifies a program that runs under this name: the kernel keeps the first 15 bytes (proc(5), `/proc/PID/comm`).
    pub(super) fn named(key: &str, name: &str) -> Self {
        const MAX_BYTES: usize = 15;
        let comm = name.as_bytes();
        Self::new(key, &String::from_utf8_lossy(&comm[..comm.len().min(MAX_BYTES)]))
    }

    /// Name of the saved file with the allocators that were found too late.
    fn allocators(&self) -> String {
        format!("{}.allocators", self.0)
    }
}

/// Puts new paths first, so that those not seen for longest are dropped. Returns `earlier` if nothing is new.
fn merge(now: impl Iterator<Item = PathBuf>, earlier: &[PathBuf]) -> Vec<PathBuf> {
    let is_line = |path: &PathBuf| path.is_absolute() && !path.as_os_str().as_bytes().contains(&b'\n');
    let mut merged: Vec<_> = now.filter(|path| is_line(path) && !earlier.contains(path)).collect();
    merged.extend_from_slice(earlier);
    merged.truncate(MAX_EXPECTED);
    merged
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::processes::{Mapping, ModuleFiles, ModuleTable, Pid};

    #[test]
    fn what_a_program_has_mapped_is_known_the_next_time() {
        let folder = TempDir::new().unwrap();
        let earlier = EarlierRuns::new(Some(CacheFolder::new(folder.path().join("new"))));
        let program = Program::new("abcd", "sh");
        assert_eq!(earlier.of(&program), Vec::<PathBuf>::new());
        let pid = Pid::new(std::process::id()).unwrap();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        earlier.add(&program, modules.iter().map(|(_, module)| module.path.clone()));
        let known = earlier.of(&program);
        assert!(known.iter().any(|path| path.to_string_lossy().contains("libc.so")), "{known:?}");
        for other in [Program::new("dcba", "sh"), Program::new("abcd", "script/..")] {
            assert_eq!(earlier.of(&other), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn what_is_new_comes_first_and_what_is_too_much_goes() {
        let path = |number: usize| PathBuf::from(format!("/lib/{number}.so"));
        let earlier: Vec<_> = (0..MAX_EXPECTED).map(path).collect();
        assert_eq!(merge([path(5)].into_iter(), &earlier), earlier);
        let merged =
            merge([path(1000), PathBuf::from("/a\nb"), PathBuf::from("[vdso]")].into_iter(), &earlier);
        assert_eq!((merged.len(), &merged[0]), (MAX_EXPECTED, &path(1000)));
        assert!(!merged.contains(&path(MAX_EXPECTED - 1)));
    }
}
