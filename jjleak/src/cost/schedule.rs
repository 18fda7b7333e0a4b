//! Schedule of counting allocations and frees so that the overhead stays below a bound. Decides from measurements and does
//! nothing itself. Pure.
//!
//! Everything is counted as long as that costs less than the bound. Otherwise allocations are counted in short windows at
//! random times; frees are counted for a while longer, to tell blocks that outlive their window from those that do not;
//! then all probes are disabled. The lengths of a stratum and its window are fixed before the window, from the savings or
//! debt at that time and the cost of earlier windows ([`Load::plan`]). What a window counts changes neither, or estimates
//! would be biased.

use std::mem;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::budget::{FIRST_INTERVAL, FIRST_SWITCH_S, longer};
use super::correction::Correction;
use super::{Budget, Load, Plan, Stretch};
use crate::attach::Part;

/// Length of the baseline measurement without probes, before the first window is planned.
const BASELINE: Duration = Duration::from_millis(300);
/// Bounds of the interval between checks while a debt is being repaid, in seconds.
const REPAYMENT_CHECK_S: (f64, f64) = (0.01, 1.);
/// Bounds of the interval between checks while something is counted, in seconds, derived from what threads can spend until
/// then. A check takes some ten microseconds.
const CHECK_S: (f64, f64) = (0.01, 0.1);
/// Time after the start in which slow work is deferred: the cost of counting everything is not known yet.
const START: Duration = Duration::from_millis(500);
/// Slow work is also deferred when counting of frees ends within this time.
const SOON: Duration = Duration::from_millis(100);

/// Measurement of a stretch of time; CPU seconds except for the length.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(clippy::struct_field_names, reason = "the unit")]
pub(super) struct Measured {
    /// Length of the stretch.
    pub(super) over_s: f64,
    /// CPU time of the process, including that of probes.
    pub(super) cpu_s: f64,
    /// Part taken by allocations, by their prices.
    pub(super) allocations_s: f64,
    /// Part taken by frees, by their prices.
    pub(super) frees_s: f64,
    /// Part taken by other hits: of probes that were being enabled or disabled.
    pub(super) others_s: f64,
}

/// Action for [`super::Bound`] to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Enable these probes.
    Enable(Part),
    /// Disable these probes.
    Disable(Part),
    /// Begin a window; its probes are enabled.
    BeginWindow,
    /// End the window; its stratum ends at this instant.
    EndWindow { stratum: Instant },
}

/// State of counting, and the measurements that decide it.
pub(super) struct Schedule {
    state: State,
    /// Time at which [`Self::advance`] is due.
    next: Instant,
    began: Instant,
    budget: Budget,
    load: Load,
    correction: Correction,
    interval: Duration,
    random: Rng,
    /// CPU seconds taken by probes and by enabling and disabling them.
    spent_s: f64,
    /// CPU seconds that this stratum has taken for switching probes, including what was hit meanwhile.
    switch_s: f64,
    /// True if frees are counted.
    counts_frees: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Everything is counted. `at_most` is the budget if hits cost as much as they can: their real cost is unknown because the
    /// process never runs without them.
    Full { at_most: Budget },
    /// Probes are off and no window is planned. The debt of counting everything is repaid first, for a run can end at any
    /// time: only later windows can be anywhere in their strata.
    Baseline { is_measured: bool },
    /// Waits for the window of the stratum.
    Waiting { stratum_end: Instant, window: Instant, plan: Plan },
    /// Allocations are counted.
    Window { stratum_end: Instant, plan: Plan },
    /// Frees alone are counted, until this instant if there is one.
    FreesOnly { stratum_end: Instant, until: Option<Instant>, plan: Plan },
}

impl Schedule {
    /// Starts with everything counted.
    pub(super) fn begin(budget: Budget, now: Instant, random: Rng) -> Self {
        Self {
            state: State::Full { at_most: budget },
            next: now + budget.until_check(1.),
            began: now,
            budget,
            load: Load { switch_s: FIRST_SWITCH_S, ..Load::default() },
            correction: Correction::default(),
            interval: FIRST_INTERVAL,
            random,
            spent_s: 0.,
            switch_s: 0.,
            counts_frees: true,
        }
    }

