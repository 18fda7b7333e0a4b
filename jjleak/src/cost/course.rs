//! When allocations and frees are counted, so that what that costs stays below a bound: decides by what was measured, and does
//! nothing itself. Pure.
//!
//! As long as counting everything costs less, everything is counted. Otherwise allocations are counted in short windows,
//! drawn at random; frees are counted for a while longer, so that what outlives its window is told from what does not; then
//! all probes rest. How long a stratum and its window are is settled before the window by what is saved or owed then, and by what
//! earlier windows have cost ([`Load::plan`]); what is counted in a window changes neither, or estimates would not be right on average.

use std::mem;
use std::time::{Duration, Instant};

use super::budget::{FIRST_TARGET, FIRST_TURN_S, longer};
use super::correction::Correction;
use super::{Budget, Load, Plan, Stretch};
use crate::attach::Part;
use crate::draws::Draws;

/// How long the process is left alone to see what it takes itself, before the first window is planned.
const ALONE: Duration = Duration::from_millis(300);
/// Where something is owed then, it is left alone until that is paid back; when that is, is thought over as often.
const OWES_S: (f64, f64) = (0.01, 1.);
/// How often is looked at what is counted, in seconds: by what threads can have spent by then, within these bounds. A look takes some
/// ten microseconds.
const LOOKS_S: (f64, f64) = (0.01, 0.1);
/// For so long after the beginning nothing else is done that takes time: nobody knows yet what counting everything takes.
const AT_FIRST: Duration = Duration::from_millis(500);
/// Nor is anything begun that takes time when frees are to rest so soon.
const SOON: Duration = Duration::from_millis(100);

/// What was measured of a stretch of time; in seconds, of a core but for the first.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(clippy::struct_field_names, reason = "the unit")]
pub(super) struct Measured {
    /// Its length.
    pub(super) over_s: f64,
    /// What the process has taken, with probes and all.
    pub(super) cpu_s: f64,
    /// What allocations have taken of it, by their prices.
    pub(super) allocations_s: f64,
    /// What frees have.
    pub(super) frees_s: f64,
    /// What other hits have: of probes that were being put in or taken out.
    pub(super) others_s: f64,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// Probes are to be put in.
    Wake(Part),
    /// They are to be taken out.
    Rest(Part),
    /// They are in: what is allocated from now on is of a window.
    Begin,
    /// The window is over; its stratum ends then.
    End { stratum: Instant },
}

/// Where it is, and what is known.
pub(super) struct Course {
    state: State,
    /// When there is something to do next.
    next: Instant,
    began: Instant,
    budget: Budget,
    load: Load,
    correction: Correction,
    target: Duration,
    draws: Draws,
    /// CPU time that probes have taken, and putting them in and taking them out.
    spent_s: f64,
    /// What the stratum has taken so far beyond what was counted: to put probes in and take them out, and what was hit meanwhile.
    turn_s: f64,
    /// Whether frees are counted.
    follows: bool,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Everything is counted. The books as they are if hits take as much as they can: what they really take is not known, for
    /// the process is never seen without them.
    Whole { at_most: Budget },
    /// Nothing is planned yet. What it took to find out that not everything can be counted is paid back first, for a run can end
    /// at any time: only later windows can be anywhere in their strata.
    Alone { is_known: bool },
    /// Until the window of the stratum begins.
    Waiting { stratum_end: Instant, window: Instant, plan: Plan },
    /// Allocations are counted.
    Window { stratum_end: Instant, plan: Plan },
    /// Frees are, for so long.
    Following { stratum_end: Instant, until: Option<Instant>, plan: Plan },
}

impl Course {
    /// Begins, with everything counted from now on.
    pub(super) fn begin(budget: Budget, now: Instant, draws: Draws) -> Self {
        Self {
            state: State::Whole { at_most: budget },
            next: now + budget.until_look(1.),
            began: now,
            budget,
            load: Load { turn_s: FIRST_TURN_S, ..Load::default() },
            correction: Correction::default(),
            target: FIRST_TARGET,
            draws,
            spent_s: 0.,
            turn_s: 0.,
            follows: true,
        }
    }

