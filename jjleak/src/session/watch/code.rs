//! Keeps the kernel side's unwind tables up to date with the processes' mappings.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jjleak_common::unwind::MAX_MAPPINGS;

use super::Scan;
use super::process::Watched;
use super::recent_rows::RecentRows;
use crate::attach::{self, Attachment, CodeMapping, RowsRefused};
use crate::cache_folder::CacheFolder;
use crate::error_chain::chain;
use crate::file_content::Content;
use crate::processes::{FileVersion, Mapping, Module, Pid};
use crate::unwind::{RowCache, VerifiedRows};

/// Follows the code of the processes.
pub(super) struct CodeFollower {
    cache: RowCache,
    /// Rows found before they were needed.
    ahead: HashMap<FileVersion, Result<VerifiedRows, String>>,
    /// Files without rows, which are not tried again.
    without_rows: HashSet<FileVersion>,
    /// Files whose rows were refused: tried once more when there is room, and again and again after an error.
    unfit: HashMap<FileVersion, Unfit>,
    /// Rows of files on unfinished stacks; `None` for files without rows.
    recent: RecentRows<Option<VerifiedRows>>,
    /// Mapped files with rows, each logged once.
    logged: HashSet<FileVersion>,
    /// True once the user knows that the row table is full.
    has_reported_full: bool,
}

/// Time after an error until the rows are tried again: the kernel may have memory then.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A file whose rows were refused.
struct Unfit {
    path: PathBuf,
    refused: RowsRefused,
    at: Instant,
}

impl Unfit {
    /// Returns true if it may be tried again; `has_room` returns true if rows fit now.
    fn can_be_tried(&self, now: Instant, has_room: impl Fn(&RowsRefused) -> bool) -> bool {
        match self.refused {
            RowsRefused::Write(_) => now.duration_since(self.at) >= RETRY_AFTER,
            RowsRefused::Full { .. } | RowsRefused::TooLong { .. } => has_room(&self.refused),
        }
    }
}

impl CodeFollower {
    pub(super) fn new(files: Option<CacheFolder>) -> Self {
        Self {
            cache: RowCache::new(files),
            ahead: HashMap::new(),
            without_rows: HashSet::new(),
            unfit: HashMap::new(),
            recent: RecentRows::default(),
            logged: HashSet::new(),
            has_reported_full: false,
        }
    }

    /// Adds rows found ahead.
    pub(super) fn know(&mut self, ahead: HashMap<FileVersion, Result<VerifiedRows, String>>) {
        self.ahead = ahead;
    }

    /// Adds the rows of new modules, and sends all code mappings of a process to the unwinder.
    pub(super) fn follow(
        &mut self,
        watched: &mut Watched,
        thread: Pid,
        scan: &Scan,
        attachment: &mut Attachment,
    ) -> Result<(), attach::Error> {
        let executable = scan.mappings.iter().filter(|mapping| mapping.executable);
        // Only the JVM knows how to unwind through the code that it generates. Until it describes that, a walk ends
        // there and sends a hint.
        let is_unknown = |mapping: &Mapping| watched.jvm.is_awaited() && mapping.is_generated();
        let code: Vec<_> = executable
            .filter(|mapping| !mapping.is_of_uprobes() && !is_unknown(mapping))
            .map(|mapping| CodeMapping::of(mapping, &watched.modules))
            .collect();
        let mapped: HashSet<_> = code.iter().filter_map(|code| Some(code.module?.0)).collect();
        attachment.announce_code(watched.slot(), mapped.iter().copied());
        let mut added = self.add_all(watched, thread, scan, &mapped, attachment);
        let mut excess = attachment.set_code(watched.image, &code, scan.seen)?;
        // The rows of files that the process has unmapped can make room now.
        let mut unfit = mapped.iter().filter_map(|file| self.unfit.get(file));
        let now = Instant::now();
        if unfit.any(|unfit| unfit.can_be_tried(now, |refused| attachment.has_room(refused))) {
            added.extend(self.add_all(watched, thread, scan, &mapped, attachment));
            excess = attachment.set_code(watched.image, &code, scan.seen)?;
        }
        self.report_unfit(watched, mapped);
        if excess > 0 && !mem::replace(&mut watched.warned.of_code_mappings, true) {
            tracing::warn!(
                "process {} has more than {MAX_MAPPINGS} mappings of code: stacks end at the others (no_mapping)",
                watched.pid()
            );
        }
        for path in added {
            tracing::info!("stacks unwind through {}", path.display());
        }
        Ok(())
    }

    /// Counts files without room for their rows, and reports them.
    fn report_unfit(&mut self, watched: &mut Watched, mapped: HashSet<FileVersion>) {
        for file in mapped {
            let Some(Unfit { path, refused, .. }) = self.unfit.get(&file) else { continue };
            if !watched.unfit.add(watched.image, file) {
                continue;
            }
            let (path, error) = (path.display(), chain(refused));
            if mem::replace(&mut self.has_reported_full, true) {
                tracing::info!("{path}: its code is unwound by frame pointers: {error}");
            } else {
                tracing::warn!(
                    "{path}: its code is unwound by frame pointers, and that of later files may be too (-v lists them): {error}"
                );
            }
        }
    }

