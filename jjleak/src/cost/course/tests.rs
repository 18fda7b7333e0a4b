//! What is spent on programs whose cost is known, as a course decides it: in every span, and not just in the end.

use super::*;
use crate::sample_windows::Windows;

/// A program at a time of its own: what it takes itself, and what its calls would take in a second, in cores, by their prices.
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

/// What a program does at a time in seconds, and the next time at which that changes.
type Program<'a> = &'a dyn Fn(f64) -> (Rates, f64);

/// A run: how hits really cost, and how late jjleak gets to do things.
#[derive(Clone, Copy, Debug)]
struct World {
    /// Beside their prices.
    real: f64,
    late_s: f64,
    /// What putting probes in or taking them out takes.
    turn_s: f64,
}

/// May be owed before it is known that not everything can be counted.
const GRACE_S: f64 = 0.002;
const WORLD: World = World { real: 1.3, late_s: 0.001, turn_s: 0.000_15 };

/// What has been up to an instant, in seconds.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_field_names, reason = "the unit")]
struct Account {
    at_s: f64,
    own_s: f64,
    /// The same, at least that of what is taken for a process that does nothing.
    booked_s: f64,
    spent_s: f64,
    /// Allocations, counted or not, in what they would take.
    allocated_s: f64,
}

struct Outcome {
    accounts: Vec<Account>,
    windows: usize,
    longest_stratum_s: f64,
    /// Windows, that of the beginning included, up to half of the time, and what was allocated in each.
    counted: (Windows, Vec<f64>),
    /// Where the last of their strata ends.
    counted_s: f64,
}

/// What a program of one thread takes until then with these counted.
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
        account.booked_s += own_s.max(0.002 * over_s);
        account.spent_s += spent_s;
        account.allocated_s += over_s * speed * rates.allocations;
        measured.over_s += over_s;
        measured.cpu_s += own_s + spent_s;
        measured.allocations_s += over_s * speed * allocations;
        measured.frees_s += over_s * speed * frees;
    }
    (account, measured)
}

fn follow(program: Program<'_>, world: World, share: f64, seconds: f64) -> Outcome {
    follow_one(program, world, share, seconds, 7)
}

/// One of many courses that there can be.
fn follow_one(program: Program<'_>, world: World, share: f64, seconds: f64, seed: u64) -> Outcome {
    let base = Instant::now();
    let at = |at_s: f64| base + Duration::from_secs_f64(at_s);
    let mut course = Course::begin(Budget::new(share), base, Draws(seed));
    let mut late = Draws(seed + 1);
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
        let wanted_s = course.next().saturating_duration_since(base).as_secs_f64();
        let now_s = wanted_s.max(account.at_s) + world.late_s * late.unit();
        let (now, measured) = run(program, world, account, now_s, counted);
        let deeds = course.turn(at(now_s), measured);
        outcome.accounts.push(now);
        account = now;
        match course.state {
            State::Whole { .. } => began_s = now_s,
            State::Alone { .. } => outcome.has_lasted(now_s - began_s),
            State::Waiting { stratum_end, .. } => {
                outcome.has_lasted(stratum_end.saturating_duration_since(at(now_s)).as_secs_f64());
            }
            State::Window { .. } | State::Following { .. } => {}
        }
        if deeds.is_empty() {
            continue;
        }
        outcome.windows += usize::from(deeds.contains(&Deed::Begin));
        let turned_s = now_s + world.turn_s;
        let (mut now, measured) = run(program, world, account, turned_s, counted);
        for deed in &deeds {
            if let Deed::End { stratum } = deed
                && outcome.counted_s < seconds / 2.
            {
                let stratum = stratum.saturating_duration_since(base);
                outcome.counted_s = stratum.as_secs_f64();
                let ends = [window.at_s, now_s].map(|at_s| ns(Duration::from_secs_f64(at_s)));
                outcome.counted.0.push(ends[0], ends[1], ns(stratum));
                outcome.counted.1.push(account.allocated_s - window.allocated_s);
            }
            match deed {
                Deed::Wake(Part::Allocations) => counted.0 = true,
                Deed::Rest(Part::Allocations) => counted.0 = false,
                Deed::Wake(Part::Frees) => counted.1 = true,
                Deed::Rest(Part::Frees) => counted.1 = false,
                Deed::Begin => window = now,
                Deed::End { .. } => {}
            }
        }
        now.spent_s += world.turn_s;
        course.done(at(turned_s), measured, world.turn_s);
        outcome.accounts.push(now);
        account = now;
    }
    outcome
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}