    /// When [`Self::turn`] is to be called.
    pub(super) const fn next(&self) -> Instant {
        self.next
    }

    /// CPU time that has been taken of the process.
    pub(super) const fn spent_s(&self) -> f64 {
        self.spent_s
    }

    /// What has been taken since, of which this was measured.
    pub(super) fn of(&self, measured: Measured) -> f64 {
        self.correction.of(measured)
    }

    /// Whether allocations are counted.
    pub(super) const fn counts(&self) -> bool {
        matches!(self.state, State::Whole { .. } | State::Window { .. })
    }

    /// Whether something costly is to end soon, or should have ended, and nothing may come between that takes time.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        self.next <= now
            || match self.state {
                State::Whole { .. } => now < self.began + AT_FIRST,
                State::Window { .. } => true,
                State::Following { until: Some(until), .. } => self.follows && until < now + SOON,
                State::Following { .. } | State::Alone { .. } | State::Waiting { .. } => false,
            }
    }

    /// What is to be done now; [`Self::done`] must follow if that is anything.
    pub(super) fn turn(&mut self, now: Instant, measured: Measured) -> Vec<Deed> {
        self.look(measured);
        match self.state {
            State::Whole { at_most } if !at_most.is_exceeded() => {
                self.next = now + at_most.until_look(self.load.threads());
                Vec::new()
            }
            State::Whole { .. } => {
                self.budget.settle();
                (self.state, self.next) = (State::Alone { is_known: false }, now + ALONE);
                let mut deeds = vec![Deed::End { stratum: now }, Deed::Rest(Part::Allocations)];
                deeds.extend(self.frees_rest(!self.load.follows_always(self.budget.rate())));
                deeds
            }
            State::Alone { .. } if self.budget.saved_s() < 0. => {
                let (shortest, longest) = OWES_S;
                let left_s = self.load.pays_back_in_s(self.budget.rate(), -self.budget.saved_s());
                self.next = now + Duration::from_secs_f64(left_s.clamp(shortest, longest));
                self.state = State::Alone { is_known: true };
                Vec::new()
            }
            State::Alone { .. } => self.plan(now),
            State::Waiting { stratum_end, window, plan } if now >= window => {
                self.state = State::Window { stratum_end, plan };
                let frees = self.frees_wake();
                frees.into_iter().chain([Deed::Wake(Part::Allocations), Deed::Begin]).collect()
            }
            State::Waiting { window, plan, .. } => self.keep_to(plan, now, window, false),
            State::Window { stratum_end, plan, .. } => {
                let until = now.checked_add(plan.follow);
                self.state = State::Following { stratum_end, until, plan };
                self.wait_for(plan, now, until.map_or(stratum_end, |until| until.min(stratum_end)));
                vec![Deed::End { stratum: stratum_end }, Deed::Rest(Part::Allocations)]
            }
            State::Following { stratum_end, .. } if now >= stratum_end => {
                self.load.mix_turn(mem::take(&mut self.turn_s));
                self.plan(now)
            }
            State::Following { stratum_end, until, plan } => {
                let is_over = until.is_some_and(|until| now >= until);
                let next = until.filter(|until| *until > now);
                self.keep_to(plan, now, next.map_or(stratum_end, |until| until.min(stratum_end)), is_over)
            }
        }
    }

    /// What was to be done has been done: what was measured meanwhile, and what it has taken of jjleak's own CPU time.
    pub(super) fn done(&mut self, now: Instant, measured: Measured, own_s: f64) {
        let spent_s = self.book(measured) + own_s;
        self.budget.book(Stretch { spent_s: own_s, ..Stretch::default() });
        self.spent_s += own_s;
        match self.state {
            State::Window { plan, .. } => {
                self.turn_s += spent_s;
                self.next = now + plan.window;
            }
            State::Waiting { .. } | State::Following { .. } => self.turn_s += spent_s,
            State::Whole { .. } | State::Alone { .. } => {}
        }
    }

    /// A stratum begins.
    fn plan(&mut self, now: Instant) -> Vec<Deed> {
        let plan = self.load.plan(self.budget.rate(), self.budget.saved_s(), self.target);
        tracing::debug!("{:?}, {:?}, {:?}: {plan:?}", self.load, self.budget, self.correction);
        self.target = longer(self.target);
        let room = plan.stratum.saturating_sub(plan.window);
        let window = now + room.mul_f64(self.draws.unit());
        self.state = State::Waiting { stratum_end: now + plan.stratum, window, plan };
        let deed =
            if plan.follow >= plan.stratum { self.frees_wake() } else { self.frees_rest(self.follows) };
        self.wait_for(plan, now, window);
        deed.into_iter().collect()
    }

    /// Has frees rest when it is time for that, or when the program frees so much more than it did that the bound would be lost.
    fn keep_to(&mut self, plan: Plan, now: Instant, next: Instant, is_over: bool) -> Vec<Deed> {
        let deed = self.frees_rest(self.follows && (is_over || self.budget.saved_s() < -plan.most_owed_s));
        self.wait_for(plan, now, next);
        deed.into_iter().collect()
    }

    fn frees_rest(&mut self, rest: bool) -> Option<Deed> {
        self.follows &= !rest;
        rest.then_some(Deed::Rest(Part::Frees))
    }

    fn frees_wake(&mut self) -> Option<Deed> {
        let rested = !self.follows;
        self.follows = true;
        rested.then_some(Deed::Wake(Part::Frees))
    }

    fn wait_for(&mut self, plan: Plan, now: Instant, instant: Instant) {
        let left_s = plan.most_owed_s + self.budget.saved_s();
        self.next =
            if self.follows { instant.min(now + look(left_s / self.load.threads())) } else { instant };
    }

    /// Books a stretch; what it has taken.
    fn book(&mut self, measured: Measured) -> f64 {
        let stretch = self.correction.stretch(measured);
        self.budget.book(stretch);
        if let State::Whole { at_most } = &mut self.state {
            at_most.book(Correction::AT_MOST.stretch(measured));
        }
        self.spent_s += stretch.spent_s;
        stretch.spent_s
    }

    /// Books what was spent since the last look, and what that says of the load.
    fn look(&mut self, measured: Measured) {
        let spent_s = self.book(measured);
        let Measured { over_s, cpu_s, .. } = measured;
        let over_s = over_s.max(1e-6);
        let own = (cpu_s - spent_s).max(0.) / over_s;
        let factor = self.correction.factor();
        let [allocations, frees] =
            [measured.allocations_s, measured.frees_s].map(|taken_s| factor * taken_s / over_s);
        match self.state {
            // The last look, by which the bound was exceeded, tells what a window would cost.
            State::Whole { .. } => self.load = Load { allocations, frees, own, turn_s: self.load.turn_s },
            State::Window { .. } => self.learn_of_window(measured),
            State::Alone { is_known: false } => self.load.own = own,
            State::Waiting { .. } | State::Following { .. } if self.follows => {
                self.correction.learn(measured, self.load.own);
                self.load.mix_frees(frees, over_s);
                self.load.mix_own(own, over_s);
            }
            State::Alone { is_known: true } | State::Waiting { .. } | State::Following { .. } => {
                self.load.mix_own(own, over_s);
            }
        }
    }

    fn learn_of_window(&mut self, window: Measured) {
        let Measured { over_s, allocations_s, frees_s, .. } = window;
        self.correction.learn(window, self.load.own);
        let per_s = self.correction.factor() / over_s.max(1e-6);
        self.load.mix_allocations(allocations_s * per_s);
        self.load.mix_frees(frees_s * per_s, over_s);
    }
}

/// How long nothing has to be looked at until so much can have been spent.
fn look(left_s: f64) -> Duration {
    let (shortest, longest) = LOOKS_S;
    Duration::from_secs_f64(left_s.clamp(shortest, longest))
}

impl Measured {
    /// What hits have taken, by their prices.
    pub(super) fn priced_s(self) -> f64 {
        self.allocations_s + self.frees_s + self.others_s
    }
}

#[cfg(test)]
mod tests;
