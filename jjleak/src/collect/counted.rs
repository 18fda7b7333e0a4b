//! Adds stacks to snapshots that the user side has counted: of pages, and of Java objects.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::Collector;
use crate::snapshot::{Snapshot, StackUse};

/// Memory of one kind that a stack has made.
#[derive(Debug)]
pub(crate) struct CountedStack {
    /// Row of the stack; of the lost ones without a stack.
    pub(crate) row: u32,
    /// Name of the memory, which is a part of the identity.
    pub(crate) of: String,
    /// No stack of the program has made it.
    pub(crate) is_without_stack: bool,
    /// Figures, without the identity.
    pub(crate) used: StackUse,
}

impl Collector {
    /// Adds stacks to a snapshot that has no others. Returns the identity of each.
    pub(crate) fn add_counted(&self, snapshot: &mut Snapshot, stacks: &[CountedStack]) -> Vec<u64> {
        let add = |stack: &CountedStack| {
            let mut hasher = DefaultHasher::new();
            (&stack.of, stack.is_without_stack).hash(&mut hasher);
            let hash = self.hash(stack.row) ^ hasher.finish();
            snapshot.stacks.push((stack.row, StackUse { hash, ..stack.used.clone() }));
            hash
        };
        stacks.iter().map(add).collect()
    }

    /// Returns true if nothing is left out by sampling.
    pub(crate) fn counts_all(&self) -> bool {
        !self.sampling.is_estimate()
    }
}
