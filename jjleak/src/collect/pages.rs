//! Adds resident pages to snapshots.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::Collector;
use crate::snapshot::sums::Counted;
use crate::snapshot::{Snapshot, StackUse};

/// Pages of one use that a stack has made resident.
#[derive(Debug)]
pub(crate) struct StackPages {
    /// Row of the stack; of the lost ones if the kernel filled the pages by itself.
    pub(crate) row: u32,
    /// No fault made them resident: the kernel filled them by itself.
    pub(crate) by_kernel: bool,
    /// Name of the use, which is a part of the identity.
    pub(crate) of: String,
    /// Resident pages.
    pub(crate) resident: Counted,
    /// Number of pages that are not resident any more.
    pub(crate) gone: u64,
}

/// Size of a page on x86-64.
const PAGE: u64 = 4096;

impl Collector {
    /// Adds pages to a snapshot that has only stacks of pages. Returns the identity of each.
    pub(crate) fn add_pages(&self, snapshot: &mut Snapshot, pages: &[StackPages]) -> Vec<u64> {
        let add = |pages: &StackPages| {
            let mut hasher = DefaultHasher::new();
            (&pages.of, pages.by_kernel).hash(&mut hasher);
            let hash = self.hash(pages.row) ^ hasher.finish();
            let objects = pages.resident.live.objects + pages.gone;
            let used = StackUse {
                hash,
                live: pages.resident.live,
                cohorts: pages.resident.cohorts.clone(),
                allocated_objects: objects,
                allocated_bytes: objects * PAGE,
                ..StackUse::default()
            };
            snapshot.stacks.push((pages.row, used));
            hash
        };
        pages.iter().map(add).collect()
    }
}
