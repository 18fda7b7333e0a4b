//! Stacks with little memory: summed up if all stacks of a file take too much memory.

use std::mem;

use super::{Counts, Estimate, HeapFile, Part, Scaling};

/// Memory of a stack and of each of its addresses in a profile while it is made, with what the allocator adds. An address can have
/// several functions, and stacks share those of their callers.
const STACK_BYTES: usize = 110;
const FRAME_BYTES: usize = 18;

/// Stacks that are summed up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SmallStacks {
    /// Number of stacks.
    pub stacks: u64,
    /// Each has at most so many bytes, in use or allocated. Each stack with more is in [`HeapFile::parts`].
    pub most_bytes: f64,
    /// Their memory in use.
    pub live: Estimate,
    /// Memory that they have allocated; where that is not recorded, the memory in use.
    pub allocated: Estimate,
}

/// Memory of a stack in a profile.
pub(super) const fn memory(addresses: usize) -> usize {
    STACK_BYTES + addresses * FRAME_BYTES
}

impl HeapFile {
    /// Sums up the smallest quarter of the stacks.
    pub(super) fn sum_up_quarter(&mut self) {
        let scaling = self.scaling;
        let mut sizes: Vec<_> = self
            .parts
            .iter()
            .flat_map(|part| part.counts.iter().map(|counts| size(counts, scaling)))
            .collect();
        let quarter = sizes.len().div_ceil(4);
        if quarter == 0 {
            return;
        }
        let most_bytes = *sizes.select_nth_unstable_by(quarter - 1, f64::total_cmp).1;
        let smaller = sizes.iter().filter(|size| **size < most_bytes).count();
        // Several stacks can have this size: some of them belong to the quarter, others do not.
        self.sum_up(most_bytes, quarter - smaller);
    }

    /// Sums up the stacks that are smaller than one that was summed up before them.
    pub(super) fn sum_up_late(&mut self) {
        if let Some(small) = self.small {
            self.sum_up(small.most_bytes, 0);
        }
    }

    /// Sums up stacks of fewer bytes, and some that have as many.
    fn sum_up(&mut self, most_bytes: f64, mut equal: usize) {
        let mut small = self.small.take().unwrap_or_default();
        small.most_bytes = small.most_bytes.max(most_bytes);
        self.memory = 0;
        let all = mem::take(&mut self.addresses);
        for part in &mut self.parts {
            let mut kept = Part::default();
            for (counts, addresses) in part.counts.iter().zip(part.addresses()) {
                let order = size(counts, self.scaling).total_cmp(&most_bytes);
                let is_one_of_equal = order.is_eq() && equal > 0;
                equal -= usize::from(is_one_of_equal);
                if is_one_of_equal || order.is_lt() {
                    small.add(counts, self.scaling);
                } else {
                    self.memory += memory(addresses.len());
                    kept.push(addresses.iter().map(|number| self.addresses.number(all.get(*number))), counts);
                }
            }
            kept.shrink_to_fit();
            drop(mem::replace(part, kept));
        }
        self.parts.retain(|part| !part.is_empty());
        self.small = Some(small);
    }
}

impl SmallStacks {
    fn add(&mut self, counts: Counts, scaling: Scaling) {
        let (live, allocated) = counts.estimates(scaling);
        self.stacks += 1;
        self.live += live;
        self.allocated += allocated.unwrap_or(live);
    }
}

fn size(counts: Counts, scaling: Scaling) -> f64 {
    let (live, allocated) = counts.estimates(scaling);
    allocated.map_or(live.bytes, |allocated| live.bytes.max(allocated.bytes))
}
