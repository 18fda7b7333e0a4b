//! Adds mappings to snapshots.

use std::collections::BTreeMap;
use std::mem;

use jjleak_common::counter::Counter;

use super::Collector;
use super::snapshots::merge_rows;
use crate::mappings::{Allocated, TrackedMappings};
use crate::snapshot::sums::{self, Counted};
use crate::snapshot::{RawStack, Snapshot, StackUse};

impl Collector {
    /// Adds the mappings of a snapshot's image to it, except those made by allocator code, whose blocks are
    /// counted instead.
    pub fn add_mappings(
        &self,
        snapshot: &mut Snapshot,
        table: &TrackedMappings,
        is_in_allocator: impl Fn(&RawStack) -> bool,
    ) {
        // Stacks whose addresses were taken are in a profile, and therefore in no allocator.
        let is_in_allocator = |row| self.stack(row).is_some_and(&is_in_allocator);
        add(snapshot, table, is_in_allocator, |row| self.hash(row));
    }
}

fn add(
    snapshot: &mut Snapshot,
    table: &TrackedMappings,
    is_in_allocator: impl Fn(u32) -> bool,
    hash: impl Fn(u32) -> u64,
) {
    let mut live: BTreeMap<u32, Counted> = BTreeMap::new();
    for mapped in table.mapped().filter(|mapped| mapped.time_ns <= snapshot.youngest_ns) {
        let sums = live.entry(mapped.stack).or_default();
        sums.add(mapped.bytes, mapped.time_ns, &snapshot.instants_ns);
    }
    let mut tally = table.tally();
    let mut stacks: BTreeMap<_, _> = mem::take(&mut snapshot.stacks).into_iter().collect();
    for (row, Allocated { objects, bytes }) in table.allocated() {
        if is_in_allocator(row) {
            tally.by_allocators += objects;
            continue;
        }
        let new = || StackUse { hash: hash(row), ..StackUse::default() };
        let used = stacks.entry(row).or_insert_with(new);
        used.allocated_objects += objects;
        used.allocated_bytes += bytes;
        if let Some(mapped) = live.remove(&row) {
            used.live.merge(&mapped.live);
            sums::merge_cohorts(&mut used.cohorts, &mapped.cohorts);
        }
    }
    snapshot.stacks = merge_rows(stacks.into_iter().collect(), snapshot.blocks_per_stack);
    for (counter, count) in [
        (Counter::Filtered, tally.filtered),
        (Counter::MappingOfAllocator, tally.by_allocators),
        (Counter::MappingTableFull, tally.lost),
    ] {
        *snapshot.counters.entry(counter).or_default() += count;
    }
}
