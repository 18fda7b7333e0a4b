//! Files of which only the inode number is known: those that a process mapped and that nobody has opened before it ended.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::prefetch::SYSTEM;
use super::{FileVersion, Module, ModuleFiles, Pid};

/// Depth of subfolders that are searched: plugins lie below the folder of the library that loads them.
const MAX_DEPTH: u32 = 2;
/// Time limit of a search. Others wait meanwhile.
const MAX_TIME: Duration = Duration::from_millis(100);

impl ModuleFiles {
    /// Opens the wanted files that lie in these folders, in folders of the system's libraries, or below.
    pub fn find_in_folders(
        &mut self,
        pid: Pid,
        folders: impl Iterator<Item = PathBuf>,
        wanted: &HashSet<FileVersion>,
    ) -> Vec<Rc<Module>> {
        let end = Instant::now() + MAX_TIME;
        let mut inodes: HashSet<u64> = wanted.iter().map(|version| version.file.inode).collect();
        let system = SYSTEM.iter().map(PathBuf::from);
        let mut waiting: VecDeque<_> = folders.chain(system).map(|folder| (folder, 0)).collect();
        let (mut searched, mut found) = (HashSet::new(), Vec::new());
        while let Some((folder, depth)) = waiting.pop_front()
            && !inodes.is_empty()
            && Instant::now() < end
        {
            if !searched.insert(folder.clone()) {
                continue;
            }
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                // The entry itself says so: to look at a folder could mount something.
                if depth < MAX_DEPTH && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push_back((entry.path(), depth + 1));
                } else if inodes.contains(&entry.ino())
                    && let Ok(module) = self.open_path(pid, &entry.path())
                    && wanted.contains(&module.version)
                {
                    inodes.remove(&entry.ino());
                    found.push(module);
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_file_is_found_below_a_folder_by_its_inode_unless_it_has_changed() {
        let pid = Pid::new(std::process::id()).unwrap();
        let exe = env::current_exe().unwrap();
        let folder = exe.ancestors().nth(2).map(Path::to_path_buf);
        let (_, program) = ModuleFiles::default().open_program(&[pid], &exe, None).unwrap();
        let find = |version| {
            let found =
                ModuleFiles::default().find_in_folders(pid, folder.clone().into_iter(), &[version].into());
            found.into_iter().map(|module| module.path.clone()).collect::<Vec<_>>()
        };
        assert_eq!(find(program.version), [exe]);
        let changed = FileVersion { changed: (1, 1), ..program.version };
        assert!(find(changed).is_empty());
    }
}