    /// Adds the rows of a process's modules. Returns the paths of files that have rows for the first time.
    fn add_all(
        &mut self,
        watched: &Watched,
        thread: Pid,
        scan: &Scan,
        mapped: &HashSet<FileVersion>,
        attachment: &mut Attachment,
    ) -> Vec<PathBuf> {
        let mut added = Vec::new();
        for (_, module) in watched.modules.iter() {
            // A file that the process does not map may be one that the kernel side has reported; otherwise it was mapped before.
            if !mapped.contains(&module.version) && self.logged.contains(&module.version) {
                continue;
            }
            let is_new = self.add(attachment, module.version, &module.path, |follower| follower.rows(module));
            if (is_new || attachment.has_rows(module.version)) && self.logged.insert(module.version) {
                added.push(module.path.clone());
            }
        }
        for vdso in scan.mappings.iter().filter(|mapping| mapping.executable && mapping.is_vdso()) {
            let rows = |follower: &mut Self| {
                let elf = vdso.read(thread).map_err(|error| error.to_string())?;
                follower.cache.rows("", &*elf).map_err(|error| error.to_string())
            };
            self.add(attachment, FileVersion::VDSO, &vdso.path, rows);
        }
        added
    }

    /// Adds the rows of a file that is likely to be mapped.
    pub(super) fn prepare(&mut self, module: &Module, attachment: &mut Attachment) {
        if attachment.has_rows(module.version) {
            return;
        }
        let Some(rows) = self.rows_in_advance(module) else { return };
        if let Err(error) = attachment.expect_rows(module.version, &rows) {
            tracing::debug!(%error, path = %module.path.display(), "cannot prepare unwind rows");
        }
    }

    /// Rows of a file that is not mapped yet. An error is kept until the file is mapped: a file that costs too much would
    /// delay each program that may use it.
    fn rows_in_advance(&mut self, module: &Module) -> Option<VerifiedRows> {
        match self.rows(module) {
            Ok(rows) => Some(rows),
            Err(error) => {
                tracing::debug!(error, path = %module.path.display(), "cannot make unwind rows in advance");
                self.ahead.insert(module.version, Err(error));
                None
            }
        }
    }

    /// Rows of a file on an unfinished stack; `None` if it has none.
    pub(super) fn rows_again(&mut self, module: &Module) -> Option<&VerifiedRows> {
        if self.without_rows.contains(&module.version) {
            return None;
        }
        let read = || {
            let rows = rows_of(module, &self.cache).ok();
            let count = rows.as_ref().map_or(0, |rows| rows.rows().rows().len());
            (rows, count)
        };
        self.recent.get(module.version, read).as_ref()
    }

    /// Frees the memory of [`Self::rows_again`].
    pub(super) fn forget_recent(&mut self) {
        self.recent.clear();
    }

    fn rows(&mut self, module: &Module) -> Result<VerifiedRows, String> {
        self.ahead.remove(&module.version).unwrap_or_else(|| rows_of(module, &self.cache))
    }

    /// Compiles and adds the rows of a file, once. Returns true if this call added them.
    fn add(
        &mut self,
        attachment: &mut Attachment,
        file: FileVersion,
        path: &Path,
        rows: impl FnOnce(&mut Self) -> Result<VerifiedRows, String>,
    ) -> bool {
        let now = Instant::now();
        let is_refused = |unfit: &Unfit| !unfit.can_be_tried(now, |refused| attachment.has_room(refused));
        if attachment.has_rows(file)
            || self.without_rows.contains(&file)
            || self.unfit.get(&file).is_some_and(is_refused)
        {
            return false;
        }
        let rows = match rows(self) {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!("{}: its code is unwound by frame pointers: {error}", path.display());
                self.without_rows.insert(file);
                return false;
            }
        };
        let Err(refused) = attachment.add_rows(file, &rows) else {
            self.unfit.remove(&file);
            return true;
        };
        let is_error = matches!(refused, RowsRefused::Write(_));
        let unfit = Unfit { path: path.to_owned(), refused, at: now };
        if self.unfit.insert(file, unfit).is_some() && !is_error {
            self.without_rows.insert(file);
        }
        false
    }
}

/// Rows of a file, from the cache or compiled.
pub(super) fn rows_of(module: &Module, cache: &RowCache) -> Result<VerifiedRows, String> {
    let content = module.content().map_err(|error| error.to_string())?;
    cache.rows(&module.key(), Content::from(&content)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{ModuleFiles, ModuleTable};

    #[test]
    fn a_file_is_tried_again_when_there_is_room_or_some_time_after_an_error() {
        let (full, at) = (RowsRefused::Full { rows: 5, words: 6, groups: 1 }, Instant::now());
        let full = Unfit { path: PathBuf::new(), refused: full, at };
        assert!(full.can_be_tried(at, |_| true) && !full.can_be_tried(at + RETRY_AFTER, |_| false));
        let error = RowsRefused::Write(attach::Error::ObjectLacks { what: "map", name: "ROWS" });
        let error = Unfit { path: PathBuf::new(), refused: error, at };
        assert!(!error.can_be_tried(at, |_| true) && error.can_be_tried(at + RETRY_AFTER, |_| true));
    }

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

    #[test]
    fn an_error_in_advance_is_kept_until_the_file_is_mapped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "no program").unwrap();
        let pid = Pid::new(std::process::id()).unwrap();
        let (_, module) = ModuleFiles::default().open_program(&[pid], file.path(), None).unwrap();
        let mut follower = CodeFollower::new(None);
        assert!(follower.rows_in_advance(&module).is_none());
        let known = Err("known".to_owned());
        follower.know([(module.version, known.clone())].into());
        assert!(follower.rows_in_advance(&module).is_none());
        assert_eq!(follower.rows(&module), known, "not tried again before");
        assert!(follower.rows_in_advance(&module).is_none() && !follower.ahead.is_empty());
    }
}
