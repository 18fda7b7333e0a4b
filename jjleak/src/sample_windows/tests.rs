//! Estimates from windows against the known truth of simulated programs.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "statistics"
)]

use fastrand::Rng;

use super::*;

const SECOND: u64 = 1_000_000_000;
/// Fifteen minutes of a program, in strata of 10 seconds with windows of one second.
const STRATA: u64 = 90;
const STRATUM: u64 = 10 * SECOND;
const WINDOW: u64 = SECOND;

/// Allocations per second, by time in seconds.
type Rate = fn(f64) -> f64;

const PROGRAMS: [(&str, Rate); 5] = [
    ("steady", |_| 30.),
    ("growing", |second| second / 30.),
    ("waves of five minutes", |second| 30. * (1. + (second / 300. * std::f64::consts::TAU).sin())),
    ("bursts of seven seconds each minute", |second| if second % 60. < 7. { 60. } else { 2. }),
    ("rare", |_| 1.),
];

/// Upper bound of all rates, for thinning.
const FASTEST: f64 = 60.;

/// Simulates random allocations at this rate and random windows. Returns the estimate, its standard error, and the truth.
fn run(rate: Rate, number: u64) -> (f64, f64, f64) {
    let mut random = Rng::with_seed(number);
    let end = STRATA * STRATUM;
    let mut windows = Windows { begin_ns: 0, ..Windows::default() };
    for stratum in 0..STRATA {
        let begin = stratum * STRATUM + (random.f64() * (STRATUM - WINDOW) as f64) as u64;
        windows.push(begin, begin + WINDOW, (stratum + 1) * STRATUM, Pace::default());
    }
    let weighted = windows.at(end);
    let mut counted = vec![Seen::default(); STRATA as usize];
    let (mut truth, mut estimate) = (0., 0.);
    let mut time = 0.;
    loop {
        // A Poisson process, thinned from one whose rate no program exceeds.
        time -= (1. - random.f64()).ln() / FASTEST;
        let time_ns = (time * SECOND as f64) as u64;
        if time_ns >= end {
            break;
        }
        if random.f64() >= rate(time) / FASTEST {
            continue;
        }
        let size = 16 << random.u32(..5);
        truth += size as f64;
        if let Some(window) = weighted.of(time_ns) {
            estimate += size as f64 * weighted.weight(window);
            counted[window].objects += 1;
            counted[window].bytes += size;
        }
    }
    let counted: Vec<_> = counted.into_iter().enumerate().collect();
    (estimate, weighted.variances(&counted).1.sqrt(), truth)
}

#[test]
fn estimates_are_within_three_standard_errors_and_unbiased() {
    /// Enough runs to rule out chance: of 200, four are off by bad luck where one in 300 is on average.
    const RUNS: u64 = 500;
    /// Requires 98.8 % within three standard errors; a normal distribution has 99.7 %, but totals of windows are not quite normal.
    const MOST_FAR: usize = 6;
    for (name, rate) in PROGRAMS {
        let runs: Vec<_> = (0..RUNS).map(|seed| run(rate, seed)).collect();
        let far =
            runs.iter().filter(|(estimate, error, truth)| (estimate - truth).abs() > 3. * error).count();
        assert!(far <= MOST_FAR, "{name}: {far} of {RUNS} are further off than three standard errors");
        let off = runs.iter().map(|(estimate, error, truth)| (estimate - truth) / error).sum::<f64>();
        let off = off / (RUNS as f64).sqrt();
        assert!(off.abs() < 4., "{name}: off by {off} standard errors of the mean");
        // Errors are overestimated where strata differ, but an error that is far too large would be useless.
        let squares = runs.iter().map(|(estimate, error, truth)| ((estimate - truth) / error).powi(2));
        let ratio = squares.sum::<f64>() / RUNS as f64;
        assert!((0.2..1.5).contains(&ratio), "{name}: variances are {ratio} of what they should be");
    }
}

#[test]
fn uninterrupted_counting_is_exact() {
    let mut windows = Windows::whole_from(5);
    assert!(windows.is_whole());
    let weighted = windows.at(100);
    assert_eq!((weighted.of(4), weighted.of(5)), (None, Some(0)));
    assert_eq!(weighted.fixed_weight(0), WEIGHT_ONE);
    windows.end_whole(100);
    windows.push(150, 160, 200, Pace::default());
    let weighted = windows.at(200);
    assert_eq!([99, 101, 155, 161].map(|time| weighted.of(time)), [Some(0), None, Some(1), None]);
    assert_eq!([0, 1].map(|window| weighted.fixed_weight(window)), [WEIGHT_ONE, 10 * WEIGHT_ONE]);
    let seen = Seen { objects: 1_000, bytes: 1 };
    assert_eq!(weighted.variances(&[(0, seen)]), (0., 0.));
    assert!(!windows.is_whole());
}

#[test]
fn the_last_window_also_stands_for_the_time_since() {
    let mut windows = Windows { begin_ns: 0, ..Windows::default() };
    windows.push(10, 20, 100, Pace::default());
    assert_eq!(windows.at(50).fixed_weight(0), 5 * WEIGHT_ONE);
    assert_eq!(windows.at(150).fixed_weight(0), 15 * WEIGHT_ONE);
    windows.push(150, 160, 200, Pace::default());
    assert_eq!(windows.at(200).fixed_weight(0), 10 * WEIGHT_ONE);
}

#[test]
fn excess_windows_are_merged() {
    let mut windows = Windows { begin_ns: 0, ..Windows::default() };
    for window in 0..=MAX_WINDOWS as u64 {
        windows.push(10 * window, 10 * window + 2, 10 * (window + 1), Pace::default());
    }
    assert_eq!(windows.len(), MAX_WINDOWS / 2 + 1);
    let weighted = windows.at(10 * (MAX_WINDOWS as u64 + 1));
    assert!((weighted.weight(0) - 5.).abs() < 1e-9 && (weighted.weight(MAX_WINDOWS / 2) - 5.).abs() < 1e-9);
}
