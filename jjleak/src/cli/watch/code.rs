//! Keeps the kernel side's unwind tables in step with what the processes map.

use std::collections::{HashMap, HashSet};
use std::env;
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jjleak_common::process::ProcessSlot;
use nix::unistd::Uid;

use super::Look;
use super::process::Watched;
use crate::attach::{self, Attachment, CodeMapping};
use crate::kept::KeptFiles;
use crate::processes::{FileVersion, Mapping, Module, Pid};
use crate::unwind::{ModuleRows, RowCache};

/// A file that has found no room for its rows is tried again: others may be mapped no more. At first after so long, by when the
/// places of processes are free that have ended just now, and after twice as long each time.
const FIRST_TRY: Duration = Duration::from_secs(2);
const LONGEST_BETWEEN_TRIES: Duration = Duration::from_secs(300);

/// A file that has found no room for its rows.
#[derive(Debug, Clone, Copy)]
struct WithoutRoom {
    since: Instant,
    pause: Duration,
}

impl WithoutRoom {
    /// It has found none again, if it had none `before`.
    fn after(before: Option<Self>) -> Self {
        let pause = before.map_or(FIRST_TRY, |before| LONGEST_BETWEEN_TRIES.min(before.pause * 2));
        Self { since: Instant::now(), pause }
    }

    fn is_due(&self) -> bool {
        self.since.elapsed() >= self.pause
    }
}

/// Follows the processes' code.
pub(super) struct CodeFollower {
    cache: RowCache,
    /// Rows that have been looked up before anybody asked for them.
    ahead: HashMap<FileVersion, Result<ModuleRows, String>>,
    /// Files without rows, so that they are tried once.
    without_rows: HashSet<FileVersion>,
    /// Files that have found no room for theirs.
    without_room: HashMap<FileVersion, WithoutRoom>,
    /// Which of them processes map.
    lacking: HashMap<ProcessSlot, Vec<FileVersion>>,
    /// Files that are mapped and have rows, of which the log knows.
    told: HashSet<FileVersion>,
    /// Whether the user knows that there is no room for rows any more.
    has_told_full: bool,
}

impl CodeFollower {
    pub(super) fn new(files: Option<KeptFiles>) -> Self {
        Self {
            cache: RowCache::new(files),
            ahead: HashMap::new(),
            without_rows: HashSet::new(),
            without_room: HashMap::new(),
            lacking: HashMap::new(),
            told: HashSet::new(),
            has_told_full: false,
        }
    }

    /// Takes the rows of files that are at hand already.
    pub(super) fn know(&mut self, ahead: HashMap<FileVersion, Result<ModuleRows, String>>) {
        self.ahead = ahead;
    }

    /// Adds the rows of modules that are new, and tells the unwinder where all code of a process is.
    pub(super) fn follow(
        &mut self,
        watched: &Watched,
        thread: Pid,
        look: &Look,
        attachment: &mut Attachment,
    ) -> Result<(), attach::Error> {
        let Watched { image, modules, jvm, .. } = watched;
        let executable = || look.mappings.iter().filter(|mapping| mapping.executable);
        let mut added = Vec::new();
        let kept = modules.iter().map(|(_, module)| module.version).chain([FileVersion::VDSO]).collect();
        for (_, module) in modules.iter() {
            let file = (module.version, module.path.as_path());
            let is_new = self.add(attachment, file, &kept, |follower| follower.rows(module));
            let has_rows = is_new || attachment.has_rows(module.version);
            // Rows that were given up for others may have come again.
            if has_rows && (self.told.insert(module.version) || is_new) {
                added.push(&module.path);
            }
        }
        for vdso in executable().filter(|mapping| mapping.is_vdso()) {
            let rows = |follower: &mut Self| {
                let elf = vdso.read(thread).map_err(|error| error.to_string())?;
                follower.cache.rows("", &*elf).map_err(|error| error.to_string())
            };
            self.add(attachment, (FileVersion::VDSO, &vdso.path), &kept, rows);
        }
        let lacks = |file: &FileVersion| self.without_room.contains_key(file);
        let lacking: Vec<_> = modules.iter().map(|(_, module)| module.version).filter(lacks).collect();
        if lacking.is_empty() {
            self.lacking.remove(&image.slot());
        } else {
            self.lacking.insert(image.slot(), lacking);
        }
        // How to unwind through what a JVM generates, it has to tell. Until then a walk ends there, and tells us.
        let is_unknown = |mapping: &Mapping| jvm.is_awaited() && mapping.is_generated();
        let code: Vec<_> = executable()
            .filter(|mapping| !mapping.is_of_uprobes() && !is_unknown(mapping))
            .map(|mapping| CodeMapping::of(mapping, modules))
            .collect();
        let left_out = attachment.set_code(*image, &code, look.seen)?;
        if left_out > 0 {
            tracing::warn!(
                "the process maps code at {left_out} more places than jjleak follows: stacks end there"
            );
        }
        for path in added {
            tracing::info!("stacks lead through {}", path.display());
        }
        Ok(())
    }

