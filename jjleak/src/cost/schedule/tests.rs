//! Schedules for simulated programs of known cost: the bound holds in every span, not just in the end.

mod following;

use super::*;
use crate::sample_windows::{Pace, Windows};

/// Rates of a program while it runs: its own CPU usage and the priced cost of its calls, in cores.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    own: f64,
    allocations: f64,
    frees: f64,
}

impl Rates {
    fn times(self, factor: f64) -> Self {
        Self { own: factor * self.own, allocations: factor * self.allocations, frees: factor * self.frees }
    }
}

/// Rates of a program at a time in seconds, and the time of their next change.
type Program<'a> = &'a dyn Fn(f64) -> (Rates, f64);

/// Environment of a run.
#[derive(Clone, Copy, Debug)]
struct World {
    /// Real cost of hits over their prices.
    real: f64,
    late_s: f64,
    /// Cost of enabling or disabling probes, in seconds.
    switch_s: f64,
}

/// Debt allowed before counting everything ends.
const GRACE_S: f64 = 0.002;
const WORLD: World = World { real: 1.3, late_s: 0.001, switch_s: 0.000_15 };

/// Cumulative figures up to an instant, in seconds.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "the unit")]
struct Account {
    at_s: f64,
    own_s: f64,
    /// Own CPU time, with the minimum that is assumed of an idle process.
    credited_s: f64,
    spent_s: f64,
    /// Priced cost of all allocations, counted or not.
    allocated_s: f64,
}

struct Outcome {
    accounts: Vec<Account>,
    windows: usize,
    longest_stratum_s: f64,
    /// Windows in the first half of the run, the initial one included, and what was allocated in each.
    counted: (Windows, Vec<f64>),
    /// End of the last of their strata.
    counted_s: f64,
}

/// Runs a program with one thread until an instant, with these calls counted.
fn run(
    program: Program<'_>,
    world: World,
    from: Account,
    until_s: f64,
    counted: (bool, bool),
) -> (Account, Measured) {
    let (mut account, mut measured) = (from, Measured::default());
    while account.at_s < until_s {
        let (rates, change_s) = program(account.at_s);
        let over_s = change_s.min(until_s) - account.at_s;
        let [allocations, frees] = [(counted.0, rates.allocations), (counted.1, rates.frees)]
            .map(|(is_counted, cores)| f64::from(u8::from(is_counted)) * cores);
        let real = world.real * (allocations + frees);
        let speed = (1. / (rates.own + real)).min(1.);
        let (own_s, spent_s) = (over_s * speed * rates.own, over_s * speed * real);
        account.at_s = change_s.min(until_s);
        account.own_s += own_s;
        account.credited_s += own_s.max(0.002 * over_s);
        account.spent_s += spent_s;
        account.allocated_s += over_s * speed * rates.allocations;
        measured.over_s += over_s;
        measured.cpu_s += own_s + spent_s;
        measured.allocations_s += over_s * speed * allocations;
        measured.frees_s += over_s * speed * frees;
    }
    (account, measured)
}

/// Whether allocations and frees are counted after an action.
fn carry_out(action: Action, (allocations, frees): (bool, bool)) -> (bool, bool) {
    match action {
        Action::Enable(Part::Allocations) => (true, frees),
        Action::Disable(Part::Allocations) => (false, frees),
        Action::Enable(Part::Frees) => (allocations, true),
        Action::Disable(Part::Frees) => (allocations, false),
        _ => (allocations, frees),
    }
}

fn simulate(program: Program<'_>, world: World, share: f64, seconds: f64) -> Outcome {
    simulate_seed(program, world, share, seconds, 7)
}

