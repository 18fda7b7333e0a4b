//! Stacks without live blocks that have left the kernel side's table: their names, and what they have allocated.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use jjleak_common::stack::StackStatus;

use crate::fast_map::FastMap;
use crate::snapshot::{Allocated, Frame, NamedStack, Path, PathsBuilder, SharedFrame};

/// Name of the call site that stands for all beyond the maximum.
const OTHER_SITES: &str = "[other call sites]";

/// Inverse of the share of stacks that are summed up at a time: it takes a quarter of a second.
const SUMMED_UP: usize = 8;

/// Maximum memory for the evicted stacks of a process. Beyond it, those that have allocated least are summed up by call site.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Number of stacks, at some 50 bytes each.
    stacks: usize,
    /// Number of places in the tree of paths, at some 20 bytes each.
    places: usize,
    /// Number of call sites. The paths of all have room in the tree.
    sites: usize,
}

/// Some 75 MiB.
const LIMITS: Limits = Limits { stacks: 250_000, places: 3_000_000, sites: 40_000 };

/// Evicted stacks of one program image.
pub struct EvictedStacks {
    paths: PathsBuilder,
    stacks: Vec<Evicted>,
    /// Indices in `stacks` by hash.
    index: HashTable<u32>,
    hasher: RandomState,
    sites: Vec<Site>,
    /// Indices in `sites`.
    site_index: FastMap<u64, u32>,
    /// Number of stacks that were summed up; a stack that comes back counts again.
    summed_up: u64,
    limits: Limits,
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
    /// Index of its call site.
    site: u32,
}

/// Evicted stacks of a call site.
struct Site {
    id: u64,
    /// What all of them have allocated.
    allocated: Allocated,
    /// What those have allocated that were summed up.
    summed_up: Allocated,
    /// One of the stacks.
    path: Path,
    status: StackStatus,
}

impl Default for EvictedStacks {
    fn default() -> Self {
        Self::with_limits(LIMITS)
    }
}

impl EvictedStacks {
    fn with_limits(limits: Limits) -> Self {
        Self {
            paths: PathsBuilder::default(),
            stacks: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::default(),
            sites: Vec::new(),
            site_index: FastMap::default(),
            summed_up: 0,
            limits,
        }
    }

    /// Adds what a stack has allocated since it was last evicted. `site` identifies its call site.
    pub fn add(&mut self, hash: u64, thread: u64, allocated: Allocated, named: &NamedStack, site: u64) {
        let is_full = self.stacks.len() >= self.limits.stacks || self.paths.len() >= self.limits.places;
        if is_full && self.get(hash).is_none() {
            self.sum_up();
        }
        let (path, status) = (self.paths.add(&named.frames.list()), named.status);
        let site = self.site(site, path, status);
        if let Some(at) = self.find(hash) {
            let known = &mut self.stacks[at as usize];
            if known.path == Path::default() {
                (known.path, known.status) = (path, status);
            }
            self.add_to(at, allocated);
            return;
        }
        let at = u32::try_from(self.stacks.len()).unwrap_or(u32::MAX);
        self.stacks.push(Evicted { hash, allocated: Allocated::default(), thread, path, status, site });
        let Self { stacks, index, hasher, .. } = self;
        let hash_at = |at: &u32| hasher.hash_one(stacks[*at as usize].hash);
        index.insert_unique(hasher.hash_one(hash), at, hash_at);
        self.add_to(at, allocated);
    }

    /// Adds what a known stack has allocated since it was last evicted. Returns false if it is not known.
    pub fn add_again(&mut self, hash: u64, allocated: Allocated) -> bool {
        let Some(at) = self.find(hash) else { return false };
        self.add_to(at, allocated);
        true
    }

    fn add_to(&mut self, at: u32, allocated: Allocated) {
        let stack = &mut self.stacks[at as usize];
        stack.allocated.add(allocated);
        self.sites[stack.site as usize].allocated.add(allocated);
    }

    /// Index of a call site, which is added with one of its stacks if it is new.
    fn site(&mut self, id: u64, path: Path, status: StackStatus) -> u32 {
        if let Some(known) = self.site_index.get(&id) {
            return *known;
        }
        let (id, path, status) = if self.sites.len() + 1 < self.limits.sites {
            (id, path, status)
        } else if self.sites.len() < self.limits.sites {
            let frame = Frame { symbol: OTHER_SITES.to_owned(), ..Frame::default() };
            (id, self.paths.add(&[SharedFrame::new(frame)]), StackStatus::Lost)
        } else {
            return u32::try_from(self.sites.len() - 1).unwrap_or(u32::MAX);
        };
        let at = u32::try_from(self.sites.len()).unwrap_or(u32::MAX);
        let nothing = Allocated::default();
        self.sites.push(Site { id, allocated: nothing, summed_up: nothing, path, status });
        self.site_index.insert(id, at);
        at
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
        self.stacks.get(self.find(hash)? as usize)
    }

    fn find(&self, hash: u64) -> Option<u32> {
        let is_it = |at: &u32| self.stacks[*at as usize].hash == hash;
        self.index.find(self.hasher.hash_one(hash), is_it).copied()
    }

    /// Frames of a stack.
    #[must_use]
    pub fn named(&self, stack: &Evicted) -> NamedStack {
        self.named_path(stack.path, stack.status)
    }

    /// Sums by call site, with one of the stacks of each. They include stacks that were summed up.
    pub fn by_site(&self) -> impl Iterator<Item = (u64, Allocated, NamedStack)> {
        self.sites.iter().map(|site| (site.id, site.allocated, self.named_path(site.path, site.status)))
    }

