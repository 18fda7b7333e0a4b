//! Stacks without live blocks that have left the kernel side's table: their names, and what they have allocated.

mod paths;

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use jjleak_common::stack::StackStatus;

use crate::fast_map::FastMap;
use crate::snapshot::{Allocated, NamedStack};
use paths::{Path, Paths};

/// Maximum number of evicted stacks of a process, at some 100 bytes each. Beyond it, those that have allocated least are summed up.
const MAX_STACKS: usize = 1_000_000;

/// Inverse of the share of stacks that are summed up at a time: it takes a second for a million.
const SUMMED_UP: usize = 8;

/// Evicted stacks of one program image.
pub struct EvictedStacks {
    paths: Paths,
    stacks: Vec<Evicted>,
    /// Indices in `stacks` by hash.
    index: HashTable<u32>,
    hasher: RandomState,
    /// All stacks by call site, including those that were summed up.
    sites: FastMap<u64, Site>,
    summed_up: SummedUp,
    most: usize,
}

/// An evicted stack.
#[derive(Debug, Clone, Copy)]
pub struct Evicted {
    /// Hash of the stack.
    pub hash: u64,
    /// What it had allocated until it was evicted; in the kernel side's unit.
    pub allocated: Allocated,
    /// [Identity](jjleak_common::stack::thread_identity) of its thread; 0 if threads are not distinguished.
    pub thread: u64,
    path: Path,
    status: StackStatus,
}

/// Evicted stacks of a call site.
struct Site {
    allocated: Allocated,
    /// One of the stacks.
    path: Path,
    status: StackStatus,
}

/// Stacks beyond the maximum, which are not distinguished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SummedUp {
    /// Their number; a stack that comes back counts again.
    pub stacks: u64,
    /// What they have allocated.
    pub allocated: Allocated,
}

impl Default for EvictedStacks {
    fn default() -> Self {
        Self::with_most(MAX_STACKS)
    }
}

impl EvictedStacks {
    fn with_most(most: usize) -> Self {
        Self {
            paths: Paths::default(),
            stacks: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            sites: FastMap::default(),
            summed_up: SummedUp::default(),
            most,
        }
    }

    /// Adds what a stack has allocated since it was last evicted. `site` identifies its call site.
    pub fn add(&mut self, hash: u64, thread: u64, allocated: Allocated, named: &NamedStack, site: u64) {
        if self.stacks.len() >= self.most && self.get(hash).is_none() {
            self.sum_up();
        }
        let (path, status) = (self.paths.add(&named.frames), named.status);
        let of_site =
            self.sites.entry(site).or_insert_with(|| Site { allocated: Allocated::default(), path, status });
        of_site.allocated.add(allocated);
        let Self { stacks, index, hasher, .. } = self;
        let key = hasher.hash_one(hash);
        if let Some(known) = index.find(key, |at| stacks[*at as usize].hash == hash) {
            let known = &mut stacks[*known as usize];
            known.allocated.add(allocated);
            if known.path == Path::default() {
                (known.path, known.status) = (path, status);
            }
            return;
        }
        let at = u32::try_from(stacks.len()).unwrap_or(u32::MAX);
        stacks.push(Evicted { hash, allocated, thread, path, status });
        index.insert_unique(key, at, |at| hasher.hash_one(stacks[*at as usize].hash));
    }

    /// Number of stacks.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Returns true if nothing was evicted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// All stacks, except those that were summed up.
    pub fn iter(&self) -> impl Iterator<Item = &Evicted> {
        self.stacks.iter()
    }

    /// The stack with this hash.
    #[must_use]
    pub fn get(&self, hash: u64) -> Option<&Evicted> {
        let at = self.index.find(self.hasher.hash_one(hash), |at| self.stacks[*at as usize].hash == hash)?;
        self.stacks.get(*at as usize)
    }

    /// Frames of a stack.
    #[must_use]
    pub fn named(&self, stack: &Evicted) -> NamedStack {
        self.named_path(stack.path, stack.status)
    }

    /// Sums by call site, with one of the stacks of each. They include stacks that were summed up.
    pub fn by_site(&self) -> impl Iterator<Item = (u64, Allocated, NamedStack)> {
        let sites = self.sites.iter();
        sites.map(|(id, site)| (*id, site.allocated, self.named_path(site.path, site.status)))
    }

