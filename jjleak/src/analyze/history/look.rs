//! A profile by its call sites.

use std::iter;

use super::known::{KnownStack, KnownStacks};
use crate::profile::{Profile, StackProfile, Totals};

/// What a profile says of each call site.
pub(super) struct Look<'a> {
    /// In the order of their first stacks.
    pub(super) sites: Vec<Now<'a>>,
    /// The remembered interval that each of the profile's is in.
    interval_of: Vec<usize>,
    /// How many are remembered.
    intervals: usize,
}

/// What a profile says of a call site.
pub(super) struct Now<'a> {
    pub(super) site: u64,
    pub(super) live: Totals,
    pub(super) allocated: Totals,
    first: &'a StackProfile,
    /// Most have none.
    others: Vec<&'a StackProfile>,
    /// That which holds the most.
    pub(super) largest: &'a StackProfile,
    /// Index of its frame that is the caller.
    pub(super) caller: usize,
}

impl<'a> Now<'a> {
    fn of(stack: &'a StackProfile, known: &KnownStack) -> Self {
        let KnownStack { site, caller, .. } = *known;
        let StackProfile { live, allocated, .. } = *stack;
        Self { site, live, allocated, first: stack, others: Vec::new(), largest: stack, caller }
    }

    pub(super) fn stacks(&self) -> impl Iterator<Item = &'a StackProfile> {
        iter::once(self.first).chain(self.others.iter().copied())
    }

    fn add(&mut self, stack: &'a StackProfile, known: &KnownStack) {
        self.live = [self.live, stack.live].into_iter().sum();
        self.allocated = [self.allocated, stack.allocated].into_iter().sum();
        self.others.push(stack);
        if stack.live.bytes > self.largest.live.bytes {
            (self.largest, self.caller) = (stack, known.caller);
        }
    }
}

impl<'a> Look<'a> {
    /// Sums the stacks of a profile up by their call sites. `own` are the instants that are remembered.
    pub(super) fn at(
        profile: &'a Profile,
        instants_ns: &[u64],
        own: &[u64],
        known: &mut KnownStacks,
    ) -> Self {
        let interval_of =
            instants_ns.iter().map(|end| own.partition_point(|own| own < end).min(own.len() - 1)).collect();
        known.recognize(&profile.stacks);
        let mut sites: Vec<Now<'a>> = Vec::with_capacity(known.sites);
        for (stack, known) in profile.stacks.iter().zip(&known.stacks) {
            match sites.get_mut(known.place) {
                Some(now) => now.add(stack, known),
                None => sites.push(Now::of(stack, known)),
            }
        }
        Self { sites, interval_of, intervals: own.len() }
    }

    /// What lives of a call site's allocations, with the remembered interval that they were made in.
    fn cohorts(&self, now: &Now<'a>) -> impl Iterator<Item = (usize, Totals)> {
        let last = self.intervals - 1;
        let interval = move |number: u16| self.interval_of.get(usize::from(number)).copied().unwrap_or(last);
        let cohorts = now.stacks().flat_map(|stack| &stack.cohorts);
        cohorts.map(move |cohort| (interval(cohort.interval), cohort.live))
    }

    /// What lives of each remembered interval's allocations.
    pub(super) fn survivors(&self, now: &Now<'a>) -> Vec<Totals> {
        let mut survivors = vec![Totals::default(); self.intervals];
        for (interval, live) in self.cohorts(now) {
            survivors[interval] = [survivors[interval], live].into_iter().sum();
        }
        survivors
    }

    /// Bytes that live of what was allocated in the first intervals.
    pub(super) fn live_of_first(&self, now: &Now<'a>, intervals: usize) -> u64 {
        self.cohorts(now).filter(|(interval, _)| *interval < intervals).map(|(_, live)| live.bytes).sum()
    }
}