    /// The same for the stacks that were summed up alone.
    pub fn summed_up_by_site(&self) -> impl Iterator<Item = (u64, Allocated, NamedStack)> {
        let sites = self.sites.iter().filter(|site| site.summed_up.objects > 0);
        sites.map(|site| (site.id, site.summed_up, self.named_path(site.path, site.status)))
    }

    /// Number of stacks that were summed up; one that came back counts again.
    #[must_use]
    pub const fn summed_up(&self) -> u64 {
        self.summed_up
    }

    fn named_path(&self, path: Path, status: StackStatus) -> NamedStack {
        NamedStack { status, frames: self.paths.frames(path).cloned().collect() }
    }

    /// Sums up stacks that have allocated least, until there is room.
    fn sum_up(&mut self) {
        self.stacks.sort_unstable_by_key(|stack| std::cmp::Reverse(stack.allocated.bytes));
        let room = |of: usize| of - of.div_ceil(SUMMED_UP);
        let mut kept = self.stacks.len();
        loop {
            kept = room(kept);
            for stack in self.stacks.drain(kept..) {
                self.summed_up += 1;
                self.sites[stack.site as usize].summed_up.add(stack.allocated);
            }
            let of_stacks = self.stacks.iter_mut().map(|stack| &mut stack.path);
            let of_sites = self.sites.iter_mut().map(|site| &mut site.path);
            self.paths = self.paths.rebuilt(of_stacks.chain(of_sites));
            if kept == 0 || self.paths.len() <= room(self.limits.places) {
                break;
            }
        }
        let Self { stacks, index, hasher, .. } = self;
        index.clear();
        for (at, stack) in (0..).zip(&*stacks) {
            let hash = |at: &u32| hasher.hash_one(stacks[*at as usize].hash);
            index.insert_unique(hasher.hash_one(stack.hash), at, hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Frames;

    fn allocated(objects: u64, bytes: u64) -> Allocated {
        Allocated { objects, bytes }
    }

    fn named(symbols: &[&str]) -> NamedStack {
        let frame = |symbol: &&str| Frame { symbol: (*symbol).to_owned(), ..Frame::default() }.into();
        NamedStack { status: StackStatus::Complete, frames: symbols.iter().map(frame).collect() }
    }

    fn symbols(frames: &Frames) -> Vec<&str> {
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
    fn what_came_without_frames_is_of_the_known_stack_and_its_site() {
        let mut evicted = EvictedStacks::default();
        assert!(!evicted.add_again(7, allocated(1, 1)));
        evicted.add(7, 0, allocated(1, 1), &named(&["malloc", "a"]), 1);
        assert!(evicted.add_again(7, allocated(2, 20)));
        assert_eq!(evicted.get(7).unwrap().allocated, allocated(3, 21));
        let sites: Vec<_> = evicted.by_site().map(|(id, allocated, _)| (id, allocated)).collect();
        assert_eq!(sites, [(1, allocated(3, 21))]);
    }

    /// Adds a thousand stacks of three call sites, of which the later ones allocate more.
    fn thousand(limits: Limits) -> EvictedStacks {
        let mut evicted = EvictedStacks::with_limits(limits);
        for hash in 0..1_000u64 {
            evicted.add(hash, 0, allocated(1, hash), &named(&["malloc", &hash.to_string()]), hash % 3);
        }
        evicted
    }

    fn sum<'a>(all: impl Iterator<Item = (u64, Allocated, NamedStack)> + 'a) -> Allocated {
        all.fold(Allocated::default(), |mut sum, (_, allocated, _)| {
            sum.add(allocated);
            sum
        })
    }

    #[test]
    fn beyond_the_maximum_those_that_allocated_least_are_summed_up_by_call_site() {
        let evicted = thousand(Limits { stacks: 64, ..LIMITS });
        assert!(evicted.len() <= 64);
        assert_eq!(evicted.summed_up() + evicted.len() as u64, 1_000);
        assert_eq!(sum(evicted.by_site()), allocated(1_000, 499_500));
        for (id, of_site, _) in evicted.by_site() {
            let mut listed = Allocated::default();
            evicted.iter().filter(|stack| stack.hash % 3 == id).for_each(|it| listed.add(it.allocated));
            evicted.summed_up_by_site().filter(|other| other.0 == id).for_each(|(_, it, _)| listed.add(it));
            assert_eq!(listed, of_site);
        }
        for stack in evicted.iter() {
            assert_eq!(symbols(&evicted.named(stack).frames), ["malloc", &stack.hash.to_string()]);
            assert_eq!(evicted.get(stack.hash).unwrap().hash, stack.hash);
        }
        assert!(evicted.iter().all(|stack| stack.hash >= 900), "the largest are kept");
    }

    #[test]
    fn the_tree_of_frames_is_bounded_like_the_number_of_stacks() {
        let evicted = thousand(Limits { places: 100, ..LIMITS });
        assert!(evicted.paths.len() <= 102, "{}", evicted.paths.len());
        assert_eq!(evicted.summed_up() + evicted.len() as u64, 1_000);
        assert_eq!(sum(evicted.by_site()), allocated(1_000, 499_500));
    }

    #[test]
    fn call_sites_beyond_the_maximum_are_one() {
        let evicted = thousand(Limits { sites: 2, ..LIMITS });
        let sites: Vec<_> = evicted.by_site().collect();
        assert_eq!(sites.len(), 2);
        assert_eq!(symbols(&sites[1].2.frames), [OTHER_SITES]);
        assert_eq!(sum(evicted.by_site()), allocated(1_000, 499_500));
    }
}
