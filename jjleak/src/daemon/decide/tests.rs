use proptest::prelude::*;

use super::*;
use crate::daemon::config::{Every, Span};

const MIB: u64 = 1 << 20;

/// A control group's limit, and what it leaves.
#[expect(clippy::unnecessary_wraps, reason = "so it stands in a sample")]
fn limited(limit: u64, available: u64) -> Option<MemoryLimit> {
    Some(MemoryLimit { is_cgroup: true, limit, available })
}

fn config() -> Config {
    let mut config = Config::default();
    config.watch.warm_up = Span(Duration::ZERO);
    config
}

fn at(index: u64) -> Duration {
    Duration::from_secs(10 * index)
}

/// A case after this many scans.
fn watched(count: u64, config: &Config, of: impl Fn(u64) -> Sample) -> Case {
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    (0..count).for_each(|index| case.observe(at(index), of(index), config));
    case
}

fn resident(bytes: u64) -> Sample {
    Sample { resident: bytes, ..Sample::default() }
}

fn reason(case: &Case) -> &'static str {
    case.state().reason().map_or("none", Reason::name)
}

#[test]
fn a_growing_process_is_suspected_and_a_steady_one_is_not() {
    let growing = watched(60, &config(), |index| resident(500 * MIB + index * MIB));
    assert_eq!(reason(&growing), "growth");
    let swinging = watched(600, &config(), |index| resident(500 * MIB + (index * 37 % 64) * MIB));
    assert_eq!(swinging.state(), State::Watching);
    let slow = watched(60, &config(), |index| resident(500 * MIB + index * 4096));
    assert_eq!(slow.state(), State::Watching);
}

#[test]
fn growth_during_warm_up_is_ignored() {
    let mut config = config();
    config.watch.warm_up = Span(at(100));
    let mut case = watched(100, &config, |index| resident(index * 10 * MIB));
    (100..200).for_each(|index| case.observe(at(index), resident(1000 * MIB), &config));
    assert_eq!(case.state(), State::Watching);
}

#[test]
fn little_growth_matters_near_a_limit_or_under_memory_pressure() {
    let of = |limit, pressure| {
        move |index| Sample { resident: 500 * MIB + index * MIB / 10, group: None, limit, pressure }
    };
    assert_eq!(reason(&watched(60, &config(), of(None, None))), "none");
    assert_eq!(reason(&watched(60, &config(), of(limited(100_000 * MIB, 90_000 * MIB), None))), "none");
    assert_eq!(reason(&watched(60, &config(), of(limited(600 * MIB, 100 * MIB), None))), "limit");
    assert_eq!(reason(&watched(60, &config(), of(limited(100_000 * MIB, 9_000 * MIB), None))), "limit");
    assert_eq!(reason(&watched(60, &config(), of(None, Some(50.)))), "pressure");
    assert_eq!(reason(&watched(60, &config(), |_| Sample { pressure: Some(99.), ..resident(MIB) })), "none");
}

#[test]
fn a_reason_says_which_limit_is_near() {
    let said = |is_cgroup| {
        let limit = Some(MemoryLimit { is_cgroup, limit: 600 * MIB, available: 10 * MIB });
        let case = watched(60, &config(), |index| Sample { limit, ..resident(500 * MIB + index * MIB) });
        case.state().reason().unwrap().to_string()
    };
    let expected = "it grows, 98 % of its control group's memory limit is used, and the rest lasts ";
    assert!(said(true).starts_with(expected), "{}", said(true));
    assert!(said(false).starts_with("it grows, 98 % of the machine's memory is used"), "{}", said(false));
}

#[test]
fn growth_that_has_stopped_is_no_longer_a_reason() {
    let config = config();
    let of = |index: u64| resident(500 * MIB + index.min(60) * MIB);
    let mut case = watched(60, &config, of);
    assert!(case.begin(at(60)).is_some());
    case.end(at(60), true, &config);
    let rest = config.profile.back_off.0.as_secs() / 10;
    (60..60 + 2 * rest).for_each(|index| case.observe(at(index), of(index), &config));
    assert_eq!(case.state(), State::Watching);
}

