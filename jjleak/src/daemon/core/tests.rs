mod outcomes;

use std::path::Path;
use std::sync::mpsc;

use tokio::sync::mpsc::{Receiver, channel};

use super::*;
use crate::daemon::history::Id;
use crate::daemon::metrics;
use crate::daemon::watch::cat::{Cat, cats};
use crate::profile::Profile;
use crate::render::sample;

/// A daemon that watches cats, and whose profiler does not return before it is let go.
struct Fixture {
    shared: Shared,
    profiler: Profiler,
    let_go: mpsc::Sender<()>,
    sender: Sender<Message>,
    messages: Receiver<Message>,
    folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shared = shared(folder.path());
        let (let_go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let profiler: Profiler = Arc::new(move |_, _, _| {
            let _ = wait.lock().unwrap().recv();
            Ok(())
        });
        let (sender, messages) = channel(8);
        Self { shared, profiler, let_go, sender, messages, folder }
    }

    fn begin(&self, pid: Pid) {
        // Cats of other tests come and go.
        assert_eq!(self.shared.core().request(pid), Some(true));
        self.shared.begin(&self.profiler, &self.sender);
    }

    /// Looks through all processes.
    fn look(&self) {
        let mut core = self.shared.core();
        let config = core.config.clone();
        core.reconsider(config);
        core.look();
    }

    fn state(&self, pid: Pid) -> &'static str {
        self.shared.core().watcher.get_mut(pid).unwrap().case.state().name()
    }

    fn start_time(&self, pid: Pid) -> u64 {
        self.shared.core().watcher.get_mut(pid).unwrap().process.start_time
    }
}

/// What a daemon has in a state directory.
fn shared(folder: &Path) -> Shared {
    let (handover, inheritance) = Handover::open(folder).unwrap();
    let mut watcher = Watcher::new().0;
    watcher.inherit(inheritance);
    Shared::new(cats(), watcher, (History::open(folder).unwrap().0, handover), None)
}

/// A profile of a process that was judged, taken now.
fn profile(pid: Pid, start_time: u64) -> Profile {
    let mut profile = sample::judged();
    (profile.process.pid, profile.process.start_time) = (pid.number().get(), start_time);
    "cat".clone_into(&mut profile.process.comm);
    let elapsed = profile.elapsed();
    profile.taken_at = Timestamp::now();
    profile.started_at = profile.taken_at - elapsed;
    profile
}

fn finding(pid: Pid, start_time: u64) -> Finding {
    let profile = profile(pid, start_time);
    Finding::of(pid, &Entry::of(Id::of(&profile), &profile, "a test"))
}

#[test]
fn a_profile_that_ends_with_the_daemon_before_its_verdict_is_no_reason_to_leave_the_process_in_peace() {
    let fixture = Fixture::new();
    let cats = [Cat::start(), Cat::start(), Cat::start()];
    fixture.look();
    let mut core = fixture.shared.core();
    core.is_ending = true;
    for (cat, (is_asked_for, is_judged)) in cats.iter().zip([(false, false), (true, false), (true, true)]) {
        let case = &mut core.watcher.get_mut(cat.pid()).unwrap().case;
        if is_asked_for {
            assert!(case.request(Duration::ZERO));
        } else {
            case.suspect_for_a_test();
        }
        assert!(case.begin(Duration::ZERO).is_some());
        let (pid, start_time) = (cat.pid(), core.watcher.get_mut(cat.pid()).unwrap().process.start_time);
        let found = is_judged.then(|| finding(pid, start_time));
        core.hear(Message::Ended { pid, start_time, outcome: Ok(found), is_too_dear: false });
    }
    let states = cats.map(|cat| core.watcher.get_mut(cat.pid()).unwrap().case.state().name());
    assert_eq!(states, ["watching", "suspected", "back_off"]);
}

#[test]
fn a_profile_that_was_asked_for_and_takes_too_long_to_end_is_taken_by_the_next_daemon() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    fixture.begin(cat.pid());
    fixture.shared.core().interrupt();
    assert_eq!(fixture.state(cat.pid()), "suspected");
    fixture.let_go.send(()).unwrap();
}

#[test]
fn what_is_asked_for_again_and_again_is_left_to_the_next_daemon_once() {
    let shared = Fixture::new().shared;
    assert!(shared.claims_handing_over() && !shared.claims_handing_over());
    shared.hand_over();
    assert!(shared.claims_handing_over());
}

#[test]
fn a_profile_that_was_asked_for_and_has_not_begun_is_taken_by_the_next_daemon() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let ask = || {
        let mut core = fixture.shared.core();
        assert_eq!(core.request(cat.pid()), Some(true));
        std::mem::take(&mut core.has_news)
    };
    // Who asks again and again has it written once.
    assert!(ask() && !ask());
    fixture.shared.hand_over();

    let next = shared(fixture.folder.path());
    next.core().config.profile.back_off = crate::daemon::config::Span(Duration::ZERO);
    next.core().look();
    next.core().look();
    next.begin(&fixture.profiler, &fixture.sender);
    assert_eq!(next.core().watcher.get_mut(cat.pid()).unwrap().case.state().name(), "profiling");
    fixture.let_go.send(()).unwrap();
}

