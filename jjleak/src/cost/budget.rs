//! What may be spent on profiling a process, and how a stretch of time is to be spent. Pure.

use std::time::Duration;

/// A window is no longer: long against the time in which probes are put in, and short against what changes in a program.
const LONGEST_WINDOW: Duration = Duration::from_millis(200);
/// Nor shorter: timers are late by a millisecond, and putting probes in takes a third of one.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);
/// Blocks that are not freed so long after their window have survived.
const LONGEST_FOLLOW: Duration = Duration::from_secs(15);
/// Windows are to come about as often as this,
const USUAL_TARGET: Duration = Duration::from_secs(5);
/// if frees can be followed for so long then;
const SHORT_FOLLOW: Duration = Duration::from_millis(500);
/// else as often as this.
const LONGEST_TARGET: Duration = Duration::from_secs(20);
/// A window is no longer than this part of it.
const WINDOWS_IN_TARGET: u32 = 50;
/// The first ones come faster, and are shorter: they repay what it took to find out that not everything can be counted.
pub(super) const FIRST_TARGET: Duration = Duration::from_secs(1);
/// What a window is taken to cost beyond what is counted in it, before one has been measured: rather too much.
pub(super) const FIRST_TURN_S: f64 = 0.001;
/// What a new window counts for, beside all before it.
const NEWEST: f64 = 0.3;
/// A process that does nothing may be spent this share of a core on: else the first call after a silence would be too much.
const LEAST_CORES: f64 = 0.002;
/// May be owed before it is known what calls take, and how many there are: a thousand calls.
const GRACE_S: f64 = 0.001;
/// The same for who would rather pay that once than not have everything counted: what a JVM compiles at once is no burden.
const PATIENT_GRACE_S: f64 = 0.5;
/// Not more is saved up than in so many seconds: else a process that was quiet all day could be held up for an hour.
const SAVED_S: f64 = 10.;
/// How long everything is counted before that is judged again: by what a thread can have spent by then, within these bounds.
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
    /// How long its window has to wait until nothing is owed any more.
    pub wait: Duration,
    /// That of its window.
    pub window: Duration,
    /// How long frees are followed after the window; for longer than the stratum, all the time.
    pub follow: Duration,
    /// More may not be owed in it, in seconds of a core; else frees rest at once.
    pub most_owed_s: f64,
}

impl Plan {
    /// For all strata but the first: what is estimated from windows is only right if they can be anywhere.
    pub(super) const fn without_wait(self) -> Self {
        Self { wait: Duration::ZERO, ..self }
    }
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

    /// How to stay within the bound, with so much saved (or owed, if it is negative), when windows are to come about as often
    /// as `target`.
    ///
    /// A stratum is as long as it takes to save up what it costs, and to have as much left for the next one at its end: its
    /// window can be anywhere in it. Only where something is owed, as after finding out that not everything can be counted,
    /// the window waits until that is paid: a run can end at any time. That holds for the first alone.
    #[must_use]
    pub fn plan(&self, share: f64, saved_s: f64, target: Duration) -> Plan {
        let allowed = self.allowed(share);
        let target_s = target.as_secs_f64();
        // The first windows are short: what they cost is not known yet.
        let longest = (target / WINDOWS_IN_TARGET).clamp(SHORTEST_WINDOW, LONGEST_WINDOW);
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
            let follow = seconds((allowed * target_s - window_s) / self.frees).clamp(window, LONGEST_FOLLOW);
            (allowed, window, follow, window_s + self.frees * follow.as_secs_f64())
        };
        let to_save_s = (cost_s - saved_s).max(-cost_s / 2.);
        let stratum = seconds((cost_s + to_save_s) / income).max(2 * window);
        let wait = seconds(-saved_s / income).min(stratum.saturating_sub(2 * window));
        Plan { stratum, wait, window, follow, most_owed_s: 1.5 * (allowed * stratum.as_secs_f64() + cost_s) }
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
        mix(&mut self.own, own, weight(over_s));
    }

    pub(super) fn mix_frees(&mut self, frees: f64, over_s: f64) {
        mix(&mut self.frees, frees, weight(over_s));
    }
}

