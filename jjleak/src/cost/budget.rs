//! Overhead budget of a process, and the plan for spending it within a stratum. Pure.

use std::time::Duration;

/// Minimum length of a window: timers are late by a millisecond, and enabling probes takes a third of one.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);
/// Target interval between windows. A span of [`SPAN_S`] can contain windows of two more strata than fit into it: the last
/// one of a stratum that began before, and the first one of a stratum that ends after.
const INTERVAL: Duration = Duration::from_millis(2_500);
/// Maximum length of a window, as a fraction of the target interval: 50 ms. Long against the time it takes to enable probes,
/// short against changes in the program's behaviour. The cost of a burst in a window is not known in advance.
const WINDOWS_IN_INTERVAL: u32 = 50;
/// Target interval at first: shorter, with shorter windows, until the debt of having counted everything is repaid.
pub(super) const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// Assumed cost of enabling and disabling a window's probes before it has been measured; rather too high.
pub(super) const FIRST_SWITCH_S: f64 = 0.001;
/// Weight of a new window against all earlier ones.
const NEWEST: f64 = 0.3;
/// Time constant for forgetting the CPU usage of the process itself, which may idle for a while.
const FORGET_OWN_S: f64 = 5.;
/// Minimum CPU usage, in cores, that the budget assumes of an idle process. Otherwise the first call after a silence would
/// exceed the budget.
const IDLE_CORES: f64 = 0.002;
/// Debt allowed before the number and cost of calls is known, if hits cost as much as they can: a thousand calls.
const GRACE_S: f64 = 0.002;
/// Debt allowed where counting everything is worth one larger expense: a burst of JIT compilation in a JVM is no steady load.
/// Half a second at the usual cost of hits.
const PATIENT_GRACE_S: f64 = 1.2;
/// The bound holds over any span of this length, or of two strata where those are longer.
const SPAN_S: f64 = 10.;
/// Share of the bound that is earned while everything is counted; with the savings, a span can use all of it.
const EARNED_FULL: f64 = 1. - SAVED_S / SPAN_S;
/// Share of the bound that windows may use; with the two extra strata's windows in a span, it is all of it. Frees that are
/// followed cost the same all the time: they may use their part of the bound in full.
const FOR_WINDOWS: f64 = SPAN_S / (SPAN_S + 2. * INTERVAL.as_secs_f64());
/// Maximum savings, in seconds of income: a process that was quiet all day must not be slowed down for an hour.
const SAVED_S: f64 = 1.;
/// Bounds of the interval between checks while everything is counted, derived from what threads can spend until then.
const CHECK_S: (f64, f64) = (0.004, 0.5);
/// Largest share of the bound that following frees may take; the rest is for windows.
const FOR_FREES: f64 = 0.8;
/// The same for following them again, which starts the figures over: not for a moment's calm.
const FOR_FREES_AGAIN: f64 = 0.6;

/// Measured load, in cores.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Cost of allocations while they are counted.
    pub allocations: f64,
    /// Cost of frees while they are counted.
    pub frees: f64,
    /// CPU usage of the process itself.
    pub own: f64,
    /// The same while `frees` was measured: probes may slow the process down.
    pub own_beside_frees: f64,
    /// CPU seconds that a window takes beyond its counted calls, for enabling and disabling probes.
    pub switch_s: f64,
}

/// Plan of a stratum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// Length of the stratum.
    pub stratum: Duration,
    /// Length of its window.
    pub window: Duration,
    /// Frees are counted between windows, too.
    pub follows_frees: bool,
    /// Maximum debt within the stratum, in CPU seconds. Beyond it, frees are not followed any more.
    pub max_debt_s: f64,
}

impl Load {
    /// Income of the budget, in CPU seconds per second.
    fn allowed(&self, share: f64) -> f64 {
        share * self.own.max(IDLE_CORES)
    }

    /// Returns true if counting all frees is affordable, given whether they have been counted until now.
    pub(super) fn can_follow_frees(&self, share: f64, follows: bool) -> bool {
        let part = if follows { FOR_FREES } else { FOR_FREES_AGAIN };
        self.frees_share() < share * part
    }

