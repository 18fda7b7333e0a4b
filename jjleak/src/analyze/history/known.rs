//! Which call site each stack is of, remembered from look to look.

use crate::analyze::site;
use crate::fast_map::{FastMap, fast_map};
use crate::profile::StackProfile;

/// The stacks of the last look, in their order, which is mostly that of the next one: then nothing has to be looked up.
#[derive(Debug, Default)]
pub(super) struct KnownStacks {
    pub(super) stacks: Vec<KnownStack>,
    /// How many call sites they are of.
    pub(super) sites: usize,
}

/// What is known of a stack.
#[derive(Debug)]
pub(super) struct KnownStack {
    id: u64,
    /// One that could not be read yet will have frames later.
    has_frames: bool,
    pub(super) site: u64,
    /// Index of the frame that is the caller.
    pub(super) caller: usize,
    /// Which of the call sites it is, in the order of their first stacks.
    pub(super) place: usize,
}

impl KnownStacks {
    /// Has [`Self::stacks`] be these.
    pub(super) fn recognize(&mut self, stacks: &[StackProfile]) {
        let is_it = |(known, stack): (&KnownStack, &StackProfile)| {
            known.id == stack.id && known.has_frames != stack.frames.is_empty()
        };
        if self.stacks.len() != stacks.len() || !self.stacks.iter().zip(stacks).all(is_it) {
            self.tell_anew(stacks);
        }
    }

    /// Those that are known are not told by their frames again.
    fn tell_anew(&mut self, stacks: &[StackProfile]) {
        let named = self.stacks.iter().filter(|known| known.has_frames);
        let known: FastMap<_, _> = named.map(|known| (known.id, (known.site, known.caller))).collect();
        let mut places = fast_map(stacks.len());
        let tell = |stack: &StackProfile| {
            let (site, caller) = known.get(&stack.id).copied().unwrap_or_else(|| {
                let caller = site::caller(&stack.frames);
                (site::identity(&stack.frames, caller), caller)
            });
            let next = places.len();
            let place = *places.entry(site).or_insert(next);
            KnownStack { id: stack.id, has_frames: !stack.frames.is_empty(), site, caller, place }
        };
        self.stacks = stacks.iter().map(tell).collect();
        self.sites = places.len();
    }
}