    /// Time of the next call of [`Self::advance`].
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// CPU seconds taken of the process.
    pub(super) const fn spent_s(&self) -> f64 {
        self.spent_s
    }

    /// CPU seconds taken in a measurement.
    pub(super) fn spent_in(&self, measured: Measured) -> f64 {
        self.correction.spent_s(measured)
    }

    /// Returns true if allocations are counted.
    pub(super) const fn counts_allocations(&self) -> bool {
        matches!(self.state, State::Full { .. } | State::Window { .. })
    }

    /// Returns true if probes must be disabled soon, or should already be: slow work has to wait.
    pub(super) fn is_time_critical(&self, now: Instant) -> bool {
        self.next <= now
            || match self.state {
                State::Full { .. } => now < self.began + START,
                State::Window { .. } => true,
                State::FreesOnly { until: Some(until), .. } => self.counts_frees && until < now + SOON,
                State::FreesOnly { .. } | State::Baseline { .. } | State::Waiting { .. } => false,
            }
    }

    /// Returns the actions due now. If there are any, [`Self::carried_out`] must follow.
    pub(super) fn advance(&mut self, now: Instant, measured: Measured) -> Vec<Action> {
        self.observe(measured);
        match self.state {
            State::Full { at_most } if !at_most.is_exceeded() => {
                self.next = now + at_most.until_check(self.load.threads());
                Vec::new()
            }
            State::Full { .. } => {
                self.budget.enter_windows();
                (self.state, self.next) = (State::Baseline { is_measured: false }, now + BASELINE);
                let mut actions =
                    vec![Action::EndWindow { stratum: now }, Action::Disable(Part::Allocations)];
                actions.extend(self.disable_frees(!self.load.can_always_count_frees(self.budget.rate())));
                actions
            }
            State::Baseline { .. } if self.budget.saved_s() < 0. => {
                let (shortest, longest) = REPAYMENT_CHECK_S;
                let left_s = self.load.repaid_in_s(self.budget.rate(), -self.budget.saved_s());
                self.next = now + Duration::from_secs_f64(left_s.clamp(shortest, longest));
                self.state = State::Baseline { is_measured: true };
                Vec::new()
            }
            State::Baseline { .. } => self.plan(now),
            State::Waiting { stratum_end, window, plan } if now >= window => {
                self.state = State::Window { stratum_end, plan };
                let frees = self.enable_frees();
                frees.into_iter().chain([Action::Enable(Part::Allocations), Action::BeginWindow]).collect()
            }
            State::Waiting { window, plan, .. } => self.keep_to(plan, now, window, false),
            State::Window { stratum_end, plan, .. } => {
                let until = now.checked_add(plan.count_frees_for);
                self.state = State::FreesOnly { stratum_end, until, plan };
                self.wait_for(plan, now, until.map_or(stratum_end, |until| until.min(stratum_end)));
                vec![Action::EndWindow { stratum: stratum_end }, Action::Disable(Part::Allocations)]
            }
            State::FreesOnly { stratum_end, .. } if now >= stratum_end => {
                self.load.mix_switch(mem::take(&mut self.switch_s));
                self.plan(now)
            }
            State::FreesOnly { stratum_end, until, plan } => {
                let is_over = until.is_some_and(|until| now >= until);
                let next = until.filter(|until| *until > now);
                self.keep_to(plan, now, next.map_or(stratum_end, |until| until.min(stratum_end)), is_over)
            }
        }
    }

    /// Charges the actions: the measurement over them, and the CPU seconds that jjleak itself took.
    pub(super) fn carried_out(&mut self, now: Instant, measured: Measured, own_s: f64) {
        let spent_s = self.charge(measured) + own_s;
        self.budget.charge(Stretch { spent_s: own_s, ..Stretch::default() });
        self.spent_s += own_s;
        match self.state {
            State::Window { plan, .. } => {
                self.switch_s += spent_s;
                self.next = now + plan.window;
            }
            State::Waiting { .. } | State::FreesOnly { .. } => self.switch_s += spent_s,
            State::Full { .. } | State::Baseline { .. } => {}
        }
    }