    /// Whether a process's code is to be looked at again because files had found no room for their rows, and have it now, or are to be
    /// tried once more.
    pub(super) fn is_due(&self, slot: ProcessSlot, attachment: &Attachment) -> bool {
        let is_due = |file: &FileVersion| {
            attachment.has_rows(*file) || self.without_room.get(file).is_none_or(WithoutRoom::is_due)
        };
        self.lacking.get(&slot).is_some_and(|files| files.iter().any(is_due))
    }

    /// Adds the rows of a file that is likely to be mapped.
    pub(super) fn expect(&mut self, module: &Module, attachment: &mut Attachment) {
        if attachment.has_rows(module.version) {
            return;
        }
        let outcome = self.rows(module).and_then(|rows| {
            let added = attachment.expect_rows(module.version, &rows, module.code_places());
            added.map_err(|full| full.to_string())
        });
        if let Err(error) = outcome {
            tracing::debug!(error, path = %module.path.display(), "not prepared for it");
        }
    }

    fn rows(&mut self, module: &Module) -> Result<ModuleRows, String> {
        self.ahead.remove(&module.version).unwrap_or_else(|| rows_of(module, &self.cache))
    }

    /// Compiles and adds the rows of a file, once, where those of the files that are to be kept stay; whether it has done so now.
    fn add(
        &mut self,
        attachment: &mut Attachment,
        (file, path): (FileVersion, &Path),
        kept: &HashSet<FileVersion>,
        rows: impl FnOnce(&mut Self) -> Result<ModuleRows, String>,
    ) -> bool {
        if attachment.has_rows(file)
            || self.without_rows.contains(&file)
            || self.without_room.get(&file).is_some_and(|file| !file.is_due())
        {
            return false;
        }
        let before = self.without_room.remove(&file);
        let mut is_full = false;
        let outcome = rows(self).and_then(|rows| {
            attachment.add_rows(file, &rows, kept).map_err(|full| {
                is_full = true;
                full.to_string()
            })
        });
        if let Err(error) = outcome {
            let path = path.display();
            if !is_full {
                tracing::warn!("{path}: its code is unwound by frame pointers: {error}");
            } else if mem::replace(&mut self.has_told_full, true) {
                tracing::info!("{path}: its code is unwound by frame pointers: {error}");
            } else {
                tracing::warn!(
                    "{path}: its code is unwound by frame pointers, and so may be others' from now on (-v lists them): {error}"
                );
            }
            if is_full {
                self.without_room.insert(file, WithoutRoom::after(before));
            } else {
                self.without_rows.insert(file);
            }
            return false;
        }
        true
    }
}

/// The rows of a file, compiled unless the cache has them.
pub(super) fn rows_of(module: &Module, cache: &RowCache) -> Result<ModuleRows, String> {
    let parts = module.parts().map_err(|error| error.to_string())?;
    cache.rows(module.build_id(), &parts).map_err(|error| error.to_string())
}

/// Where what saves work is kept: with the system's caches for root, with the user's own otherwise (XDG Base Directory
/// Specification), and nowhere without a home: folders that all may write to are for others to prepare.
pub(super) fn cache_folder() -> Option<PathBuf> {
    if Uid::effective().is_root() {
        return Some(PathBuf::from("/var/cache/jjleak"));
    }
    let own = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let own = own.or_else(|| home().map(|home| home.join(".cache")));
    own.map(|caches| caches.join("jjleak"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{ModuleFiles, ModuleTable};

    #[test]
    fn rows_that_are_known_are_not_compiled() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        let mut follower = CodeFollower::new(None);
        let known = Err("known".to_owned());
        follower.know(modules.iter().map(|(_, module)| (module.version, known.clone())).collect());
        for (_, module) in modules.iter() {
            assert_eq!(follower.rows(module), known);
        }
        assert!(follower.ahead.is_empty(), "each is asked for once");
    }
}