#[test]
fn the_next_daemon_knows_what_was_found_and_goes_on_with_the_back_off() {
    let mut fixture = Fixture::new();
    let (cat, other) = (Cat::start(), Cat::start());
    fixture.look();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    for (pid, start_time) in [(pid, start_time), (other.pid(), fixture.start_time(other.pid()) - 1)] {
        let profile = profile(pid, start_time);
        fixture
            .shared
            .history()
            .keep(&profile, Entry::of(Id::of(&profile), &profile, "a test"), b"<svg/>")
            .unwrap();
    }
    fixture.begin(pid);
    fixture.let_go.send(()).unwrap();
    let message = fixture.messages.blocking_recv().unwrap();
    fixture.shared.core().hear(message);
    assert!(fixture.shared.core().has_news);
    let before = fixture.shared.core().watcher.get_mut(pid).unwrap().case.state();
    fixture.shared.hand_over();

    let next = shared(fixture.folder.path());
    next.core().look();
    assert_eq!(next.recall(), 1);
    let mut core = next.core();
    assert_eq!(core.watcher.get_mut(pid).unwrap().case.state(), before);
    let found = core.findings[&pid].clone();
    let mut expected = finding(pid, start_time);
    // The profile was taken a moment later.
    expected.kept.clone_from(&found.kept);
    expected.told_in.clone_from(&found.told_in);
    assert_eq!(found, expected);
    assert!(found.leaking > 0 && found.leak_rate > 0. && found.kept.is_some());
}

#[test]
fn a_profile_that_never_ends_is_given_up_and_others_have_its_place() {
    let mut fixture = Fixture::new();
    let (hanging, other) = (Cat::start(), Cat::start());
    fixture.look();
    fixture.begin(hanging.pid());
    assert_eq!(fixture.state(hanging.pid()), "profiling");
    // Its time, its grace, and what its last profile may take.
    for _ in 0..3 {
        let deadline = fixture.shared.core().deadline().unwrap();
        fixture.shared.core().stop_overdue(deadline);
    }
    {
        let core = fixture.shared.core();
        assert_eq!((core.jobs.len(), core.stuck.len(), core.profiles_failed), (0, 1, 1));
        assert!(core.deadline().is_none());
        assert!(metrics::of_processes(&core).contains("\njjleak_profiles_stuck 1\n"));
    }
    assert_eq!(fixture.state(hanging.pid()), "stuck");
    assert_eq!(fixture.shared.core().request(hanging.pid()), Some(false));
    fixture.begin(other.pid());
    assert_eq!(fixture.state(other.pid()), "profiling");
    // It ends after all, whichever of the two that is.
    fixture.let_go.send(()).unwrap();
    let message = fixture.messages.blocking_recv().unwrap();
    fixture.shared.core().hear(message);
    let core = fixture.shared.core();
    assert_eq!(core.jobs.len() + core.stuck.len(), 1);
}

#[test]
fn a_profile_whose_time_is_over_ends_with_its_verdict_and_not_before() {
    use crate::daemon::profile::PATIENCE;
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    // What an earlier profile has found is no verdict of this one.
    fixture.shared.core().hear(Message::Found(finding(pid, start_time)));
    fixture.begin(pid);
    let mut core = fixture.shared.core();
    let is_to_end = |core: &Core| core.deadline().unwrap() <= Instant::now() + PATIENCE;
    assert!(!is_to_end(&core));
    // Nothing is known when its time is over: it is waited for.
    let deadline = core.deadline().unwrap();
    core.stop_overdue(deadline);
    core.hear(Message::Found(unjudged(pid, start_time)));
    assert!(!is_to_end(&core));
    core.hear(Message::Found(finding(pid, start_time)));
    assert!(is_to_end(&core));
    drop(core);
    fixture.let_go.send(()).unwrap();
}

#[test]
fn what_is_found_of_a_process_is_not_entered_for_another_with_its_pid() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    fixture.begin(pid);
    let mut core = fixture.shared.core();
    let before = Message::Ended {
        pid,
        start_time: start_time - 1,
        outcome: Ok(Some(finding(pid, start_time - 1))),
        is_too_dear: false,
    };
    core.hear(before);
    core.hear(Message::Found(finding(pid, start_time - 1)));
    assert!(core.findings.is_empty() && core.jobs.len() == 1);
    assert_eq!(core.watcher.get_mut(pid).unwrap().case.state().name(), "profiling");
    core.hear(Message::Found(finding(pid, start_time)));
    assert_eq!(core.findings.len(), 1);
}

