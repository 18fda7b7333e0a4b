//! Analyzes the files that processes map before they are attached to. Runs while the BPF programs load, which takes
//! as long and does not depend on the result.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use tracing::subscriber::{NoSubscriber, with_default};

use super::allocators::find_in;
use super::code::rows_of;
use crate::allocators::ModuleAllocators;
use crate::cache_folder::CacheFolder;
use crate::file_content::StopReading;
use crate::jvm::{self, Symbols};
use crate::processes::{FileVersion, Mapping, Module, ModuleFiles, ModuleTable, Pid};
use crate::session::AllocatorChoice;
use crate::unwind::{RowCache, VerifiedRows};

/// Maximum number of rows kept until they are needed, 8 bytes each: 32 MiB. The files of a process have some hundred thousand
/// rows, those of a large JVM or browser some millions.
const MAX_ROWS: usize = 4 << 20;

/// Result for each file, or the reason why there is none.
#[derive(Default)]
pub(super) struct FoundAhead {
    pub(super) allocators: HashMap<FileVersion, Result<ModuleAllocators, String>>,
    pub(super) rows: HashMap<FileVersion, Result<VerifiedRows, String>>,
    pub(super) symbols: HashMap<FileVersion, Symbols>,
    /// Total number of rows.
    held: usize,
}

impl FoundAhead {
    const fn is_full(&self) -> bool {
        self.held >= MAX_ROWS
    }

    fn search_file(&mut self, module: &Module, choice: &AllocatorChoice, cache: &RowCache) {
        if self.rows.contains_key(&module.version) {
            return;
        }
        let rows = rows_of(module, cache);
        self.held += rows.as_ref().map_or(0, |rows| rows.rows().rows().len());
        self.rows.insert(module.version, rows);
        // The next reader reports the error.
        if module.bounded().is_err() {
            return;
        }
        self.allocators.insert(module.version, find_in(module, choice));
        if jvm::is_library(module)
            && let Ok(content) = module.content()
            && let Ok(symbols) = Symbols::of(&content)
        {
            self.symbols.insert(module.version, symbols);
        }
    }
}

/// The search, in its own thread. Files that it does not reach are analyzed when they are needed, and so are all
/// files if no thread can be started. Dropping it ends the search after the current file; no incomplete cache file
/// stays behind.
#[derive(Default)]
pub(super) struct SearchAhead {
    thread: Option<JoinHandle<FoundAhead>>,
    is_over: Arc<AtomicBool>,
}

impl SearchAhead {
    /// Starts analyzing the files that these processes map.
    pub(super) fn begin(pids: &[Pid], choice: &Arc<AllocatorChoice>, kept: Option<&CacheFolder>) -> Self {
        if pids.is_empty() {
            return Self::default();
        }
        let (pids, choice, cache) = (pids.to_vec(), Arc::clone(choice), RowCache::new(kept.cloned()));
        let is_over = Arc::new(AtomicBool::new(false));
        let is_wanted = {
            let is_over = Arc::clone(&is_over);
            move || !is_over.load(Ordering::Relaxed)
        };
        let stop = StopReading::of_thread();
        let search = move || {
            stop.apply_to_thread();
            search_files(&pids, &choice, &cache, is_wanted)
        };
        Self { thread: thread::Builder::new().name("search ahead".to_owned()).spawn(search).ok(), is_over }
    }

    /// Waits for the result. Empty from the second call on.
    pub(super) fn finish(&mut self) -> FoundAhead {
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for SearchAhead {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.finish();
    }
}

fn search_files(
    pids: &[Pid],
    choice: &AllocatorChoice,
    cache: &RowCache,
    is_wanted: impl Fn() -> bool,
) -> FoundAhead {
    let (mut found, mut files) = (FoundAhead::default(), ModuleFiles::default());
    for pid in pids {
        let mut modules = ModuleTable::default();
        let mappings = Mapping::all(*pid).unwrap_or_default();
        // The next refresh reports files that cannot be opened.
        with_default(NoSubscriber::default(), || modules.refresh(&mut files, *pid, &mappings));
        for (_, module) in modules.iter() {
            if !is_wanted() || found.is_full() {
                return found;
            }
            found.search_file(module, choice, cache);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_search_that_nobody_waits_for_ends_and_leaves_no_half_files() {
        let pid = Pid::new(std::process::id()).unwrap();
        let folder = TempDir::new().unwrap();
        let kept = CacheFolder::new(folder.path().to_owned());
        let search = SearchAhead::begin(&[pid; 1000], &Arc::default(), Some(&kept));
        drop(search);
        let half = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(".kept-");
        assert!(!folder.path().read_dir().unwrap().any(|file| half(&file.unwrap().file_name())));
        let nothing = search_files(&[pid], &AllocatorChoice::default(), &RowCache::new(kept), || false);
        assert!(nothing.rows.is_empty() && nothing.allocators.is_empty());
    }

    #[test]
    fn what_is_found_ahead_is_what_is_found_when_it_is_needed() {
        let pid = Pid::new(std::process::id()).unwrap();
        let (folder, choice) = (TempDir::new().unwrap(), Arc::new(AllocatorChoice::default()));
        let kept = CacheFolder::new(folder.path().to_owned());
        let found = SearchAhead::begin(&[pid, pid], &choice, Some(&kept)).finish();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        let cache = RowCache::new(kept);
        for (_, module) in modules.iter() {
            assert_eq!(found.allocators[&module.version], find_in(module, &choice));
            assert_eq!(found.rows[&module.version], rows_of(module, &cache));
        }
        assert!(found.allocators.values().flatten().any(|found| !found.profiled.is_empty()));
    }
}
