//! What may be spent on profiling a process, and how a stretch of time is to be spent. Pure.

use std::time::Duration;

/// A window is no shorter: timers are late by a millisecond, and putting probes in takes a third of one.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);
/// Windows are to come about as often as this. In a span of [`SPAN_S`], there can be those of two more strata than fit into it: the
/// last of one, and the first of another.
const TARGET: Duration = Duration::from_millis(2_500);
/// A window is no longer than this part of it, 50 ms: long against the time in which probes are put in, and short against what changes
/// in a program. What a burst costs in it is not known before.
const WINDOWS_IN_TARGET: u32 = 50;
/// The first ones come faster, and are shorter: they repay what it took to find out that not everything can be counted.
pub(super) const FIRST_TARGET: Duration = Duration::from_secs(1);
/// What a window is taken to cost beyond what is counted in it, before one has been measured: rather too much.
pub(super) const FIRST_TURN_S: f64 = 0.001;
/// What a new window counts for, beside all before it.
const NEWEST: f64 = 0.3;
/// What the process takes itself is forgotten in so many seconds: it can rest for a while.
const OWN_S: f64 = 5.;
/// A process that does nothing may be spent this share of a core on: else the first call after a silence would be too much.
const LEAST_CORES: f64 = 0.002;
/// May be owed before it is known what calls take, and how many there are, if hits take as much as they can: a thousand calls.
const GRACE_S: f64 = 0.002;
/// The same for who would rather pay that once than not have everything counted: what a JVM compiles at once is no burden. Half a
/// second, where hits take what they usually do.
const PATIENT_GRACE_S: f64 = 1.2;
/// The bound is kept over any span as long as this, or as two strata where these are longer.
const SPAN_S: f64 = 10.;
/// Of what may be spent, this is saved up while everything is counted; with what is saved, it is all of it in a span.
const OF_SHARE_WHOLE: f64 = 1. - SAVED_S / SPAN_S;
/// The same while windows are: with those of the two strata that can be in a span beyond the span's own, it is all of it.
const OF_SHARE_IN_WINDOWS: f64 = SPAN_S / (SPAN_S + 2. * TARGET.as_secs_f64());
/// Not more is saved up than in so many seconds: else a process that was quiet all day could be held up for an hour.
const SAVED_S: f64 = 1.;
/// How long everything is counted before that is judged again: by what threads can have spent by then, within these bounds.
const LOOKS_S: (f64, f64) = (0.004, 0.5);

/// What was measured, in shares of a core.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// What allocations cost while they are counted.
    pub allocations: f64,
    /// What frees cost while they are.
    pub frees: f64,
    /// What the process takes itself.
    pub own: f64,
    /// Seconds of a core that a window takes beyond what is counted in it: putting its probes in and taking them out.
    pub turn_s: f64,
}

/// How a stratum is spent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Its length.
    pub stratum: Duration,
    /// That of its window.
    pub window: Duration,
    /// How long frees are followed after the window; for longer than the stratum, all the time.
    pub follow: Duration,
    /// More may not be owed in it, in seconds of a core; else frees rest at once.
    pub most_owed_s: f64,
}

impl Load {
    /// Seconds of a core that may be spent in a second.
    fn allowed(&self, share: f64) -> f64 {
        share * self.own.max(LEAST_CORES)
    }

    /// Whether frees can be counted all the time.
    pub(super) fn follows_always(&self, share: f64) -> bool {
        self.frees < self.allowed(share) / 2.
    }

    /// How many threads have been seen to run at once; at least one.
    pub(super) fn threads(&self) -> f64 {
        (self.own + self.allocations + self.frees).max(1.)
    }

    /// How long it takes until so much is paid back, in seconds.
    pub(super) fn pays_back_in_s(&self, share: f64, owed_s: f64) -> f64 {
        owed_s / self.allowed(share)
    }

    /// How to stay within the bound, with so much saved (or owed, if it is negative), when windows are to come about as often
    /// as `target`.
    ///
    /// A stratum is as long as it takes to save up what it costs, and to have as much left for the next one at its end: its
    /// window can be anywhere in it, or what is estimated from windows would not be right. What is saved beyond that is for
    /// windows that cost more than was thought, and shortens nothing.
    #[must_use]
    pub fn plan(&self, share: f64, saved_s: f64, target: Duration) -> Plan {
        let allowed = self.allowed(share);
        let target_s = target.as_secs_f64();
        // The first windows are short: what they cost is not known yet.
        let longest = (target / WINDOWS_IN_TARGET).max(SHORTEST_WINDOW);
        let window_for = |affordable_s: f64, cores: f64| {
            seconds(affordable_s / cores.max(f64::MIN_POSITIVE)).clamp(SHORTEST_WINDOW, longest)
        };
        // With frees counted all the time, what lives is known as if everything were counted.
        let (income, window, follow, cost_s) = if self.follows_always(share) {
            let income = allowed - self.frees;
            let window = window_for(income * target_s, self.allocations);
            (income, window, Duration::MAX, self.allocations * window.as_secs_f64() + self.turn_s)
        } else {
            let counting = self.allocations + self.frees;
            let window = window_for(allowed * target_s / 4., counting);
            let window_s = counting * window.as_secs_f64() + self.turn_s;
            let follow = seconds((allowed * target_s - window_s) / self.frees).max(window);
            (allowed, window, follow, window_s + self.frees * follow.as_secs_f64())
        };
        let to_save_s = (cost_s - saved_s).max(0.);
        let stratum = seconds((cost_s + to_save_s) / income).max(2 * window);
        let most_owed_s = 2. * cost_s.max(allowed * target_s) - saved_s.min(0.);
        Plan { stratum, window, follow, most_owed_s }
    }