/// One of many courses that there can be.
fn simulate_seed(program: Program<'_>, world: World, share: f64, seconds: f64, seed: u64) -> Outcome {
    let base = Instant::now();
    let at = |at_s: f64| base + Duration::from_secs_f64(at_s);
    let mut schedule = Schedule::begin(Budget::new(share), base, Rng::with_seed(seed));
    let mut late = Rng::with_seed(seed + 1);
    let mut outcome = Outcome {
        accounts: vec![Account::default()],
        windows: 0,
        longest_stratum_s: 0.,
        counted: (Windows::default(), Vec::new()),
        counted_s: 0.,
    };
    let mut counted = (true, true);
    let mut account = Account::default();
    // What there was when the window began.
    let mut window = account;
    // The first stratum.
    let mut began_s = 0.;
    while account.at_s < seconds {
        let wanted_s = schedule.next().saturating_duration_since(base).as_secs_f64();
        let now_s = wanted_s.max(account.at_s) + world.late_s * late.f64();
        let (now, measured) = run(program, world, account, now_s, counted);
        let actions = schedule.advance(at(now_s), measured);
        outcome.accounts.push(now);
        account = now;
        match schedule.state {
            State::Full { .. } => began_s = now_s,
            State::Baseline { .. } => outcome.note_stratum(now_s - began_s),
            State::Waiting { stratum_end, .. } => {
                outcome.note_stratum(stratum_end.saturating_duration_since(at(now_s)).as_secs_f64());
            }
            State::Window { .. } | State::After { .. } => {}
        }
        if actions.is_empty() {
            continue;
        }
        outcome.windows += usize::from(actions.contains(&Action::BeginWindow));
        let turned_s = now_s + world.switch_s;
        let (mut now, measured) = run(program, world, account, turned_s, counted);
        for action in &actions {
            if let Action::EndWindow { stratum } = action
                && outcome.counted_s < seconds / 2.
            {
                let stratum = stratum.saturating_duration_since(base);
                outcome.counted_s = stratum.as_secs_f64();
                let ends = [window.at_s, now_s].map(|at_s| ns(Duration::from_secs_f64(at_s)));
                outcome.counted.0.push(ends[0], ends[1], ns(stratum), Pace::default());
                outcome.counted.1.push(account.allocated_s - window.allocated_s);
            }
            counted = carry_out(*action, counted);
            if *action == Action::BeginWindow {
                window = now;
            }
        }
        now.spent_s += world.switch_s;
        schedule.carried_out(at(turned_s), measured, world.switch_s);
        outcome.accounts.push(now);
        account = now;
    }
    outcome
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

impl Outcome {
    /// Estimated over real cost of all allocations, at the end of the stratum in the middle of the run.
    fn estimate(&self) -> f64 {
        let end = self.accounts.iter().find(|account| account.at_s >= self.counted_s).unwrap();
        let weighted = self.counted.0.at(ns(Duration::from_secs_f64(self.counted_s)));
        let estimates =
            self.counted.1.iter().enumerate().map(|(window, seen)| weighted.weight(window) * seen);
        estimates.sum::<f64>() / end.allocated_s
    }

    fn note_stratum(&mut self, stratum_s: f64) {
        self.longest_stratum_s = self.longest_stratum_s.max(stratum_s);
    }

    /// Highest share of the process's own CPU time that was spent in any span at least this long, apart from the grace until
    /// counting everything ends.
    fn most_in_a_span(&self, span_s: f64, share: f64) -> f64 {
        let mut most: f64 = 0.;
        // The unspent budget must not fall between two instants that are a span apart.
        let left = |account: &Account| share * account.credited_s - account.spent_s;
        let mut begin = 0;
        let mut richest = 0;
        for (end, account) in self.accounts.iter().enumerate() {
            while begin < end && account.at_s - self.accounts[begin].at_s >= span_s {
                if left(&self.accounts[begin]) > left(&self.accounts[richest]) {
                    richest = begin;
                }
                begin += 1;
            }
            if begin > 0 {
                let first = self.accounts[richest];
                most = most.max(
                    (account.spent_s - first.spent_s - GRACE_S) / (account.credited_s - first.credited_s),
                );
            }
        }
        most
    }

    /// Largest amount spent beyond the budget in any such span, in seconds.
    fn most_beyond(&self, span_s: f64, share: f64) -> f64 {
        let left = |account: &Account| share * account.credited_s - account.spent_s;
        let (mut most, mut richest, mut begin) = (f64::NEG_INFINITY, f64::NEG_INFINITY, 0);
        for (end, account) in self.accounts.iter().enumerate() {
            while begin < end && account.at_s - self.accounts[begin].at_s >= span_s {
                richest = richest.max(left(&self.accounts[begin]));
                begin += 1;
            }
            most = most.max(richest - left(account));
        }
        most
    }

    /// Span over which the bound must hold: ten seconds, or two strata if those are longer.
    fn span_s(&self) -> f64 {
        (2. * self.longest_stratum_s).max(10.)
    }
}

/// Programs from idle to busy, and from hardly allocating to nothing else.
fn paces() -> impl Iterator<Item = Rates> {
    let owns = [0.005, 0.03, 0.5, 1.];
    let calls = [0.001, 0.05, 0.5, 3.4, 10., 100.];
    let frees = [0., 0.3, 0.6];
    owns.into_iter().flat_map(move |own| {
        calls.into_iter().flat_map(move |calls| {
            frees.map(|frees| Rates {
                own,
                allocations: own * calls * (1. - frees),
                frees: own * calls * frees,
            })
        })
    })
}

const SHARES: [f64; 5] = [0.01, 0.04, 0.2, 0.5, 1.];

#[test]
fn spending_stays_below_the_bound_in_every_ten_seconds_or_two_strata_at_any_rate() {
    for rates in paces() {
        for share in SHARES {
            let outcome = simulate(&|_| (rates, f64::INFINITY), WORLD, share, 90.);
            let most = outcome.most_in_a_span(outcome.span_s(), share);
            assert!(most <= share * 1.001, "{rates:?}, {share}: {most} in {} s", outcome.span_s());
            let last = outcome.accounts.last().unwrap();
            let (spent, whole) =
                (last.spent_s / last.credited_s, WORLD.real * (rates.allocations + rates.frees) / rates.own);
            let lowest = (0.1 * share).min(0.9 * whole);
            assert!(spent >= lowest, "{rates:?}, {share}: only {spent} of {whole}");
        }
    }
}

/// A program that cycles through these rates, each for so many seconds.
fn cycle(of: &[(f64, Rates)]) -> impl Fn(f64) -> (Rates, f64) + '_ {
    let period_s: f64 = of.iter().map(|(seconds, _)| seconds).sum();
    move |at_s| {
        let mut begin_s = (at_s / period_s).floor() * period_s;
        for (seconds, rates) in of {
            begin_s += seconds;
            if at_s < begin_s {
                return (*rates, begin_s);
            }
        }
        (of[0].1, begin_s + of[0].0)
    }
}

