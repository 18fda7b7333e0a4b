//! The files that processes map, and the allocators in them.

use std::collections::HashMap;
use std::sync::Arc;

use jjleak_common::process::ImageId;

use super::allocators::Allocators;
use super::earlier_runs::EarlierRuns;
use super::file_log::FileLog;
use super::search_ahead::SearchAhead;
use crate::attach::MappedCode;
use crate::cache_folder::CacheFolder;
use crate::processes::ModuleFiles;
use crate::session::AllocatorChoice;

/// Everything about mapped files but their code.
pub(super) struct Files {
    /// Open files.
    pub(super) open: ModuleFiles,
    pub(super) allocators: Allocators,
    /// Search of the files of processes to be attached to.
    pub(super) ahead: SearchAhead,
    /// Files that programs mapped in earlier runs.
    pub(super) earlier: EarlierRuns,
    /// The kernel's records of mapped files.
    pub(super) log: FileLog,
    /// Mappings that the kernel side has reported and no scan has found yet.
    pub(super) reported: HashMap<ImageId, Vec<MappedCode>>,
}

impl Files {
    /// Begins to record mapped files.
    pub(super) fn new(choice: Arc<AllocatorChoice>, ahead: SearchAhead, cache: Option<CacheFolder>) -> Self {
        Self {
            open: ModuleFiles::default(),
            allocators: Allocators::new(choice),
            ahead,
            earlier: EarlierRuns::new(cache),
            log: FileLog::begin(),
            reported: HashMap::new(),
        }
    }
}
