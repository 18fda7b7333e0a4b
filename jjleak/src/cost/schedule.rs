//! Schedule of counting allocations and frees so that the overhead stays below a bound. Decides from measurements and does
//! nothing itself. Pure.
//!
//! Everything is counted as long as that costs less than the bound. Otherwise allocations are counted in short windows at
//! random times, and all frees where the bound has room for them: live blocks are known only if no free is missed. Where it
//! has none, frees are counted in windows only, to know what they cost. The lengths of a stratum and its window are fixed
//! before the window, from the savings or debt at that time and the cost of earlier windows ([`Load::plan`]). What a window
//! counts changes neither, or estimates would be biased.

use std::mem;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::budget::{FIRST_INTERVAL, FIRST_SWITCH_S, longer};
use super::correction::Correction;
use super::{Budget, Load, Plan, Stretch};
use crate::attach::Part;

/// Length of the baseline measurement without probes, before the first window is planned.
const BASELINE: Duration = Duration::from_millis(300);
/// Time for which everything must have been counted for its figures to be kept. Otherwise the baseline is measured without
/// any probes, and the figures start over after it.
const WORTH_KEEPING: Duration = Duration::from_secs(10);
/// Bounds of the interval between checks while a debt is being repaid, in seconds.
const REPAYMENT_CHECK_S: (f64, f64) = (0.01, 1.);
/// Bounds of the interval between checks while something is counted, in seconds, derived from what threads can spend until
/// then. A check takes some ten microseconds.
const CHECK_S: (f64, f64) = (0.01, 0.1);
/// Time after the start in which slow work is deferred: the cost of counting everything is not known yet.
const START: Duration = Duration::from_millis(500);

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
    /// Frees are followed from now on; their probes are enabled. Earlier blocks may have been freed.
    FollowFrees,
    /// Frees are missed from now on.
    LoseFrees,
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
    /// True if no free has been missed since the figures began.
    follows_frees: bool,
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
    /// Waits for the end of the stratum.
    After { stratum_end: Instant, plan: Plan },
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
            follows_frees: true,
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

    /// Bound at which frees could be followed, as a share of the process's own CPU time; `None` if they are.
    pub(super) fn needed_share(&self) -> Option<f64> {
        (!self.follows_frees).then(|| self.load.needed_share())
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
                State::After { .. } | State::Baseline { .. } | State::Waiting { .. } => false,
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
                // The real cost of hits is not known yet: follow frees only if they fit at the highest price.
                let highest =
                    self.load.with_frees_at(Correction::AT_MOST.factor() / self.correction.factor());
                let keeps = now >= self.began + WORTH_KEEPING;
                if !keeps || !highest.can_follow_frees(self.budget.share(), true) {
                    actions.extend(self.lose_frees());
                }
                actions
            }
            State::Baseline { .. } if self.budget.saved_s() < 0. => {
                let (shortest, longest) = REPAYMENT_CHECK_S;
                let left_s = self.load.repaid_in_s(self.budget.rate(), -self.budget.saved_s());
                self.next = now + Duration::from_secs_f64(left_s.clamp(shortest, longest));
                self.state = State::Baseline { is_measured: true };
                Vec::new()
            }
            State::Baseline { .. } => self.plan(now, true),
            State::Waiting { stratum_end, window, plan } if now >= window => {
                self.state = State::Window { stratum_end, plan };
                let mut actions = self.enable_frees();
                actions.extend([Action::Enable(Part::Allocations), Action::BeginWindow]);
                actions
            }
            State::Waiting { window, plan, .. } => self.keep_to(plan, now, window),
            State::Window { stratum_end, plan, .. } => {
                self.state = State::After { stratum_end, plan };
                self.wait_for(plan, now, stratum_end);
                let mut actions =
                    vec![Action::EndWindow { stratum: stratum_end }, Action::Disable(Part::Allocations)];
                if !self.follows_frees {
                    actions.extend(self.disable_frees());
                }
                actions
            }
            State::After { stratum_end, .. } if now >= stratum_end => {
                self.load.mix_switch(mem::take(&mut self.switch_s));
                self.plan(now, self.follows_frees)
            }
            State::After { stratum_end, plan } => self.keep_to(plan, now, stratum_end),
        }
    }

    /// Charges the actions: the measurement over them, and the CPU seconds that jjleak itself took.
    pub(super) fn carried_out(&mut self, now: Instant, measured: Measured, own_s: f64) {
        // Frees that are followed cost the same without a switch.
        let frees_s = if self.follows_frees { self.correction.factor() * measured.frees_s } else { 0. };
        let spent_s = self.charge(measured) - frees_s + own_s;
        self.budget.charge(Stretch { spent_s: own_s, ..Stretch::default() });
        self.spent_s += own_s;
        match self.state {
            State::Window { plan, .. } => {
                self.switch_s += spent_s;
                self.next = now + plan.window;
            }
            State::Waiting { .. } | State::After { .. } => self.switch_s += spent_s,
            State::Full { .. } | State::Baseline { .. } => {}
        }
    }

    /// Begins a stratum. If there is nothing to lose by it, `tries_frees` follows frees as if they had been followed before.
    fn plan(&mut self, now: Instant, tries_frees: bool) -> Vec<Action> {
        let (share, saved_s) = (self.budget.share(), self.budget.saved_s());
        let plan = self.load.plan(share, saved_s, self.interval, tries_frees);
        self.budget.pay_for_frees(if plan.follows_frees { self.load.frees_share() } else { 0. });
        tracing::debug!("{:?}, {:?}, {:?}: {plan:?}", self.load, self.budget, self.correction);
        self.interval = longer(self.interval);
        let room = plan.stratum.saturating_sub(plan.window);
        let window = now + room.mul_f64(self.random.f64());
        self.state = State::Waiting { stratum_end: now + plan.stratum, window, plan };
        let actions = match (self.follows_frees, plan.follows_frees) {
            (true, false) => self.lose_frees(),
            (false, true) => self.follow_frees(),
            (true, true) | (false, false) => Vec::new(),
        };
        self.wait_for(plan, now, window);
        actions
    }

    /// Gives up frees when the program's rate of them has risen so far that the bound would be lost.
    fn keep_to(&mut self, plan: Plan, now: Instant, next: Instant) -> Vec<Action> {
        let is_lost = self.follows_frees && self.budget.saved_s() < -plan.max_debt_s;
        let actions = if is_lost { self.lose_frees() } else { Vec::new() };
        self.wait_for(plan, now, next);
        actions
    }

    fn lose_frees(&mut self) -> Vec<Action> {
        self.follows_frees = false;
        let mut actions = vec![Action::LoseFrees];
        actions.extend(self.disable_frees());
        actions
    }

    fn follow_frees(&mut self) -> Vec<Action> {
        self.follows_frees = true;
        let mut actions = self.enable_frees();
        actions.push(Action::FollowFrees);
        actions
    }

    fn disable_frees(&mut self) -> Option<Action> {
        mem::take(&mut self.counts_frees).then_some(Action::Disable(Part::Frees))
    }

    fn enable_frees(&mut self) -> Vec<Action> {
        let were_enabled = mem::replace(&mut self.counts_frees, true);
        if were_enabled { Vec::new() } else { vec![Action::Enable(Part::Frees)] }
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
            State::Full { .. } => {
                self.load =
                    Load { allocations, frees, own, own_beside_frees: own, switch_s: self.load.switch_s };
            }
            State::Window { .. } => self.learn_from_window(measured, own),
            State::Baseline { is_measured: false } => self.load.own = own,
            State::Waiting { .. } | State::After { .. } if self.counts_frees => {
                self.correction.learn(measured, self.load.own);
                self.load.mix_frees(frees, own, over_s);
                self.load.mix_own(own, over_s);
            }
            State::Baseline { is_measured: true } | State::Waiting { .. } | State::After { .. } => {
                self.load.mix_own(own, over_s);
            }
        }
    }

    fn learn_from_window(&mut self, window: Measured, own: f64) {
        let Measured { over_s, allocations_s, frees_s, .. } = window;
        self.correction.learn(window, self.load.own);
        let per_s = self.correction.factor() / over_s.max(1e-6);
        self.load.mix_allocations(allocations_s * per_s);
        if self.follows_frees {
            self.load.mix_frees(frees_s * per_s, own, over_s);
        } else {
            self.load.mix_frees_of_window(frees_s * per_s, own);
        }
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