    /// Begins a stratum.
    fn plan(&mut self, now: Instant) -> Vec<Action> {
        let plan = self.load.plan(self.budget.rate(), self.budget.saved_s(), self.interval);
        tracing::debug!("{:?}, {:?}, {:?}: {plan:?}", self.load, self.budget, self.correction);
        self.interval = longer(self.interval);
        let room = plan.stratum.saturating_sub(plan.window);
        let window = now + room.mul_f64(self.random.f64());
        self.state = State::Waiting { stratum_end: now + plan.stratum, window, plan };
        let action = if plan.count_frees_for >= plan.stratum {
            self.enable_frees()
        } else {
            self.disable_frees(self.counts_frees)
        };
        self.wait_for(plan, now, window);
        action.into_iter().collect()
    }

    /// Stops counting frees when due, or when the program's rate of frees has risen so far that the bound would be lost.
    fn keep_to(&mut self, plan: Plan, now: Instant, next: Instant, is_over: bool) -> Vec<Action> {
        let action =
            self.disable_frees(self.counts_frees && (is_over || self.budget.saved_s() < -plan.max_debt_s));
        self.wait_for(plan, now, next);
        action.into_iter().collect()
    }

    fn disable_frees(&mut self, when: bool) -> Option<Action> {
        self.counts_frees &= !when;
        when.then_some(Action::Disable(Part::Frees))
    }

    fn enable_frees(&mut self) -> Option<Action> {
        let were_disabled = !self.counts_frees;
        self.counts_frees = true;
        were_disabled.then_some(Action::Enable(Part::Frees))
    }

    fn wait_for(&mut self, plan: Plan, now: Instant, instant: Instant) {
        let left_s = plan.max_debt_s + self.budget.saved_s();
        self.next = if self.counts_frees {
            instant.min(now + check_interval(left_s / self.load.threads()))
        } else {
            instant
        };
    }

    /// Charges a measurement; returns the CPU seconds taken of the process.
    fn charge(&mut self, measured: Measured) -> f64 {
        let stretch = self.correction.stretch(measured);
        self.budget.charge(stretch);
        if let State::Full { at_most } = &mut self.state {
            at_most.charge(Correction::AT_MOST.stretch(measured));
        }
        self.spent_s += stretch.spent_s;
        stretch.spent_s
    }

    /// Charges a measurement and updates the load from it.
    fn observe(&mut self, measured: Measured) {
        let spent_s = self.charge(measured);
        let Measured { over_s, cpu_s, .. } = measured;
        let over_s = over_s.max(1e-6);
        let own = (cpu_s - spent_s).max(0.) / over_s;
        let factor = self.correction.factor();
        let [allocations, frees] =
            [measured.allocations_s, measured.frees_s].map(|taken_s| factor * taken_s / over_s);
        match self.state {
            // The last check, which found the bound exceeded, shows what a window would cost.
            State::Full { .. } => self.load = Load { allocations, frees, own, switch_s: self.load.switch_s },
            State::Window { .. } => self.learn_from_window(measured),
            State::Baseline { is_measured: false } => self.load.own = own,
            State::Waiting { .. } | State::FreesOnly { .. } if self.counts_frees => {
                self.correction.learn(measured, self.load.own);
                self.load.mix_frees(frees, over_s);
                self.load.mix_own(own, over_s);
            }
            State::Baseline { is_measured: true } | State::Waiting { .. } | State::FreesOnly { .. } => {
                self.load.mix_own(own, over_s);
            }
        }
    }

    fn learn_from_window(&mut self, window: Measured) {
        let Measured { over_s, allocations_s, frees_s, .. } = window;
        self.correction.learn(window, self.load.own);
        let per_s = self.correction.factor() / over_s.max(1e-6);
        self.load.mix_allocations(allocations_s * per_s);
        self.load.mix_frees(frees_s * per_s, over_s);
    }
}

/// Interval after which this much can have been spent.
fn check_interval(left_s: f64) -> Duration {
    let (shortest, longest) = CHECK_S;
    Duration::from_secs_f64(left_s.clamp(shortest, longest))
}

impl Measured {
    /// CPU seconds taken by hits, by their prices.
    pub(super) fn priced_s(self) -> f64 {
        self.allocations_s + self.frees_s + self.others_s
    }
}

#[cfg(test)]
mod tests;