    /// Cost of frees, as a share of the process's own CPU usage.
    pub(super) fn frees_share(&self) -> f64 {
        self.frees / self.own_beside_frees.max(IDLE_CORES)
    }

    /// The same load if frees cost so many times as much.
    pub(super) fn with_frees_at(self, factor: f64) -> Self {
        Self { frees: self.frees * factor, ..self }
    }

    /// Bound at which frees could be followed.
    pub(super) fn needed_share(&self) -> f64 {
        self.frees_share() / FOR_FREES_AGAIN
    }

    /// Number of threads seen running at once; at least one.
    pub(super) fn threads(&self) -> f64 {
        (self.own + self.allocations + self.frees).max(1.)
    }

    /// Seconds until a debt is repaid.
    pub(super) fn repaid_in_s(&self, share: f64, owed_s: f64) -> f64 {
        owed_s / self.allowed(share)
    }

    /// Plans a stratum within this bound, given the savings (a debt if negative), the target interval between windows, and
    /// whether frees have been followed until now.
    ///
    /// A stratum lasts until its cost is earned and the same amount is saved for the next one: its window can be anywhere in
    /// it, or estimates from windows would be biased. Savings beyond that are a reserve for windows that cost more than expected
    /// and do not shorten the stratum.
    #[must_use]
    pub fn plan(&self, share: f64, saved_s: f64, interval: Duration, follows: bool) -> Plan {
        let allowed = self.allowed(share);
        let interval_s = interval.as_secs_f64();
        let follows_frees = self.can_follow_frees(share, follows);
        // Live blocks are known only if each free is seen. Without that, frees are counted in windows for their price.
        let (income, counting) = if follows_frees {
            (self.allowed(share - self.frees_share()) * FOR_WINDOWS, self.allocations)
        } else {
            (allowed * FOR_WINDOWS, self.allocations + self.frees)
        };
        // Keep the first windows short: their cost is not known yet.
        let longest = (interval / WINDOWS_IN_INTERVAL).max(SHORTEST_WINDOW);
        let window =
            seconds(income * interval_s / counting.max(f64::MIN_POSITIVE)).clamp(SHORTEST_WINDOW, longest);
        let cost_s = counting * window.as_secs_f64() + self.switch_s;
        let to_save_s = (cost_s - saved_s).max(0.);
        let stratum = seconds((cost_s + to_save_s) / income).max(2 * window);
        let max_debt_s = 2. * cost_s.max(allowed * interval_s) - saved_s.min(0.);
        Plan { stratum, window, follows_frees, max_debt_s }
    }

    /// Updates the cost of allocations with that of the latest window.
    pub(super) fn mix_allocations(&mut self, allocations: f64) {
        mix(&mut self.allocations, allocations, NEWEST);
    }

    /// Updates the cost of switching probes with that of the latest window.
    pub(super) fn mix_switch(&mut self, switch_s: f64) {
        mix(&mut self.switch_s, switch_s.max(0.), NEWEST);
    }

    /// Updates the process's own usage with a stretch in which nothing was counted.
    pub(super) fn mix_own(&mut self, own: f64, over_s: f64) {
        mix(&mut self.own, own, weight(over_s / FORGET_OWN_S));
    }

    pub(super) fn mix_frees(&mut self, frees: f64, own: f64, over_s: f64) {
        mix(&mut self.frees, frees, weight(over_s));
        mix(&mut self.own_beside_frees, own, weight(over_s));
    }

    /// Updates the cost of frees with that of the latest window, where they are counted in windows only.
    pub(super) fn mix_frees_of_window(&mut self, frees: f64, own: f64) {
        // In a short window, what is left of its CPU time is a small difference of two large figures. Probes take CPU time from
        // the process itself only where it has none to spare.
        let spare = (self.own.max(1.) - self.allocations - frees).max(0.);
        let own = own.max(self.own.min(spare));
        mix(&mut self.frees, frees, NEWEST);
        mix(&mut self.own_beside_frees, own, NEWEST);
    }
}

