//! A profile grouped by call site.

use std::iter;

use super::known::{KnownStack, KnownStacks};
use crate::profile::{Profile, StackProfile, Totals};

/// All call sites of a profile.
pub(super) struct Snapshot<'a> {
    /// In the order of their first stacks.
    pub(super) sites: Vec<SiteSnapshot<'a>>,
    /// For each of the profile's intervals, the remembered interval that contains it.
    interval_of: Vec<usize>,
    /// Number of remembered intervals.
    intervals: usize,
}

/// One call site in a profile.
pub(super) struct SiteSnapshot<'a> {
    pub(super) site: u64,
    pub(super) live: Totals,
    pub(super) allocated: Totals,
    first: &'a StackProfile,
    /// Usually empty.
    others: Vec<&'a StackProfile>,
    /// The stack that holds the most.
    pub(super) largest: &'a StackProfile,
    /// Index of the caller's frame in [`Self::largest`].
    pub(super) caller: usize,
}

impl<'a> SiteSnapshot<'a> {
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

impl<'a> Snapshot<'a> {
    /// Sums a profile's stacks by call site. `own` are the remembered instants.
    pub(super) fn at(
        profile: &'a Profile,
        instants_ns: &[u64],
        own: &[u64],
        known: &mut KnownStacks,
    ) -> Self {
        let interval_of =
            instants_ns.iter().map(|end| own.partition_point(|own| own < end).min(own.len() - 1)).collect();
        known.recognize(&profile.stacks);
        let mut sites: Vec<SiteSnapshot<'a>> = Vec::with_capacity(known.sites);
        for (stack, known) in profile.stacks.iter().zip(&known.stacks) {
            match sites.get_mut(known.place) {
                Some(now) => now.add(stack, known),
                None => sites.push(SiteSnapshot::of(stack, known)),
            }
        }
        Self { sites, interval_of, intervals: own.len() }
    }

    /// Live totals of a call site's allocations, with the remembered interval of each.
    fn cohorts(&self, now: &SiteSnapshot<'a>) -> impl Iterator<Item = (usize, Totals)> {
        let last = self.intervals - 1;
        let interval = move |number: u16| self.interval_of.get(usize::from(number)).copied().unwrap_or(last);
        let cohorts = now.stacks().flat_map(|stack| &stack.details.cohorts);
        cohorts.map(move |cohort| (interval(cohort.interval), cohort.live))
    }

    /// Live totals of the allocations of each remembered interval.
    pub(super) fn survivors(&self, now: &SiteSnapshot<'a>) -> Vec<Totals> {
        let mut survivors = vec![Totals::default(); self.intervals];
        for (interval, live) in self.cohorts(now) {
            survivors[interval] = [survivors[interval], live].into_iter().sum();
        }
        survivors
    }

    /// Live bytes of allocations from the first `intervals` intervals.
    pub(super) fn live_of_first(&self, now: &SiteSnapshot<'a>, intervals: usize) -> u64 {
        self.cohorts(now).filter(|(interval, _)| *interval < intervals).map(|(_, live)| live.bytes).sum()
    }
}
