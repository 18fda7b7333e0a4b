use proptest::prelude::*;

use super::*;
use crate::daemon::config::{Every, Span};

const MIB: u64 = 1 << 20;

/// A limit of a control group, and what it leaves.
#[expect(clippy::unnecessary_wraps, reason = "so it stands in a sample")]
fn limited(limit: u64, available: u64) -> Option<MemoryLimit> {
    Some(MemoryLimit { is_cgroup: true, limit, available })
}

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
    let of = |limit, pressure| {
        move |look| Sample { resident: 500 * MIB + look * MIB / 10, group: None, limit, pressure }
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
        let case = watched(60, &config(), |look| Sample { limit, ..resident(500 * MIB + look * MIB) });
        case.state().reason().unwrap().to_string()
    };
    let expected = "it grows, 98 % of its control group's memory limit is taken, and the rest lasts ";
    assert!(said(true).starts_with(expected), "{}", said(true));
    assert!(said(false).starts_with("it grows, 98 % of the machine's memory is taken"), "{}", said(false));
}

#[test]
fn growth_that_has_stopped_is_no_reason_any_more() {
    let config = config();
    let of = |look: u64| resident(500 * MIB + look.min(60) * MIB);
    let mut case = watched(60, &config, of);
    assert!(case.begin(at(60)).is_some());
    case.end(at(60), true, &config);
    let rest = config.profile.back_off.0.as_secs() / 10;
    (60..60 + 2 * rest).for_each(|look| case.observe(at(look), of(look), &config));
    assert_eq!(case.state(), State::Watching);
}

#[test]
fn one_that_has_run_for_long_is_not_young_because_the_daemon_is() {
    let mut config = config();
    config.watch.warm_up = Span(Duration::from_secs(300));
    let late = |look| at(look) + Duration::from_secs(86_400);
    let after = |started| {
        let mut case = Case::new(late(0), started);
        (0..25).for_each(|look| case.observe(late(look), resident(500 * MIB + look * 5 * MIB), &config));
        reason(&case)
    };
    assert_eq!((after(Duration::ZERO), after(late(0))), ("growth", "none"));
}

#[test]
fn the_next_daemon_goes_on_where_one_has_ended() {
    let config = config();
    let resumed = |case: &Case, look| Case::resume(at(look), Duration::ZERO, case.past(), &config);
    // Half of what it takes to see growth is seen by each.
    let mut case = resumed(&watched(12, &config, |look| resident(500 * MIB + look * 5 * MIB)), 14);
    (14..26).for_each(|look| case.observe(at(look), resident(500 * MIB + look * 5 * MIB), &config));
    assert_eq!(reason(&case), "growth");
    // A back-off ends when it would have ended, and the next one is longer.
    assert_eq!(back_off(&mut case, at(30), true, &config), 30);
    let mut case = resumed(&case, 40);
    assert_eq!(case.state(), State::BackOff(at(30 + 180)));
    grow(&mut case, 211, 60, &config);
    assert_eq!(back_off(&mut case, at(271), true, &config), 60);
}

#[test]
fn one_whose_profiler_has_ended_with_the_daemon_is_left_in_peace_by_the_next() {
    let config = config();
    let mut case = watched(60, &config, |look| resident(500 * MIB + look * MIB));
    assert!(case.begin(at(60)).is_some());
    let mut case = Case::resume(at(70), Duration::ZERO, case.past(), &config);
    assert_eq!(case.state(), State::BackOff(at(70 + 180)));
    grow(&mut case, 70, 100, &config);
    assert!(matches!(case.state(), State::BackOff(_)));
}

#[test]
fn what_somebody_has_asked_for_and_not_got_is_known_to_the_next_daemon_and_what_was_seen_is_seen_again() {
    let config = config();
    let resumed = |case: &Case| Case::resume(at(100), Duration::ZERO, case.past(), &config).state();
    // Whatever ended the daemon may end this one, too, and not at once.
    let asked_again = |case: &Case| {
        let case = Case::resume(at(90), Duration::ZERO, case.past(), &config);
        assert_eq!(case.state(), State::BackOff(at(96)));
        // One that ends before that leaves it to the next.
        let mut case = Case::resume(at(100), Duration::ZERO, case.past(), &config);
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
    // It had its profile, or is the one in which the daemon was killed.
    assert!(case.begin(at(9)).is_some());
    assert!(matches!(resumed(&case), State::BackOff(_)));
    case.end(at(10), true, &config);
    assert!(matches!(resumed(&case), State::BackOff(_)));
    let growing = watched(60, &config, |look| resident(500 * MIB + look * MIB));
    assert_eq!((reason(&growing), resumed(&growing)), ("growth", State::Watching));
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
            let sample = Sample { limit, pressure, ..resident(500 * MIB + look * MIB) };
            case.observe(at(look), sample, &config);
        }
        reason(&case)
    };
    let near = limited(2000 * MIB, 1000 * MIB);
    assert_eq!(after(shortest - 1, near, Some(99.)), "none");
    assert_eq!(after(shortest + 2, None, None), "none");
    assert_eq!(after(shortest + 2, near, None), "limit");
    assert_eq!(after(shortest + 2, None, Some(99.)), "pressure");
    // Almost all is taken, and the rest lasts for longer than the back-off: that is soon enough.
    assert_eq!(after(shortest + 2, limited(1 << 40, 80_000 * MIB), None), "none");
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