#[test]
fn the_warm_up_depends_on_the_age_of_the_process_not_of_the_daemon() {
    let mut config = config();
    config.watch.warm_up = Span(Duration::from_secs(300));
    let late = |index| at(index) + Duration::from_secs(86_400);
    let after = |started| {
        let mut case = Case::new(late(0), started);
        (0..25).for_each(|index| case.observe(late(index), resident(500 * MIB + index * 5 * MIB), &config));
        reason(&case)
    };
    assert_eq!((after(Duration::ZERO), after(late(0))), ("growth", "none"));
}

#[test]
fn the_next_daemon_resumes_growth_and_back_offs() {
    let config = config();
    let resumed = |case: &Case, index| Case::resume(at(index), Duration::ZERO, case.saved(), &config);
    // Each sees half of what it takes to detect growth.
    let mut case = resumed(&watched(12, &config, |index| resident(500 * MIB + index * 5 * MIB)), 14);
    (14..26).for_each(|index| case.observe(at(index), resident(500 * MIB + index * 5 * MIB), &config));
    assert_eq!(reason(&case), "growth");
    // The back-off ends when it would have ended, and the next one is longer.
    assert_eq!(back_off(&mut case, at(30), true, &config), 30);
    let mut case = resumed(&case, 40);
    assert_eq!(case.state(), State::BackOff(at(30 + 180)));
    grow(&mut case, 211, 60, &config);
    assert_eq!(back_off(&mut case, at(271), true, &config), 60);
}

#[test]
fn a_process_that_was_being_profiled_when_the_daemon_ended_backs_off() {
    let config = config();
    let mut case = watched(60, &config, |index| resident(500 * MIB + index * MIB));
    assert!(case.begin(at(60)).is_some());
    let mut case = Case::resume(at(70), Duration::ZERO, case.saved(), &config);
    assert_eq!(case.state(), State::BackOff(at(70 + 180)));
    grow(&mut case, 70, 100, &config);
    assert!(matches!(case.state(), State::BackOff(_)));
}

#[test]
fn unserved_requests_are_saved_and_suspicions_arise_again() {
    let config = config();
    let resumed = |case: &Case| Case::resume(at(100), Duration::ZERO, case.saved(), &config).state();
    // What ended the last daemon may end this one as well, but not at once.
    let asked_again = |case: &Case| {
        let case = Case::resume(at(90), Duration::ZERO, case.saved(), &config);
        assert_eq!(case.state(), State::BackOff(at(96)));
        // A daemon that ends before that hands the request on.
        let mut case = Case::resume(at(100), Duration::ZERO, case.saved(), &config);
        assert_eq!(case.state(), State::BackOff(at(106)));
        case.observe(at(106), resident(MIB), &config);
        case.state()
    };
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    assert!(case.request(at(7)));
    assert_eq!(asked_again(&case), State::Suspected(Reason::Request, at(7)));
    // Its profile was cut short by the end of the daemon.
    assert!(case.begin(at(8)).is_some());
    case.interrupt();
    assert_eq!(asked_again(&case), State::Suspected(Reason::Request, at(8)));
    // Its profile was taken, or was being taken when the daemon was killed.
    assert!(case.begin(at(9)).is_some());
    assert!(matches!(resumed(&case), State::BackOff(_)));
    case.end(at(10), true, &config);
    assert!(matches!(resumed(&case), State::BackOff(_)));
    let growing = watched(60, &config, |index| resident(500 * MIB + index * MIB));
    assert_eq!((reason(&growing), resumed(&growing)), ("growth", State::Watching));
}

#[test]
fn a_process_is_profiled_on_schedule_without_any_other_reason() {
    let mut config = config();
    config.suspect.schedule = Every(Some(at(30)));
    let mut case = watched(30, &config, |_| resident(MIB));
    assert_eq!(case.state(), State::Watching);
    case.observe(at(30), resident(MIB), &config);
    assert_eq!(reason(&case), "schedule");
}

/// Grows for this many scans.
fn grow(case: &mut Case, from: u64, count: u64, config: &Config) {
    (from..from + count).for_each(|index| case.observe(at(index), resident(500 * MIB + index * MIB), config));
}

/// Minutes of back-off after a profile.
fn back_off(case: &mut Case, now: Duration, is_profiled: bool, config: &Config) -> u64 {
    assert!(case.begin(now).is_some(), "{case:?}");
    case.end(now, is_profiled, config);
    let State::BackOff(until) = case.state() else { panic!("{case:?}") };
    until.saturating_sub(now).as_secs() / 60
}

