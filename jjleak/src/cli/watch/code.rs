//! Keeps the kernel side's unwind tables in step with what the processes map.

use std::collections::HashSet;
use std::env;
use std::mem;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use super::Look;
use super::process::Watched;
use crate::attach::{self, Attachment, CodeMapping};
use crate::kept::KeptFiles;
use crate::processes::{FileVersion, Mapping, Module, Pid};
use crate::unwind::{ModuleRows, RowCache};

/// Follows the processes' code.
pub(super) struct CodeFollower {
    cache: RowCache,
    /// Files without rows, so that they are tried once.
    without_rows: HashSet<FileVersion>,
    /// Files that are mapped and have rows, of which the log knows.
    told: HashSet<FileVersion>,
    /// Whether the user knows that there is no room for rows any more.
    has_told_full: bool,
}

impl CodeFollower {
    pub(super) fn new(files: KeptFiles) -> Self {
        Self {
            cache: RowCache::new(files),
            without_rows: HashSet::new(),
            told: HashSet::new(),
            has_told_full: false,
        }
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
            let rows = |follower: &Self| {
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
    pub(super) fn expect(&self, module: &Module, attachment: &mut Attachment) {
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

    fn rows(&self, module: &Module) -> Result<ModuleRows, String> {
        let parts = module.parts().map_err(|error| error.to_string())?;
        self.cache.rows(module.build_id(), &parts).map_err(|error| error.to_string())
    }

    /// Compiles and adds the rows of a file, once; whether it has done so now.
    fn add(
        &mut self,
        attachment: &mut Attachment,
        file: FileVersion,
        path: &Path,
        rows: impl FnOnce(&Self) -> Result<ModuleRows, String>,
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

/// Where what saves work is kept: with the system's caches for root, with the user's own otherwise (XDG Base Directory
/// Specification).
pub(super) fn cache_folder() -> PathBuf {
    if Uid::effective().is_root() {
        return PathBuf::from("/var/cache/jjleak");
    }
    let own = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    own.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("jjleak")
}