/// The next target, after one that this plan was made for.
pub(super) fn longer(target: Duration, plan: Plan) -> Duration {
    let longest = if plan.follow < SHORT_FOLLOW { LONGEST_TARGET } else { USUAL_TARGET };
    (2 * target).min(longest.max(target))
}

/// What a stretch of time counts for beside all before it: it is forgotten within seconds.
fn weight(over_s: f64) -> f64 {
    1. - (-over_s).exp()
}

fn mix(old: &mut f64, new: f64, weight: f64) {
    *old += weight * (new - *old);
}

fn seconds(seconds: f64) -> Duration {
    const HOUR_S: f64 = 3600.;
    Duration::from_secs_f64(seconds.clamp(0., HOUR_S))
}

/// What was saved up for counting, or is owed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Of what the process takes itself, this may be spent.
    share: f64,
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
        Self { share, saved_s: 0., grace_s: GRACE_S }
    }

    /// The same for who lets half a second be owed before not everything is counted: that is never paid back.
    #[must_use]
    pub const fn patient(share: f64) -> Self {
        Self { share, saved_s: 0., grace_s: PATIENT_GRACE_S }
    }

    /// Of what the process takes itself, what may be spent.
    #[must_use]
    pub const fn share(&self) -> f64 {
        self.share
    }

    /// Not everything is counted from now on. To pay half a second back can take longer than a profile.
    pub fn settle(&mut self) {
        if self.grace_s >= PATIENT_GRACE_S {
            self.saved_s = 0.;
        }
    }

    /// A stretch of time is over.
    pub fn book(&mut self, stretch: Stretch) {
        let own_s = stretch.own_s.max(LEAST_CORES * stretch.over_s);
        let saved_s = self.saved_s + self.share * own_s - stretch.spent_s;
        // What is saved counts for what the process takes now.
        let rate = self.share * own_s / stretch.over_s.max(1e-6);
        self.saved_s = saved_s.min((rate * SAVED_S).max(self.saved_s)).min(SAVED_S * self.share);
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

    /// How long everything can be counted before that is judged again.
    #[must_use]
    pub fn until_look(&self) -> Duration {
        let (shortest, longest) = LOOKS_S;
        Duration::from_secs_f64((self.saved_s + self.grace_s).clamp(shortest, longest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program, as it is: what it takes itself, and what its calls would cost in a second of its own.
    #[derive(Clone, Copy, Debug)]
    struct Program {
        own: f64,
        allocations: f64,
        frees: f64,
    }

    const TURN_S: f64 = 0.000_3;

    impl Program {
        /// What a stretch takes while these are counted. Calls come as fast as one thread gets to them.
        fn run(self, over_s: f64, allocations: bool, frees: bool) -> Stretch {
            let counted =
                f64::from(u8::from(allocations)) * self.allocations + f64::from(u8::from(frees)) * self.frees;
            let speed = (1. / (self.own + counted)).min(1.);
            Stretch { over_s, own_s: over_s * self.own * speed, spent_s: over_s * counted * speed }
        }
    }

    /// What is spent on it, as a share of what it takes itself, and how many windows there are: after so many seconds.
    fn bounded(program: Program, share: f64, at_s: f64) -> (f64, usize) {
        let mut budget = Budget::new(share);
        let mut load = Load { own: program.own, turn_s: TURN_S, ..Load::default() };
        let (mut time_s, mut own_s, mut spent_s, mut windows) = (0., 0., 0., 0);
        let mut book = |budget: &mut Budget, stretch: Stretch| {
            budget.book(stretch);
            (time_s, own_s, spent_s) =
                (time_s + stretch.over_s, own_s + stretch.own_s, spent_s + stretch.spent_s);
            (time_s >= at_s, spent_s / own_s)
        };
        loop {
            let stretch = program.run(budget.until_look().as_secs_f64(), true, true);
            let (is_over, spent) = book(&mut budget, stretch);
            if is_over {
                return (spent, windows);
            }
            if budget.is_exceeded() {
                break;
            }
        }
        let mut target = FIRST_TARGET;
        loop {
            let speed = (1. / (program.own + program.allocations + program.frees)).min(1.);
            load.allocations = program.allocations * speed;
            load.frees = program.frees * (1. / (program.own + program.frees)).min(1.);
            let plan = load.plan(share, budget.saved_s(), target);
            target = longer(target, plan);
            windows += 1;
            let counted_s = plan.window.as_secs_f64();
            let rest_s = plan.stratum.as_secs_f64() - counted_s;
            let follow_s = plan.follow.as_secs_f64().min(rest_s);
            book(&mut budget, Stretch { spent_s: TURN_S, ..Stretch::default() });
            book(&mut budget, program.run(counted_s, true, true));
            book(&mut budget, program.run(follow_s, false, true));
            let (is_over, spent) = book(&mut budget, program.run(rest_s - follow_s, false, false));
            if is_over {
                return (spent, windows);
            }
        }
    }

    #[test]
    fn what_is_spent_stays_within_the_bound_whatever_a_program_does() {
        for own in [0.005, 0.03, 0.5, 1.] {
            for calls in [0.001, 0.05, 0.5, 10., 100.] {
                for frees in [0., 0.3, 0.6] {
                    for share in [0.01, 0.05, 0.2, 1.] {
                        let program =
                            Program { own, allocations: calls * (1. - frees), frees: calls * frees };
                        let (spent, windows) = bounded(program, share, 60.);
                        assert!(spent <= share * 1.01, "{program:?}, {share}: {spent} in {windows} windows");
                        let most = (program.allocations + program.frees) / own;
                        assert!(
                            spent >= (share * 0.3).min(most * 0.99),
                            "{program:?}, {share}: only {spent}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_bound_is_kept_after_the_first_seconds() {
        let paced = Program { own: 0.03, allocations: 0.07, frees: 0.04 };
        let (spent, windows) = bounded(paced, 0.2, 10.);
        assert!(spent <= 0.2 && windows >= 2, "{spent} in {windows} windows");
    }

    #[test]
    fn what_costs_less_than_the_bound_is_counted_all_the_time() {
        assert_eq!(bounded(Program { own: 0.5, allocations: 0.01, frees: 0.01 }, 0.05, 600.).1, 0);
    }

    #[test]
    fn a_quiet_day_is_no_licence_for_an_hour() {
        let mut budget = Budget::new(0.05);
        budget.book(Stretch { over_s: 86_400., own_s: 8_640., spent_s: 0. });
        assert!(budget.saved_s() <= 0.05 * SAVED_S, "{budget:?}");
        budget.book(Stretch { over_s: 1., own_s: 1., spent_s: 1. });
        assert!(budget.is_exceeded());
    }

    #[test]
    fn who_is_patient_has_everything_counted_through_a_busy_moment_and_owes_nothing_after_it() {
        let moment = Stretch { over_s: 1., own_s: 0.02, spent_s: 0.3 };
        let (mut strict, mut patient) = (Budget::new(0.1), Budget::patient(0.1));
        strict.book(moment);
        patient.book(moment);
        assert!(strict.is_exceeded() && !patient.is_exceeded());
        patient.book(moment);
        assert!(patient.is_exceeded());
        strict.settle();
        patient.settle();
        assert!(strict.saved_s() < -0.2 && patient.saved_s() >= 0.);
    }

    #[test]
    fn debts_are_not_forgotten() {
        let load = Load { allocations: 0.07, frees: 0.04, own: 0.03, turn_s: TURN_S };
        let target = Duration::from_secs(1);
        let (even, owing) = (load.plan(0.2, 0., target), load.plan(0.2, -0.6, target));
        let longer_s = owing.stratum.as_secs_f64() - even.stratum.as_secs_f64();
        assert!((longer_s - 0.6 / (0.2 * 0.03)).abs() < 1e-6, "{even:?}, {owing:?}");
        assert_eq!((even.wait, owing.wait), (Duration::ZERO, seconds(0.6 / (0.2 * 0.03))));
        assert_eq!(owing.without_wait(), Plan { wait: Duration::ZERO, ..owing });
    }

    #[test]
    fn frees_that_cost_more_than_is_allowed_rest_too() {
        let load = Load { allocations: 0.1, frees: 0.5, own: 0.3, turn_s: TURN_S };
        let plan = load.plan(0.05, 0., USUAL_TARGET);
        assert!(plan.follow < plan.stratum / 10, "{plan:?}");
        let light = Load { frees: 0.005, ..load };
        assert_eq!(light.plan(0.05, 0., USUAL_TARGET).follow, Duration::MAX);
    }
}
