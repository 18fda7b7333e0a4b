//! A profile by its call sites.

use std::sync::Arc;
use std::time::Duration;

use crate::analyze::site;
use crate::profile::{Basis, Profile, StackProfile, Totals, Verdict, VerdictKind};
use crate::quick_map::{QuickMap, quick_map};

/// The call sites of stacks, and which of their frames is the caller.
pub(super) type SitesOfStacks = QuickMap<u64, (u64, usize)>;

/// What a profile says of each call site.
pub(super) struct Look<'a> {
    pub(super) sites: QuickMap<u64, Now<'a>>,
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
    pub(super) stacks: Vec<&'a StackProfile>,
    /// That which holds the most.
    pub(super) largest: &'a StackProfile,
    /// Index of its frame that is the caller.
    pub(super) caller: usize,
}

impl Now<'_> {
    /// Its figures, with nothing said of them yet, or at all.
    pub(super) fn unjudged(&self, basis: Basis) -> Verdict {
        Verdict {
            kind: VerdictKind::SteadyChurn,
            basis,
            confidence: 0.,
            site: self.site,
            stacks: self.stacks.iter().map(|stack| stack.id).collect(),
            frames: Arc::clone(&self.largest.frames),
            caller: self.caller,
            live: self.live,
            allocated: self.allocated,
            watched: Duration::ZERO,
            first_seen: Duration::ZERO,
            rate: None,
            survival: None,
            allocation_rate: 0.,
            free_rate: 0.,
            freed_when_old: None,
            freed_from_before: None,
            hidden_stacks: 0,
            flat_for: None,
            series: Arc::default(),
        }
    }
}

impl<'a> Look<'a> {
    /// Sums the stacks of a profile up by their call sites; those of `known` are not told by their frames again. `own` are the
    /// instants that are remembered.
    pub(super) fn at(
        profile: &'a Profile,
        instants_ns: &[u64],
        own: &[u64],
        known: &mut SitesOfStacks,
    ) -> Self {
        let interval_of =
            instants_ns.iter().map(|end| own.partition_point(|own| own < end).min(own.len() - 1)).collect();
        let mut sites: QuickMap<u64, Now<'a>> = quick_map(profile.stacks.len());
        let mut of_stacks = quick_map(profile.stacks.len());
        for stack in &profile.stacks {
            let identify = || {
                let caller = site::caller(&stack.frames);
                (site::identity(&stack.frames, caller), caller)
            };
            let (site, caller) = known.get(&stack.id).copied().unwrap_or_else(identify);
            // A stack that could not be read yet will have frames later.
            if !stack.frames.is_empty() {
                of_stacks.insert(stack.id, (site, caller));
            }
            let now = sites.entry(site).or_insert_with(|| Now {
                site,
                live: Totals::default(),
                allocated: Totals::default(),
                stacks: Vec::with_capacity(1),
                largest: stack,
                caller,
            });
            now.live = [now.live, stack.live].into_iter().sum();
            now.allocated = [now.allocated, stack.allocated].into_iter().sum();
            now.stacks.push(stack);
            if stack.live.bytes > now.largest.live.bytes {
                (now.largest, now.caller) = (stack, caller);
            }
        }
        *known = of_stacks;
        Self { sites, interval_of, intervals: own.len() }
    }

    /// What lives of a call site's allocations, with the remembered interval that they were made in.
    fn cohorts(&self, now: &Now<'a>) -> impl Iterator<Item = (usize, Totals)> {
        let last = self.intervals - 1;
        let interval = move |number: u16| self.interval_of.get(usize::from(number)).copied().unwrap_or(last);
        let cohorts = now.stacks.iter().flat_map(|stack| &stack.cohorts);
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