    /// Takes a window in that was counted just now.
    pub(super) fn mix_allocations(&mut self, allocations: f64) {
        mix(&mut self.allocations, allocations, NEWEST);
    }

    /// What a window took beyond what was counted.
    pub(super) fn mix_turn(&mut self, turn_s: f64) {
        mix(&mut self.turn_s, turn_s.max(0.), NEWEST);
    }

    /// What the process takes itself, over a stretch in which it was left alone.
    pub(super) fn mix_own(&mut self, own: f64, over_s: f64) {
        mix(&mut self.own, own, weight(over_s / OWN_S));
    }

    pub(super) fn mix_frees(&mut self, frees: f64, over_s: f64) {
        mix(&mut self.frees, frees, weight(over_s));
    }
}

/// The next target, after one.
pub(super) fn longer(target: Duration) -> Duration {
    (2 * target).min(TARGET)
}

/// What a stretch of time counts for beside all before it: it is forgotten within seconds.
fn weight(over_s: f64) -> f64 {
    1. - (-over_s).exp()
}

fn mix(old: &mut f64, new: f64, weight: f64) {
    *old += weight * (new - *old);
}

fn seconds(seconds: f64) -> Duration {
    /// A stratum that was cut short would not earn what its window costs. In a day, a process that does nothing earns what a window of
    /// a hundred threads does, at a bound of 1 %.
    const DAY_S: f64 = 86_400.;
    Duration::from_secs_f64(seconds.clamp(0., DAY_S))
}

/// What was saved up for counting, or is owed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Of what the process takes itself, this may be spent.
    share: f64,
    /// Of that, this is saved up; the rest is what spans can have more of than their part.
    part: f64,
    /// In so many seconds at most.
    longest_s: f64,
    saved_s: f64,
    /// May be owed before not everything is counted any more.
    grace_s: f64,
}

/// What a stretch of time took, in seconds; of a core, but for the first.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stretch {
    /// Its length.
    pub over_s: f64,
    /// What the process took itself.
    pub own_s: f64,
    /// What probes took of it.
    pub spent_s: f64,
}

impl Budget {
    /// Nothing is saved, and nothing owed.
    #[must_use]
    pub const fn new(share: f64) -> Self {
        Self { share, part: OF_SHARE_WHOLE, longest_s: SAVED_S, saved_s: 0., grace_s: GRACE_S }
    }

    /// The same for who lets more be owed before not everything is counted: that is never paid back.
    #[must_use]
    pub const fn patient(share: f64) -> Self {
        Self { grace_s: PATIENT_GRACE_S, ..Self::new(share) }
    }

    /// Of what the process takes itself, what is saved up for counting.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.share * self.part
    }

    /// Not everything is counted from now on. To pay so much back can take longer than a profile.
    pub fn settle(&mut self) {
        (self.part, self.longest_s) = (OF_SHARE_IN_WINDOWS, TARGET.as_secs_f64());
        if self.grace_s >= PATIENT_GRACE_S {
            self.saved_s = 0.;
        }
    }

    /// A stretch of time is over.
    pub fn book(&mut self, stretch: Stretch) {
        let income_s = self.rate() * stretch.own_s.max(LEAST_CORES * stretch.over_s);
        let saved_s = self.saved_s + income_s - stretch.spent_s;
        // What is saved counts for what the process takes now.
        let most_s = income_s / stretch.over_s.max(1e-6) * self.longest_s;
        self.saved_s = saved_s.min(most_s.max(self.saved_s));
    }

    /// What is saved, or owed if it is negative.
    #[must_use]
    pub const fn saved_s(&self) -> f64 {
        self.saved_s
    }

    /// Whether not everything can be counted.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.saved_s < -self.grace_s
    }

    /// How long so many threads can have everything counted before that is judged again.
    #[must_use]
    pub fn until_look(&self, threads: f64) -> Duration {
        let (shortest, longest) = LOOKS_S;
        Duration::from_secs_f64(((self.saved_s + self.grace_s) / threads).clamp(shortest, longest))
    }
}

#[cfg(test)]
mod tests;