const CALLS: Rates = Rates { own: 1., allocations: 2., frees: 1.4 };

#[test]
fn a_change_of_rate_overspends_little_and_is_repaid() {
    let quiet = CALLS.times(0.01);
    let programs: [(&str, &[(f64, Rates)]); 7] = [
        ("bursts", &[(19.8, quiet), (0.2, CALLS)]),
        ("long bursts", &[(59., quiet), (1., CALLS)]),
        ("many bursts", &[(0.9, quiet), (0.1, CALLS.times(0.3))]),
        ("ten times as much, and back", &[(30., CALLS.times(0.03)), (30., CALLS.times(0.3))]),
        ("the same, faster", &[(7., CALLS.times(0.03)), (7., CALLS.times(0.3))]),
        ("idle, then busy", &[(60., Rates::default()), (1., CALLS)]),
        (
            "frees at last",
            &[(9., Rates { frees: 0., ..CALLS.times(0.1) }), (1., Rates { allocations: 0., ..CALLS })],
        ),
    ];
    for (name, rates) in programs {
        for share in [0.04, 0.2] {
            let outcome = simulate(&cycle(rates), WORLD, share, 600.);
            let beyond_s = outcome.most_beyond(10., share);
            assert!(beyond_s < 0.15, "{name}, {share}: {beyond_s} too much in a span");
            let most = outcome.most_in_a_span(300., share);
            assert!(most <= share, "{name}, {share}: {most} in five minutes");
        }
    }
}

#[test]
fn a_program_that_becomes_too_busy_is_switched_to_windows() {
    let light = Rates { own: 0.5, allocations: 0.005, frees: 0.005 };
    let rates = [(300., light), (300., CALLS.times(0.5))];
    let outcome = simulate(&cycle(&rates), WORLD, 0.2, 600.);
    let windows_by = |at_s| simulate(&cycle(&rates), WORLD, 0.2, at_s).windows;
    assert_eq!(windows_by(299.), 0);
    assert!(windows_by(330.) > 5);
    let most = outcome.most_in_a_span(10., 0.2);
    assert!(most <= 0.2, "{most}");
}

#[test]
fn the_bound_holds_when_hits_cost_more_than_their_prices() {
    for (real, after_s) in [(1., 0.), (1.3, 0.), (2., 0.), (3., 30.)] {
        let world = World { real, ..WORLD };
        let mut outcome = simulate(&|_| (CALLS.times(0.03), f64::INFINITY), world, 0.2, 300.);
        outcome.accounts.retain(|account| account.at_s >= after_s);
        let most = outcome.most_in_a_span(10., 0.2);
        assert!(most <= 0.2, "{real}: {most}");
        assert!(most >= 0.08, "{real}: only {most}");
    }
}

