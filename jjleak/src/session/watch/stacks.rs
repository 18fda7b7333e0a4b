//! Sources of complete and readable stacks: unwind rows, generated code, and names.

use std::path::Path;
use std::time::Instant;

use super::Watch;
use super::code::CodeFollower;
use super::eviction::EvictedByImage;
use super::jvm_start::JvmLibraries;
use super::threads::ThreadRoots;
use crate::cache_folder::CacheFolder;
use crate::session::Listing;
use crate::symbolize::child::OWN_PROGRAM;
use crate::symbolize::{StackNames, Symbolizer};

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

impl Watch {
    /// Reads the symbols of new stacks for a short while, and lets the child go on reading.
    pub(in crate::session) fn read_symbols_ahead(&mut self) {
        let Self { processes, stacks, accounting, .. } = self;
        for watched in processes.values_mut() {
            let rows = std::mem::take(&mut watched.unnamed);
            let mut names = stacks.names.of_process(&watched.modules);
            names.expect(rows.into_iter(), |row| accounting.collector.stack(row));
        }
        stacks.names.read_ahead();
    }
}

/// Source of symbols of all processes.
pub(super) fn symbolizer() -> Symbolizer {
    Symbolizer::in_child(Path::new(OWN_PROGRAM))
}

impl Stacks {
    pub(super) fn new(cache: Option<CacheFolder>, listing: Listing) -> Self {
        Self {
            code: CodeFollower::new(cache),
            jvm_libraries: JvmLibraries::default(),
            rested_from_starting: None,
            names: StackNames::new(symbolizer()),
            threads: ThreadRoots::default(),
            evicted: EvictedByImage::default(),
            listing,
            is_last: false,
            asks_for_perf_maps: false,
        }
    }
}
