//! Sources of complete and readable stacks: unwind rows, generated code, and names.

use std::time::Instant;

use super::code::CodeFollower;
use super::eviction::EvictedByImage;
use super::jvm_start::JvmLibraries;
use super::threads::ThreadRoots;
use crate::cache_folder::CacheFolder;
use crate::session::Listing;
use crate::symbolize::StackNames;

/// State of all processes' code and names.
pub(super) struct Stacks {
    pub(super) code: CodeFollower,
    pub(super) jvm_libraries: JvmLibraries,
    /// End of the rest from checks of starting JVMs.
    pub(super) rested_from_starting: Option<Instant>,
    pub(super) names: StackNames,
    pub(super) threads: ThreadRoots,
    /// Stacks that have left the kernel side's table.
    pub(super) evicted: EvictedByImage,
    /// Profiles that list each of them.
    pub(super) listing: Listing,
    /// True once the run ends.
    pub(super) is_last: bool,
    /// True if JVMs are asked for perf maps.
    pub(super) asks_for_perf_maps: bool,
}

impl Stacks {
    pub(super) fn new(cache: Option<CacheFolder>, listing: Listing) -> Self {
        Self {
            code: CodeFollower::new(cache),
            jvm_libraries: JvmLibraries::default(),
            rested_from_starting: None,
            names: StackNames::default(),
            threads: ThreadRoots::default(),
            evicted: EvictedByImage::default(),
            listing,
            is_last: false,
            asks_for_perf_maps: false,
        }
    }
}