#[test]
fn a_process_that_ends_while_its_last_profile_is_taken_still_counts_for_at_once() {
    let fixture = Fixture::new();
    let (first, second) = (Cat::start(), Cat::start());
    fixture.look();
    fixture.begin(first.pid());
    let ended = first.pid();
    drop(first);
    fixture.look();
    assert!(fixture.shared.core().watcher.get_mut(ended).is_none());
    fixture.begin(second.pid());
    assert_eq!((fixture.state(second.pid()), fixture.shared.core().jobs.len()), ("suspected", 1));
}

#[test]
fn what_is_not_watched_any_more_has_no_finding() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let mut core = fixture.shared.core();
    let start_time = core.watcher.get_mut(cat.pid()).unwrap().process.start_time;
    core.hear(Message::Found(finding(cat.pid(), start_time)));
    assert_eq!(core.findings.len(), 1);
    let mut config = core.config.clone();
    config.watch.names.clear();
    core.reconsider(config);
    assert!(core.findings.is_empty());
}

/// A finding of a profile that was too short to judge anything.
fn unjudged(pid: Pid, start_time: u64) -> Finding {
    let mut profile = profile(pid, start_time);
    profile.unjudge();
    Finding::of(pid, &Entry::of(Id::of(&profile), &profile, "a test"))
}

#[test]
fn a_profile_that_judges_nothing_takes_back_nothing_that_was_judged() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let (judged, later) = (finding(pid, start_time), unjudged(pid, start_time));
    assert!(judged.judged && judged.leaking > 0 && !later.judged && later.leaking == 0);
    let mut core = fixture.shared.core();
    core.hear(Message::Found(later.clone()));
    assert_eq!(core.findings[&pid], later);
    core.hear(Message::Found(judged.clone()));
    assert_eq!(core.findings[&pid], judged);
    let mut much_later = later;
    much_later.live_bytes = 7;
    core.hear(Message::Found(much_later));
    let known = core.findings[&pid].clone();
    assert_eq!((known.leaking, &known.verdict), (judged.leaking, &judged.verdict));
    assert!(known.judged && known.live_bytes == 7);
    // That the last one could not tell is known, too.
    assert!(
        metrics::of_processes(&core)
            .contains(&format!("jjleak_process_profile_judged{{pid=\"{pid}\",comm=\"cat\"}} 0\n"))
    );
    // One that judges that nothing leaks any more does.
    let mut mended = judged;
    mended.leaking = 0;
    core.hear(Message::Found(mended));
    assert_eq!(core.findings[&pid].leaking, 0);
}

#[test]
fn what_was_judged_is_known_to_the_next_daemon_also_if_a_later_profile_judged_nothing() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let judged = profile(pid, start_time);
    let mut later = judged.clone();
    later.unjudge();
    later.taken_at += jiff::SignedDuration::from_secs(1);
    for profile in [judged, later] {
        let entry = Entry::of(Id::of(&profile), &profile, "a test");
        fixture.shared.history().keep(&profile, entry, b"<svg/>").unwrap();
    }
    assert_eq!(fixture.shared.recall(), 1);
    let known = fixture.shared.core().findings[&pid].clone();
    assert!(known.judged && known.leaking == finding(pid, start_time).leaking, "{known:?}");
}

#[test]
fn a_profile_that_ends_early_for_its_cost_makes_no_back_off_longer() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let mut core = fixture.shared.core();
    for (is_too_dear, rounds) in [(true, 0), (false, 1)] {
        let case = &mut core.watcher.get_mut(pid).unwrap().case;
        case.suspect_for_a_test();
        assert!(case.begin(Duration::ZERO).is_some());
        let outcome = Ok(Some(unjudged(pid, start_time)));
        core.hear(Message::Ended { pid, start_time, outcome, is_too_dear });
        assert_eq!(core.watcher.get_mut(pid).unwrap().case.rounds_for_a_test(), rounds);
    }
}

#[test]
fn alerts_and_the_dashboard_are_made_of_metrics_that_there_are_and_every_one_of_a_process_is_looked_at() {
    use std::collections::BTreeSet;
    let fixture = Fixture::new();
    let status = crate::push::Status::default();
    let told = metrics::of_processes(&fixture.shared.core())
        + &metrics::of_history(&fixture.shared.history())
        + &metrics::of_pushing(&status);
    let there: BTreeSet<_> =
        told.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let name = regex::Regex::new(r"\b(jjleak|process)_[a-z_]+\b").unwrap();
    let deployed = [
        include_str!("../../../../deploy/prometheus/jjleak.rules.yml"),
        include_str!("../../../../deploy/grafana/jjleak.json"),
    ];
    let named: BTreeSet<_> =
        deployed.iter().flat_map(|text| name.find_iter(text)).map(|found| found.as_str()).collect();
    let unknown: Vec<_> = named.difference(&there).collect();
    assert!(unknown.is_empty() && named.len() > 15, "{unknown:?}");
    // But its state, which is summed over all, and what its control group has, which is less than the limit tells.
    let unused = there.difference(&named).filter(|name| name.starts_with("jjleak_process_"));
    assert_eq!(unused.collect::<Vec<_>>(), [&"jjleak_process_cgroup_bytes", &"jjleak_process_state"]);
}
