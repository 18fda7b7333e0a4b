use proptest::prelude::*;

use super::*;
use crate::daemon::config::{Every, Span};

const MIB: u64 = 1 << 20;

fn config() -> Config {
    let mut config = Config::default();
    config.watch.warm_up = Span(Duration::ZERO);
    config
}

fn at(look: u64) -> Duration {
    Duration::from_secs(10 * look)
}

/// A case after so many looks.
fn watched(looks: u64, config: &Config, of: impl Fn(u64) -> Sample) -> Case {
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    (0..looks).for_each(|look| case.observe(at(look), of(look), config));
    case
}

fn resident(bytes: u64) -> Sample {
    Sample { resident: bytes, ..Sample::default() }
}

fn reason(case: &Case) -> &'static str {
    case.state().reason().map_or("none", Reason::name)
}

#[test]
fn one_that_grows_is_suspected_and_one_that_does_not_is_not() {
    let growing = watched(60, &config(), |look| resident(500 * MIB + look * MIB));
    assert_eq!(reason(&growing), "growth");
    let swinging = watched(600, &config(), |look| resident(500 * MIB + (look * 37 % 64) * MIB));
    assert_eq!(swinging.state(), State::Watching);
    let slow = watched(60, &config(), |look| resident(500 * MIB + look * 4096));
    assert_eq!(slow.state(), State::Watching);
}

#[test]
fn growth_at_the_start_of_a_program_is_none() {
    let mut config = config();
    config.watch.warm_up = Span(at(100));
    let mut case = watched(100, &config, |look| resident(look * 10 * MIB));
    (100..200).for_each(|look| case.observe(at(look), resident(1000 * MIB), &config));
    assert_eq!(case.state(), State::Watching);
}

#[test]
fn little_growth_matters_when_the_limit_is_near_or_memory_is_waited_for() {
    let of = |limit, pressure| move |look| Sample { resident: 500 * MIB + look * MIB / 10, limit, pressure };
    assert_eq!(reason(&watched(60, &config(), of(None, None))), "none");
    assert_eq!(reason(&watched(60, &config(), of(Some((100_000 * MIB, 90_000 * MIB)), None))), "none");
    assert_eq!(reason(&watched(60, &config(), of(Some((600 * MIB, 100 * MIB)), None))), "limit");
    assert_eq!(reason(&watched(60, &config(), of(Some((100_000 * MIB, 9_000 * MIB)), None))), "limit");
    assert_eq!(reason(&watched(60, &config(), of(None, Some(50.)))), "pressure");
    assert_eq!(
        reason(&watched(60, &config(), |_| Sample { resident: MIB, limit: None, pressure: Some(99.) })),
        "none"
    );
}

#[test]
fn without_any_reason_a_process_is_profiled_as_often_as_the_schedule_says() {
    let mut config = config();
    config.suspect.schedule = Every(Some(at(30)));
    let mut case = watched(30, &config, |_| resident(MIB));
    assert_eq!(case.state(), State::Watching);
    case.observe(at(30), resident(MIB), &config);
    assert_eq!(reason(&case), "schedule");
}

/// Grows, unless told not to, for so many looks from then.
fn grow(case: &mut Case, from: u64, looks: u64, config: &Config) {
    (from..from + looks).for_each(|look| case.observe(at(look), resident(500 * MIB + look * MIB), config));
}

/// For how many minutes it is left in peace after that.
fn back_off(case: &mut Case, now: Duration, is_profiled: bool, config: &Config) -> u64 {
    assert!(case.begin(now).is_some(), "{case:?}");
    case.end(now, is_profiled, config);
    let State::BackOff(until) = case.state() else { panic!("{case:?}") };
    until.saturating_sub(now).as_secs() / 60
}

#[test]
fn after_a_verdict_it_is_left_in_peace_twice_as_long_each_time() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    let mut look = 0;
    let mut back_offs = Vec::new();
    for _ in 0..8 {
        while !matches!(case.state(), State::Suspected(..)) {
            grow(&mut case, look, 1, &config);
            look += 1;
        }
        back_offs.push(back_off(&mut case, at(look), true, &config));
    }
    assert_eq!(back_offs, [30, 60, 120, 240, 480, 960, 1440, 1440]);
}

#[test]
fn after_a_long_time_without_a_suspicion_back_offs_begin_anew() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    case.rounds = 5;
    (0..8640).for_each(|look| case.observe(at(look), resident(MIB), &config));
    assert_eq!(case.rounds, 5);
    case.observe(at(8640), resident(MIB), &config);
    assert_eq!(case.rounds, 0);
}