impl Outcome {
    /// What is estimated to have been allocated, for what was, when the stratum has ended that there is in the middle of the run.
    fn estimate(&self) -> f64 {
        let end = self.accounts.iter().find(|account| account.at_s >= self.counted_s).unwrap();
        let weighted = self.counted.0.at(ns(Duration::from_secs_f64(self.counted_s)));
        let estimates =
            self.counted.1.iter().enumerate().map(|(window, seen)| weighted.weight(window) * seen);
        estimates.sum::<f64>() / end.allocated_s
    }

    fn has_lasted(&mut self, stratum_s: f64) {
        self.longest_stratum_s = self.longest_stratum_s.max(stratum_s);
    }

    /// The most that was spent of what the process has taken itself in any span that is at least as long, but for the millisecond
    /// by which it is found out that not everything can be counted.
    fn most_in_a_span(&self, span_s: f64, share: f64) -> f64 {
        let mut most: f64 = 0.;
        // What is left of what may be spent, up to an instant: it may not fall from one to another that is later by a span.
        let left = |account: &Account| share * account.booked_s - account.spent_s;
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
                most = most
                    .max((account.spent_s - first.spent_s - GRACE_S) / (account.booked_s - first.booked_s));
            }
        }
        most
    }

    /// The most that was spent in such a span beyond what might be, in seconds.
    fn most_beyond(&self, span_s: f64, share: f64) -> f64 {
        let left = |account: &Account| share * account.booked_s - account.spent_s;
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

    /// Spans as long as two strata, if these are longer.
    fn span_s(&self) -> f64 {
        (2. * self.longest_stratum_s).max(10.)
    }
}

/// Programs of every pace.
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
fn what_is_spent_stays_below_the_bound_in_every_ten_seconds_or_two_strata_whatever_the_pace() {
    for rates in paces() {
        for share in SHARES {
            let outcome = follow(&|_| (rates, f64::INFINITY), WORLD, share, 90.);
            let most = outcome.most_in_a_span(outcome.span_s(), share);
            assert!(most <= share * 1.001, "{rates:?}, {share}: {most} in {} s", outcome.span_s());
            let last = outcome.accounts.last().unwrap();
            let (spent, whole) =
                (last.spent_s / last.booked_s, WORLD.real * (rates.allocations + rates.frees) / rates.own);
            let lowest = (0.15 * share).min(0.9 * whole);
            assert!(spent >= lowest, "{rates:?}, {share}: only {spent} of {whole}");
        }
    }
}

/// Now this, now that, each for so many seconds.
fn by_turns(of: &[(f64, Rates)]) -> impl Fn(f64) -> (Rates, f64) + '_ {
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
fn what_a_change_costs_too_much_is_little_and_paid_back() {
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
            let outcome = follow(&by_turns(rates), WORLD, share, 600.);
            let beyond_s = outcome.most_beyond(10., share);
            assert!(beyond_s < 0.15, "{name}, {share}: {beyond_s} too much in a span");
            let most = outcome.most_in_a_span(300., share);
            assert!(most <= share, "{name}, {share}: {most} in five minutes");
        }
    }
}

#[test]
fn what_is_counted_all_the_time_is_counted_no_more_when_it_becomes_too_much() {
    let light = Rates { own: 0.5, allocations: 0.005, frees: 0.005 };
    let rates = [(300., light), (300., CALLS.times(0.5))];
    let outcome = follow(&by_turns(&rates), WORLD, 0.2, 600.);
    let windows_by = |at_s| follow(&by_turns(&rates), WORLD, 0.2, at_s).windows;
    assert_eq!(windows_by(299.), 0);
    assert!(windows_by(330.) > 5);
    let most = outcome.most_in_a_span(10., 0.2);
    assert!(most <= 0.2, "{most}");
}

