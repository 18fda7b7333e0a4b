//! Keeps the kernel side's unwind tables in step with what the processes map.

use std::collections::{HashMap, HashSet};
use std::env;
use std::mem;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use super::Look;
use super::process::Watched;
use crate::attach::{self, Attachment, CodeMapping};
use crate::cache_folder::CacheFolder;
use crate::processes::{FileVersion, Mapping, Module, Pid};
use crate::unwind::{RowCache, VerifiedRows};

/// Follows the processes' code.
pub(super) struct CodeFollower {
    cache: RowCache,
    /// Rows that have been looked up before anybody asked for them.
    ahead: HashMap<FileVersion, Result<VerifiedRows, String>>,
    /// Files without rows, so that they are tried once.
    without_rows: HashSet<FileVersion>,
    /// Files that are mapped and have rows, of which the log knows.
    told: HashSet<FileVersion>,
    /// Whether the user knows that there is no room for rows any more.
    has_told_full: bool,
}

impl CodeFollower {
    pub(super) fn new(files: Option<CacheFolder>) -> Self {
        Self {
            cache: RowCache::new(files),
            ahead: HashMap::new(),
            without_rows: HashSet::new(),
            told: HashSet::new(),
            has_told_full: false,
        }
    }

    /// Takes the rows of files that are at hand already.
    pub(super) fn know(&mut self, ahead: HashMap<FileVersion, Result<VerifiedRows, String>>) {
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
        for (_, module) in modules.iter() {
            let is_new = self.add(attachment, module.version, &module.path, |follower| follower.rows(module));
            if (is_new || attachment.has_rows(module.version)) && self.told.insert(module.version) {
                added.push(&module.path);
            }
        }
        for vdso in executable().filter(|mapping| mapping.is_vdso()) {
            let rows = |follower: &mut Self| {
                let elf = vdso.read(thread).map_err(|error| error.to_string())?;
                follower.cache.rows("", &*elf).map_err(|error| error.to_string())
            };
            self.add(attachment, FileVersion::VDSO, &vdso.path, rows);
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

    /// Adds the rows of a file that is likely to be mapped.
    pub(super) fn expect(&mut self, module: &Module, attachment: &mut Attachment) {
        if attachment.has_rows(module.version) {
            return;
        }
        let outcome = self
            .rows(module)
            .and_then(|rows| attachment.expect_rows(module.version, &rows).map_err(|full| full.to_string()));
        if let Err(error) = outcome {
            tracing::debug!(error, path = %module.path.display(), "not prepared for it");
        }
    }

    fn rows(&mut self, module: &Module) -> Result<VerifiedRows, String> {
        self.ahead.remove(&module.version).unwrap_or_else(|| rows_of(module, &self.cache))
    }

    /// Compiles and adds the rows of a file, once; whether it has done so now.
    fn add(
        &mut self,
        attachment: &mut Attachment,
        file: FileVersion,
        path: &Path,
        rows: impl FnOnce(&mut Self) -> Result<VerifiedRows, String>,
    ) -> bool {
        if attachment.has_rows(file) || self.without_rows.contains(&file) {
            return false;
        }
        let mut is_full = false;
        let outcome = rows(self).and_then(|rows| {
            attachment.add_rows(file, &rows).map_err(|full| {
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
            self.without_rows.insert(file);
            return false;
        }
        true
    }
}

/// The rows of a file, compiled unless the cache has them.
pub(super) fn rows_of(module: &Module, cache: &RowCache) -> Result<VerifiedRows, String> {
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