/// Target interval that follows this one.
pub(super) fn longer(interval: Duration) -> Duration {
    (2 * interval).min(INTERVAL)
}

/// Weight of a stretch of time against all earlier ones: exponential forgetting within seconds.
fn weight(over_s: f64) -> f64 {
    1. - (-over_s).exp()
}

fn mix(old: &mut f64, new: f64, weight: f64) {
    *old += weight * (new - *old);
}

fn seconds(seconds: f64) -> Duration {
    /// A stratum that is cut short does not earn the cost of its window. In a day, an idle process earns the cost of a window of
    /// a hundred threads at a bound of 1 %.
    const DAY_S: f64 = 86_400.;
    Duration::from_secs_f64(seconds.clamp(0., DAY_S))
}

/// Savings for counting, or debt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Share of the process's own CPU usage that may be spent.
    share: f64,
    /// Part of that share that is earned; the rest covers spans that contain more than their part.
    part: f64,
    /// Savings limit, in seconds of income.
    max_savings_s: f64,
    saved_s: f64,
    /// Debt at which counting everything ends.
    grace_s: f64,
}

/// CPU time used in a stretch of time, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stretch {
    /// Length of the stretch.
    pub over_s: f64,
    /// CPU time of the process itself.
    pub own_s: f64,
    /// CPU time taken by probes.
    pub spent_s: f64,
}

impl Budget {
    /// An empty budget.
    #[must_use]
    pub const fn new(share: f64) -> Self {
        Self { share, part: EARNED_FULL, max_savings_s: SAVED_S, saved_s: 0., grace_s: GRACE_S }
    }

    /// A budget that allows a larger debt before counting everything ends. That debt is never repaid.
    #[must_use]
    pub const fn patient(share: f64) -> Self {
        Self { grace_s: PATIENT_GRACE_S, ..Self::new(share) }
    }

    /// Share of the process's own CPU usage that is earned.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.share * self.part
    }

    /// The bound: the share of the process's own CPU usage that may be spent.
    #[must_use]
    pub const fn share(&self) -> f64 {
        self.share
    }

    /// Switches to counting in windows. A patient budget's debt is forgiven: repaying it can take longer than a profile.
    pub fn enter_windows(&mut self) {
        self.max_savings_s = INTERVAL.as_secs_f64();
        if self.grace_s >= PATIENT_GRACE_S {
            self.saved_s = 0.;
        }
        self.pay_for_frees(0.);
    }

    /// Sets the share of the process's own CPU usage that following frees takes. The rest is for windows, and is earned in
    /// part only.
    pub fn pay_for_frees(&mut self, frees_share: f64) {
        self.part = FOR_WINDOWS + (1. - FOR_WINDOWS) * (frees_share / self.share).clamp(0., 1.);
    }

    /// Charges a stretch of time.
    pub fn charge(&mut self, stretch: Stretch) {
        let income_s = self.rate() * stretch.own_s.max(IDLE_CORES * stretch.over_s);
        let saved_s = self.saved_s + income_s - stretch.spent_s;
        // Savings are limited by the current usage of the process.
        let most_s = income_s / stretch.over_s.max(1e-6) * self.max_savings_s;
        self.saved_s = saved_s.min(most_s.max(self.saved_s));
    }

    /// Savings, or debt if negative, in CPU seconds.
    #[must_use]
    pub const fn saved_s(&self) -> f64 {
        self.saved_s
    }

    /// Returns true if counting everything is no longer affordable.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.saved_s < -self.grace_s
    }

    /// Interval until the next check while this many threads have everything counted.
    #[must_use]
    pub fn until_check(&self, threads: f64) -> Duration {
        let (shortest, longest) = CHECK_S;
        Duration::from_secs_f64(((self.saved_s + self.grace_s) / threads).clamp(shortest, longest))
    }
}

#[cfg(test)]
mod tests;
