//! Keeps the kernel side's unwind tables in step with what the processes map.

use std::collections::HashSet;
use std::env;
use std::path::{Path, PathBuf};

use jjleak_common::process::ImageId;
use nix::unistd::Uid;

use super::Look;
use crate::attach::{self, Attachment, CodeMapping};
use crate::processes::{FileVersion, ModuleTable, Pid};
use crate::unwind::{ModuleRows, RowCache};

/// Follows the processes' code.
pub(super) struct CodeFollower {
    cache: RowCache,
    /// Files without rows, so that they are tried once.
    without_rows: HashSet<FileVersion>,
}

impl CodeFollower {
    pub(super) fn new() -> Self {
        Self { cache: RowCache::new(cache_folder()), without_rows: HashSet::new() }
    }

    /// Adds the rows of modules that are new, and tells the unwinder where all code of `image` is.
    pub(super) fn follow(
        &mut self,
        image: ImageId,
        thread: Pid,
        look: &Look,
        modules: &ModuleTable,
        attachment: &mut Attachment,
    ) -> Result<(), attach::Error> {
        let executable = || look.mappings.iter().filter(|mapping| mapping.executable);
        let mut added = Vec::new();
        for (_, module) in modules.iter() {
            let rows = |cache: &RowCache| {
                let parts = module.parts().map_err(|error| error.to_string())?;
                cache.rows(module.build_id(), &parts).map_err(|error| error.to_string())
            };
            if self.add(attachment, module.version, &module.path, rows) {
                added.push(&module.path);
            }
        }
        for vdso in executable().filter(|mapping| mapping.is_vdso()) {
            let rows = |cache: &RowCache| {
                let elf = vdso.read(thread).map_err(|error| error.to_string())?;
                cache.rows("", &*elf).map_err(|error| error.to_string())
            };
            self.add(attachment, FileVersion::VDSO, &vdso.path, rows);
        }
        let code: Vec<_> = executable()
            .filter(|mapping| !mapping.is_of_uprobes())
            .map(|mapping| CodeMapping::of(mapping, modules))
            .collect();
        let left_out = attachment.set_code(image, &code, look.seen)?;
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

    /// Compiles and adds the rows of a file, once; whether it has done so now.
    fn add(
        &mut self,
        attachment: &mut Attachment,
        file: FileVersion,
        path: &Path,
        rows: impl FnOnce(&RowCache) -> Result<ModuleRows, String>,
    ) -> bool {
        if attachment.has_rows(file) || self.without_rows.contains(&file) {
            return false;
        }
        let outcome = rows(&self.cache)
            .and_then(|rows| attachment.add_rows(file, &rows).map_err(|full| full.to_string()));
        if let Err(error) = outcome {
            tracing::warn!("{}: its code is unwound by frame pointers: {error}", path.display());
            self.without_rows.insert(file);
            return false;
        }
        true
    }
}

/// Where compiled rows are kept: with the system's caches for root, with the user's own otherwise (XDG Base Directory
/// Specification).
fn cache_folder() -> PathBuf {
    if Uid::effective().is_root() {
        return PathBuf::from("/var/cache/jjleak");
    }
    let own = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    own.or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .unwrap_or_else(env::temp_dir)
        .join("jjleak")
}
