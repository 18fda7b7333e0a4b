//! Adds resident pages to snapshots.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::Collector;
use crate::snapshot::sums::Counted;
use crate::snapshot::{Snapshot, StackUse};

/// Pages of one use that a stack has made resident.
#[derive(Debug)]
pub(crate) struct StackPages {
    /// Row of the stack.
    pub(crate) row: u32,
    /// Name of the use, which is a part of the identity.
    pub(crate) of: String,
    /// Those that are resident.
    pub(crate) resident: Counted,
    /// Those that are not any more.
    pub(crate) gone: u64,
}

/// Size of a page on x86-64.
const PAGE: u64 = 4096;

impl Collector {
    /// Adds pages to a snapshot that has only stacks of pages. Returns the identity of each stack with its use, in the order of
    /// `pages`.
    pub(crate) fn add_pages(&self, snapshot: &mut Snapshot, pages: Vec<StackPages>) -> Vec<(u64, String)> {
        let mut identities = Vec::with_capacity(pages.len());
        for StackPages { row, of, resident, gone } in pages {
            let mut hasher = DefaultHasher::new();
            of.hash(&mut hasher);
            let hash = self.hash(row) ^ hasher.finish();
            let objects = resident.live.objects + gone;
            let used = StackUse {
                hash,
                live: resident.live,
                cohorts: resident.cohorts,
                allocated_objects: objects,
                allocated_bytes: objects * PAGE,
                ..StackUse::default()
            };
            snapshot.stacks.push((row, used));
            identities.push((hash, of));
        }
        identities
    }
}