#[test]
fn the_back_off_doubles_after_each_verdict() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    let mut index = 0;
    let mut back_offs = Vec::new();
    for _ in 0..8 {
        while !matches!(case.state(), State::Suspected(..)) {
            grow(&mut case, index, 1, &config);
            index += 1;
        }
        back_offs.push(back_off(&mut case, at(index), true, &config));
    }
    assert_eq!(back_offs, [30, 60, 120, 240, 480, 960, 1440, 1440]);
}

#[test]
fn the_back_off_is_reset_after_a_long_time_without_suspicion() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    case.rounds = 5;
    (0..8640).for_each(|index| case.observe(at(index), resident(MIB), &config));
    assert_eq!(case.rounds, 5);
    case.observe(at(8640), resident(MIB), &config);
    assert_eq!(case.rounds, 0);
}

#[test]
fn failed_and_requested_profiles_do_not_lengthen_the_back_off() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    for index in 0..5 {
        assert!(case.request(at(index)));
        assert_eq!(back_off(&mut case, at(index), true, &config), 30);
    }
    let mut case = watched(60, &config, |index| resident(500 * MIB + index * MIB));
    assert_eq!(back_off(&mut case, at(60), false, &config), 30);
    grow(&mut case, 60, 200, &config);
    assert_eq!(back_off(&mut case, at(260), true, &config), 30);
}

#[test]
fn an_urgent_limit_or_pressure_ends_a_back_off_after_its_minimum() {
    let config = config();
    let shortest = config.profile.back_off.0.as_secs() / 10;
    let after = |count: u64, limit, pressure| {
        let mut case = watched(60, &config, |index| resident(500 * MIB + index * MIB));
        case.rounds = 5;
        assert_eq!(back_off(&mut case, at(60), true, &config), 960);
        for index in 60..60 + count {
            let sample = Sample { limit, pressure, ..resident(500 * MIB + index * MIB) };
            case.observe(at(index), sample, &config);
        }
        reason(&case)
    };
    let near = limited(2000 * MIB, 1000 * MIB);
    assert_eq!(after(shortest - 1, near, Some(99.)), "none");
    assert_eq!(after(shortest + 2, None, None), "none");
    assert_eq!(after(shortest + 2, near, None), "limit");
    assert_eq!(after(shortest + 2, None, Some(99.)), "pressure");
    // Almost all is used, but the rest outlasts the back-off.
    assert_eq!(after(shortest + 2, limited(1 << 40, 80_000 * MIB), None), "none");
}

#[test]
fn suspects_are_ordered_by_urgency_then_by_waiting_time() {
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
fn a_process_with_a_hung_profile_is_not_profiled_until_it_ends() {
    let config = config();
    let mut case = Case::new(Duration::ZERO, Duration::ZERO);
    assert!(case.request(at(0)) && case.begin(at(0)).is_some());
    case.give_up(at(60));
    (60..200).for_each(|index| case.observe(at(index), resident(index * 10 * MIB), &config));
    assert!(!case.request(at(200)));
    assert_eq!(case.state(), State::Stuck(at(60)));
    case.end(at(200), true, &config);
    assert!(matches!(case.state(), State::BackOff(_)));
}

#[derive(Debug, Clone)]
enum Step {
    Observe(u64),
    Request,
    Begin,
    GiveUp,
    End,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..1 << 40).prop_map(Step::Observe),
        1 => Just(Step::Request),
        1 => Just(Step::Begin),
        1 => Just(Step::GiveUp),
        1 => Just(Step::End),
    ]
}

proptest! {
    #[test]
    fn profiling_follows_a_suspicion_and_is_followed_by_a_back_off(
        steps in proptest::collection::vec((step(), 0u64..100_000), 0..200)
    ) {
        let config = config();
        let mut case = Case::new(Duration::ZERO, Duration::ZERO);
        let mut now = Duration::ZERO;
        for (step, seconds) in steps {
            now += Duration::from_secs(seconds);
            let before = case.state();
            match step {
                Step::Observe(bytes) => case.observe(now, resident(bytes), &config),
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