#[test]
fn what_failed_or_was_asked_for_makes_no_back_off_longer() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    for look in 0..5 {
        assert!(case.request(at(look)));
        assert_eq!(back_off(&mut case, at(look), true, &config), 30);
    }
    let mut case = watched(60, &config, |look| resident(500 * MIB + look * MIB));
    assert_eq!(back_off(&mut case, at(60), false, &config), 30);
    grow(&mut case, 60, 200, &config);
    assert_eq!(back_off(&mut case, at(260), true, &config), 30);
}

#[test]
fn a_limit_or_pressure_that_cannot_wait_ends_a_back_off_after_the_shortest() {
    let config = config();
    let shortest = config.profile.back_off.0.as_secs() / 10;
    let after = |looks: u64, limit, pressure| {
        let mut case = watched(60, &config, |look| resident(500 * MIB + look * MIB));
        case.rounds = 5;
        assert_eq!(back_off(&mut case, at(60), true, &config), 960);
        for look in 60..60 + looks {
            let sample = Sample { resident: 500 * MIB + look * MIB, limit, pressure };
            case.observe(at(look), sample, &config);
        }
        reason(&case)
    };
    let near = Some((2000 * MIB, 1000 * MIB));
    assert_eq!(after(shortest - 1, near, Some(99.)), "none");
    assert_eq!(after(shortest + 2, None, None), "none");
    assert_eq!(after(shortest + 2, near, None), "limit");
    assert_eq!(after(shortest + 2, None, Some(99.)), "pressure");
    // Almost all is taken, and the rest lasts for longer than the back-off: that is soon enough.
    assert_eq!(after(shortest + 2, Some((1 << 40, 80_000 * MIB)), None), "none");
}

#[test]
fn the_most_urgent_comes_first_and_then_who_waits_longest() {
    let suspected = |reason, since| State::Suspected(reason, at(since));
    let cases = [
        (1, suspected(Reason::Schedule, 0)),
        (2, suspected(Reason::Pressure(50.), 5)),
        (3, suspected(Reason::Pressure(60.), 4)),
        (4, suspected(Reason::Request, 9)),
        (5, State::Watching),
    ];
    assert_eq!(next(cases.into_iter(), 3), [4, 3, 2]);
    assert_eq!(next(cases.into_iter(), 0), [0; 0]);
}

#[test]
fn one_whose_profile_hangs_is_not_profiled_before_it_has_ended() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    assert!(case.request(at(0)) && case.begin(at(0)).is_some());
    case.give_up(at(60));
    (60..200).for_each(|look| case.observe(at(look), resident(look * 10 * MIB), &config));
    assert!(!case.request(at(200)));
    assert_eq!(case.state(), State::Stuck(at(60)));
    case.end(at(200), true, &config);
    assert!(matches!(case.state(), State::BackOff(_)));
}

#[derive(Debug, Clone)]
enum Step {
    Look(u64),
    Request,
    Begin,
    GiveUp,
    End,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..1 << 40).prop_map(Step::Look),
        1 => Just(Step::Request),
        1 => Just(Step::Begin),
        1 => Just(Step::GiveUp),
        1 => Just(Step::End),
    ]
}

proptest! {
    #[test]
    fn profiling_begins_with_a_suspicion_only_and_is_always_followed_by_a_back_off(
        steps in proptest::collection::vec((step(), 0u64..100_000), 0..200)
    ) {
        let config = config();
        let mut case = Case::new(Duration::ZERO, Duration::ZERO);
        let mut now = Duration::ZERO;
        for (step, seconds) in steps {
            now += Duration::from_secs(seconds);
            let before = case.state();
            match step {
                Step::Look(bytes) => case.observe(now, resident(bytes), &config),
                Step::Request => {
                    let taken = case.request(now);
                    prop_assert_eq!(taken, !before.has_probes());
                }
                Step::Begin => {
                    let begun = case.begin(now).is_some();
                    prop_assert_eq!(begun, matches!(before, State::Suspected(..)));
                }
                Step::GiveUp => case.give_up(now),
                Step::End => case.end(now, true, &config),
            }
            match (before, case.state()) {
                (State::Profiling(..), after) => {
                    prop_assert!(after.has_probes() || matches!(after, State::BackOff(_)));
                }
                (State::Stuck(_), after) => prop_assert!(matches!(after, State::Stuck(_) | State::BackOff(_))),
                (_, State::BackOff(_)) => prop_assert_eq!(before, case.state()),
                (_, State::Profiling(..)) => prop_assert!(matches!(before, State::Suspected(..))),
                _ => {}
            }
        }
    }
}
