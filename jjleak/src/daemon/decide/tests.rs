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

#[test]
fn after_a_verdict_it_is_left_in_peace_twice_as_long_each_time() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    let mut now = Duration::ZERO;
    let mut back_offs = Vec::new();
    for _ in 0..8 {
        assert!(case.request(now));
        assert_eq!(case.begin(now), Some(Reason::Request));
        case.end(now, &config);
        let State::BackOff(until) = case.state() else { panic!("{case:?}") };
        back_offs.push(until.saturating_sub(now).as_secs() / 60);
        now = until;
    }
    assert_eq!(back_offs, [30, 60, 120, 240, 480, 960, 1440, 1440]);
    case.observe(now, resident(MIB), &config);
    assert_eq!(case.state(), State::Watching);
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
    case.end(at(200), &config);
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
                Step::End => case.end(now, &config),
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