#[test]
fn the_bound_is_kept_where_hits_take_more_than_their_prices() {
    for (real, after_s) in [(1., 0.), (1.3, 0.), (2., 0.), (3., 30.)] {
        let world = World { real, ..WORLD };
        let mut outcome = follow(&|_| (CALLS.times(0.03), f64::INFINITY), world, 0.2, 300.);
        outcome.accounts.retain(|account| account.at_s >= after_s);
        let most = outcome.most_in_a_span(10., 0.2);
        assert!(most <= 0.2, "{real}: {most}");
        assert!(most >= 0.08, "{real}: only {most}");
    }
}

#[test]
fn the_bound_is_kept_where_everything_is_counted_whatever_hits_really_take() {
    /// The bound, and what calls take in all by their prices, up to what is just below it.
    const SHARE: f64 = 0.2;
    let mut has_counted_all = false;
    for real in [1., 1.3, 2., 3.] {
        for priced in [0.02, 0.04, 0.05, 0.06, 0.08, 0.12, 0.15, 0.19] {
            let calls = 0.3 * priced;
            let rates = Rates { own: 0.3, allocations: calls * 0.6, frees: calls * 0.4 };
            let world = World { real, ..WORLD };
            let mut outcome = follow(&|_| (rates, f64::INFINITY), world, SHARE, 300.);
            has_counted_all |= outcome.windows == 0 && real > 2.;
            outcome.accounts.retain(|account| account.at_s >= 30.);
            let most = outcome.most_in_a_span(10., SHARE);
            assert!(most <= SHARE, "{real}, {priced}: {most}, with {} windows", outcome.windows);
        }
    }
    assert!(has_counted_all);
}

#[test]
fn what_is_estimated_of_a_program_with_bursts_is_right_on_average() {
    const RUNS: u32 = 300;
    const RUN_S: f64 = 600.;
    let quiet = Rates { own: 0.03, allocations: 0.002, frees: 0.001 };
    // All of what it does then is a thread's: it is no slower for being counted.
    let burst = Rates { own: 0.2, allocations: 0.5, frees: 0. };
    for burst_s in [0.011, 0.05, 0.2] {
        let bursts = [(1.37 - burst_s, quiet), (burst_s, burst)];
        let ratios: Vec<f64> = (0..RUNS)
            .map(|run| {
                // Each begins somewhere else.
                let shift_s = 1.37 / f64::from(RUNS) * f64::from(run);
                let program = by_turns(&bursts);
                let shifted = |at_s: f64| {
                    let (rates, change_s) = program(at_s + shift_s);
                    (rates, (change_s - shift_s).max(at_s + 1e-9))
                };
                follow_one(&shifted, WORLD, 0.2, RUN_S, 1_000_003 * u64::from(run)).estimate()
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
fn the_bound_is_kept_on_a_busy_machine() {
    let world = World { late_s: 0.01, ..WORLD };
    for share in [0.04, 0.2] {
        let most =
            follow(&|_| (CALLS.times(0.03), f64::INFINITY), world, share, 300.).most_in_a_span(10., share);
        assert!(most <= share, "{share}: {most}");
    }
}

#[test]
fn nothing_that_takes_time_is_begun_while_something_costly_is_to_end() {
    let base = Instant::now();
    let mut course = Course::begin(Budget::new(0.2), base, Draws(7));
    // Also where that is late.
    assert!(course.is_pressed(base) && course.is_pressed(base + Duration::from_secs(60)));
    let (mut now, mut has_been_pressed, mut has_been_free) = (base, false, false);
    for _ in 0..1000 {
        let over_s = (course.next() - now).as_secs_f64();
        now = course.next();
        let calls_s = if course.counts() { 0.06 * over_s } else { 0. };
        let busy = Measured {
            over_s,
            cpu_s: 0.04 * over_s + calls_s,
            allocations_s: calls_s,
            ..Measured::default()
        };
        if !course.turn(now, busy).is_empty() {
            course.done(now, Measured::default(), 0.);
        }
        match course.state {
            State::Window { .. } => {
                assert!(course.is_pressed(now));
                has_been_pressed = true;
            }
            State::Waiting { .. } => has_been_free |= !course.is_pressed(now),
            _ => {}
        }
    }
    assert!(has_been_pressed && has_been_free);
}