    /// The stacks that are not distinguished.
    #[must_use]
    pub const fn summed_up(&self) -> SummedUp {
        self.summed_up
    }

    fn named_path(&self, path: Path, status: StackStatus) -> NamedStack {
        NamedStack { status, frames: self.paths.frames(path).cloned().collect() }
    }

    /// Sums up the stacks that have allocated least.
    fn sum_up(&mut self) {
        let kept = self.stacks.len() - self.stacks.len().div_ceil(SUMMED_UP);
        self.stacks.sort_unstable_by_key(|stack| std::cmp::Reverse(stack.allocated.bytes));
        for stack in self.stacks.drain(kept..) {
            self.summed_up.stacks += 1;
            self.summed_up.allocated.add(stack.allocated);
        }
        let Self { stacks, index, hasher, .. } = self;
        index.clear();
        for (at, stack) in (0..).zip(&*stacks) {
            let hash = |at: &u32| hasher.hash_one(stacks[*at as usize].hash);
            index.insert_unique(hasher.hash_one(stack.hash), at, hash);
        }
        let of_stacks = self.stacks.iter_mut().map(|stack| &mut stack.path);
        let of_sites = self.sites.values_mut().map(|site| &mut site.path);
        self.paths = self.paths.rebuilt(of_stacks.chain(of_sites));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Frame, SharedFrame};

    fn allocated(objects: u64, bytes: u64) -> Allocated {
        Allocated { objects, bytes }
    }

    fn named(symbols: &[&str]) -> NamedStack {
        let frame = |symbol: &&str| Frame { symbol: (*symbol).to_owned(), ..Frame::default() }.into();
        NamedStack { status: StackStatus::Complete, frames: symbols.iter().map(frame).collect() }
    }

    fn symbols(frames: &[SharedFrame]) -> Vec<&str> {
        frames.iter().map(|frame| &*frame.symbol).collect()
    }

    #[test]
    fn a_stack_that_is_evicted_again_is_one_stack_with_all_that_it_has_allocated() {
        let mut evicted = EvictedStacks::default();
        evicted.add(7, 0, allocated(2, 20), &named(&["malloc", "a"]), 1);
        evicted.add(8, 5, allocated(1, 1), &named(&["malloc", "b"]), 2);
        evicted.add(7, 0, allocated(3, 30), &named(&["malloc", "a"]), 1);
        assert_eq!(evicted.len(), 2);
        let stack = evicted.get(7).unwrap();
        assert_eq!(stack.allocated, allocated(5, 50));
        assert_eq!(symbols(&evicted.named(stack).frames), ["malloc", "a"]);
        assert_eq!(evicted.get(8).unwrap().thread, 5);
        assert!(evicted.get(9).is_none());
    }

    #[test]
    fn frames_that_were_lost_are_there_once_the_stack_comes_with_them() {
        let mut evicted = EvictedStacks::default();
        evicted.add(7, 0, allocated(1, 1), &named(&[]), 1);
        evicted.add(7, 0, allocated(1, 1), &named(&["malloc", "a"]), 2);
        assert_eq!(symbols(&evicted.named(evicted.get(7).unwrap()).frames), ["malloc", "a"]);
    }

    #[test]
    fn beyond_the_maximum_those_that_allocated_least_are_summed_up_and_totals_stay_exact() {
        let mut evicted = EvictedStacks::with_most(64);
        for hash in 0..1_000u64 {
            evicted.add(hash, 0, allocated(1, hash), &named(&["malloc", &hash.to_string()]), hash % 3);
        }
        assert!(evicted.len() <= 64);
        let summed_up = evicted.summed_up();
        assert_eq!(summed_up.stacks + evicted.len() as u64, 1_000);
        let mut sum = summed_up.allocated;
        evicted.iter().for_each(|stack| sum.add(stack.allocated));
        let mut of_sites = Allocated::default();
        evicted.by_site().for_each(|(_, allocated, _)| of_sites.add(allocated));
        assert_eq!((sum, of_sites), (allocated(1_000, 499_500), allocated(1_000, 499_500)));
        assert_eq!(evicted.by_site().count(), 3);
        for stack in evicted.iter() {
            assert_eq!(symbols(&evicted.named(stack).frames), ["malloc", &stack.hash.to_string()]);
            assert_eq!(evicted.get(stack.hash).unwrap().hash, stack.hash);
        }
        assert!(evicted.iter().all(|stack| stack.hash >= 900), "the largest are kept");
    }
}
