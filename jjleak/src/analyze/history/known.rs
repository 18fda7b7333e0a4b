//! Mapping of stacks to call sites, cached across snapshots.

use crate::analyze::site;
use crate::fast_map::{FastMap, fast_map};
use crate::profile::StackProfile;

/// Stacks of the last snapshot, in its order. The next one mostly shares it, which saves all lookups.
#[derive(Debug, Default)]
pub(super) struct KnownStacks {
    pub(super) stacks: Vec<KnownStack>,
    /// Number of distinct call sites.
    pub(super) sites: usize,
}

/// Cached identity of a stack.
#[derive(Debug)]
pub(super) struct KnownStack {
    id: u64,
    /// An unreadable stack has no frames yet and gets them later.
    has_frames: bool,
    pub(super) site: u64,
    /// Index of the caller's frame.
    pub(super) caller: usize,
    /// Index of the call site, in the order of first stacks.
    pub(super) place: usize,
}

impl KnownStacks {
    /// Updates [`Self::stacks`] to these stacks.
    pub(super) fn recognize(&mut self, stacks: &[StackProfile]) {
        let is_it = |(known, stack): (&KnownStack, &StackProfile)| {
            known.id == stack.id && known.has_frames != stack.frames.is_empty()
        };
        if self.stacks.len() != stacks.len() || !self.stacks.iter().zip(stacks).all(is_it) {
            self.identify(stacks);
        }
    }

    /// Identifies stacks in a new order; known ones are not identified by their frames again.
    fn identify(&mut self, stacks: &[StackProfile]) {
        let named = self.stacks.iter().filter(|known| known.has_frames);
        let known: FastMap<_, _> = named.map(|known| (known.id, (known.site, known.caller))).collect();
        let mut places = fast_map(stacks.len());
        let known_stack = |stack: &StackProfile| {
            let (site, caller) = known.get(&stack.id).copied().unwrap_or_else(|| {
                let frames = stack.frames.list();
                let caller = site::caller(&frames);
                (site::identity(&frames, caller), caller)
            });
            let next = places.len();
            let place = *places.entry(site).or_insert(next);
            KnownStack { id: stack.id, has_frames: !stack.frames.is_empty(), site, caller, place }
        };
        self.stacks = stacks.iter().map(known_stack).collect();
        self.sites = places.len();
    }
}