#[test]
fn the_bound_holds_while_everything_is_counted_whatever_hits_really_cost() {
    /// The bound. Priced costs of all calls go up to just below it.
    const SHARE: f64 = 0.2;
    let mut has_counted_all = false;
    for real in [1., 1.3, 2., 3.] {
        for priced in [0.02, 0.04, 0.05, 0.06, 0.08, 0.12, 0.15, 0.19] {
            let calls = 0.3 * priced;
            let rates = Rates { own: 0.3, allocations: calls * 0.6, frees: calls * 0.4 };
            let world = World { real, ..WORLD };
            let mut outcome = simulate(&|_| (rates, f64::INFINITY), world, SHARE, 300.);
            has_counted_all |= outcome.windows == 0 && real > 2.;
            outcome.accounts.retain(|account| account.at_s >= 30.);
            let most = outcome.most_in_a_span(10., SHARE);
            assert!(most <= SHARE, "{real}, {priced}: {most}, with {} windows", outcome.windows);
        }
    }
    assert!(has_counted_all);
}

#[test]
fn estimates_of_a_program_with_bursts_are_unbiased() {
    const RUNS: u32 = 300;
    const RUN_S: f64 = 600.;
    let quiet = Rates { own: 0.03, allocations: 0.002, frees: 0.001 };
    // The burst takes less than a thread, so counting does not slow it down.
    let burst = Rates { own: 0.2, allocations: 0.5, frees: 0. };
    for burst_s in [0.011, 0.05, 0.2] {
        let bursts = [(1.37 - burst_s, quiet), (burst_s, burst)];
        let ratios: Vec<f64> = (0..RUNS)
            .map(|run| {
                // Each run starts at another phase.
                let shift_s = 1.37 / f64::from(RUNS) * f64::from(run);
                let program = cycle(&bursts);
                let shifted = |at_s: f64| {
                    let (rates, change_s) = program(at_s + shift_s);
                    (rates, (change_s - shift_s).max(at_s + 1e-9))
                };
                simulate_seed(&shifted, WORLD, 0.2, RUN_S, 1_000_003 * u64::from(run)).estimate()
            })
            .collect();
        let count = f64::from(RUNS);
        let mean = ratios.iter().sum::<f64>() / count;
        let variance = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (count - 1.);
        let error = (variance / count).sqrt();
        assert!(error < 0.04, "{burst_s}: too few to tell: {error}");
        assert!((mean - 1.).abs() < 4. * error, "{burst_s}: {mean}, give or take {error}");
    }
}

#[test]
fn the_bound_holds_on_a_busy_machine() {
    let world = World { late_s: 0.01, ..WORLD };
    for share in [0.04, 0.2] {
        let most =
            simulate(&|_| (CALLS.times(0.03), f64::INFINITY), world, share, 300.).most_in_a_span(10., share);
        assert!(most <= share, "{share}: {most}");
    }
}

#[test]
fn slow_work_is_deferred_while_probes_are_due_to_be_disabled() {
    let base = Instant::now();
    let mut schedule = Schedule::begin(Budget::new(0.2), base, Rng::with_seed(7));
    // Also when the check is late.
    assert!(schedule.is_time_critical(base) && schedule.is_time_critical(base + Duration::from_secs(60)));
    let (mut now, mut has_been_pressed, mut has_been_free) = (base, false, false);
    for _ in 0..1000 {
        let over_s = (schedule.next() - now).as_secs_f64();
        now = schedule.next();
        let calls_s = if schedule.counts_allocations() { 0.06 * over_s } else { 0. };
        let busy = Measured {
            over_s,
            cpu_s: 0.04 * over_s + calls_s,
            allocations_s: calls_s,
            ..Measured::default()
        };
        if !schedule.advance(now, busy).is_empty() {
            schedule.carried_out(now, Measured::default(), 0.);
        }
        match schedule.state {
            State::Window { .. } => {
                assert!(schedule.is_time_critical(now));
                has_been_pressed = true;
            }
            State::Waiting { .. } => has_been_free |= !schedule.is_time_critical(now),
            _ => {}
        }
    }
    assert!(has_been_pressed && has_been_free);
}
