mod outcomes;

use std::path::Path;
use std::sync::mpsc;

use tokio::sync::mpsc::{Receiver, channel};

use super::*;
use crate::daemon::history::{Entry, Id};
use crate::daemon::profile::STOP_TIMEOUT;
use crate::daemon::watch::cat::{Cat, cats};
use crate::daemon::{dumps, metrics};
use crate::file_content::{Content, LazyFile};
use crate::profile::Profile;
use crate::render::sample;

/// A daemon that watches `cat` processes, with a profiler that blocks until released.
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
        // `cat` processes of other tests come and go.
        assert_eq!(self.shared.core().request(pid), Some(true));
        self.shared.begin(&self.profiler, &self.sender);
    }

    /// Scans all processes.
    fn scan(&self) {
        let mut core = self.shared.core();
        let config = core.config.clone();
        core.apply_config(config);
        core.scan();
    }

    fn state(&self, pid: Pid) -> &'static str {
        self.shared.core().watcher.get_mut(pid).unwrap().case.state().name()
    }

    fn start_time(&self, pid: Pid) -> u64 {
        self.shared.core().watcher.get_mut(pid).unwrap().process.start_time
    }
}

/// A daemon's state, with this state directory.
fn shared(folder: &Path) -> Shared {
    let (handover, saved) = Handover::open(folder).unwrap();
    let mut watcher = Watcher::new().0;
    watcher.restore(saved);
    Shared::new(cats(), watcher, (History::open(folder).unwrap().0, handover), None)
}

/// A judged profile of a process, taken now.
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

/// A run of profiling allocations that has ended.
fn run(pid: Pid, start_time: u64, outcome: Result<Option<Finding>, String>) -> Run {
    let kind = Kind::Allocations;
    Run { pid, start_time, kind, outcome, is_too_costly: false, runs: None, growth: None }
}

#[test]
fn a_profile_cut_short_by_the_end_of_the_daemon_causes_no_back_off() {
    let fixture = Fixture::new();
    let cats = [Cat::start(), Cat::start(), Cat::start()];
    fixture.scan();
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
        core.handle(Message::Ended(run(pid, start_time, Ok(found))));
    }
    let states = cats.map(|cat| core.watcher.get_mut(cat.pid()).unwrap().case.state().name());
    assert_eq!(states, ["watching", "suspected", "back_off"]);
}

#[test]
fn a_requested_profile_that_does_not_end_in_time_is_taken_by_the_next_daemon() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    fixture.begin(cat.pid());
    fixture.shared.core().interrupt();
    assert_eq!(fixture.state(cat.pid()), "suspected");
    fixture.let_go.send(()).unwrap();
}

#[test]
fn repeated_requests_are_saved_once() {
    let shared = Fixture::new().shared;
    assert!(shared.claims_handover() && !shared.claims_handover());
    shared.hand_over();
    assert!(shared.claims_handover());
}

#[test]
fn a_requested_profile_that_has_not_begun_is_taken_by_the_next_daemon() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let ask = || {
        let mut core = fixture.shared.core();
        assert_eq!(core.request(cat.pid()), Some(true));
        mem::take(&mut core.needs_handover)
    };
    // Repeated requests are saved once.
    assert!(ask() && !ask());
    fixture.shared.hand_over();

    let next = shared(fixture.folder.path());
    next.core().config.profile.back_off = crate::daemon::config::Span(Duration::ZERO);
    next.core().scan();
    next.core().scan();
    next.begin(&fixture.profiler, &fixture.sender);
    assert_eq!(next.core().watcher.get_mut(cat.pid()).unwrap().case.state().name(), "profiling");
    fixture.let_go.send(()).unwrap();
}

#[test]
fn the_next_daemon_restores_findings_and_back_offs() {
    let mut fixture = Fixture::new();
    let (cat, other) = (Cat::start(), Cat::start());
    fixture.scan();
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
    fixture.shared.core().handle(message);
    assert!(fixture.shared.core().needs_handover);
    let before = fixture.shared.core().watcher.get_mut(pid).unwrap().case.state();
    fixture.shared.hand_over();

    let next = shared(fixture.folder.path());
    next.core().scan();
    assert_eq!(next.restore_findings(), 1);
    let mut core = next.core();
    assert_eq!(core.watcher.get_mut(pid).unwrap().case.state(), before);
    let found = core.findings[&pid].clone();
    let mut expected = finding(pid, start_time);
    // The profile was taken a moment later.
    expected.last_profile.clone_from(&found.last_profile);
    expected.verdict_profile.clone_from(&found.verdict_profile);
    assert_eq!(found, expected);
    assert!(found.leaking > 0 && found.leak_rate > 0. && found.last_profile.is_some());
}

#[test]
fn a_hung_profile_is_abandoned_and_others_get_its_slot() {
    let mut fixture = Fixture::new();
    let (hanging, other) = (Cat::start(), Cat::start());
    fixture.scan();
    fixture.begin(hanging.pid());
    assert_eq!(fixture.state(hanging.pid()), "profiling");
    // Its duration, its extension, and the time for its last profile.
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
    // It ends after all, whichever of the two it is.
    fixture.let_go.send(()).unwrap();
    let message = fixture.messages.blocking_recv().unwrap();
    fixture.shared.core().handle(message);
    let core = fixture.shared.core();
    assert_eq!(core.jobs.len() + core.stuck.len(), 1);
}

#[test]
fn a_user_whose_profiles_hang_gets_no_more_of_them() {
    let fixture = Fixture::new();
    let cats = [Cat::start(), Cat::start(), Cat::start()];
    fixture.scan();
    for cat in &cats[..MAX_STUCK_OF_USER] {
        fixture.begin(cat.pid());
        for _ in 0..3 {
            let deadline = fixture.shared.core().deadline().unwrap();
            fixture.shared.core().stop_overdue(deadline);
        }
        assert_eq!(fixture.state(cat.pid()), "stuck");
    }
    fixture.begin(cats[2].pid());
    assert_eq!(fixture.state(cats[2].pid()), "suspected");
    // As if the others were another user's.
    fixture.shared.core().stuck.iter_mut().for_each(|job| job.user = Some(u32::MAX - 1));
    fixture.shared.begin(&fixture.profiler, &fixture.sender);
    assert_eq!(fixture.state(cats[2].pid()), "profiling");
}

#[test]
fn a_job_that_only_reads_files_ends_with_its_process() {
    let mut fixture = Fixture::new();
    fixture.profiler = Arc::new(|_, _, _| {
        let file = tempfile::tempfile().map_err(|error| error.to_string())?;
        file.set_len(1 << 20).map_err(|error| error.to_string())?;
        let lazy = LazyFile::new(&file).map_err(|error| error.to_string())?;
        let content = Content::from(&lazy);
        while content.visit(0..content.length(), 0, |_, _| std::thread::yield_now()) {}
        content.check().map_err(|error| error.to_string())
    });
    let cat = Cat::start();
    fixture.scan();
    fixture.begin(cat.pid());
    drop(cat);
    fixture.shared.core().scan();
    let deadline = fixture.shared.core().deadline().unwrap();
    assert!(deadline <= Instant::now() + STOP_TIMEOUT);
    fixture.shared.core().stop_overdue(deadline);
    let message = fixture.messages.blocking_recv().unwrap();
    assert!(
        matches!(&message, Message::Ended(Run { outcome: Err(why), .. }) if why.contains("given up")),
        "{message:?}"
    );
    fixture.shared.core().handle(message);
    let core = fixture.shared.core();
    assert_eq!(core.jobs.len() + core.stuck.len(), 0);
}

#[test]
fn a_profile_without_a_verdict_is_extended_until_there_is_one() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    // A finding of an earlier profile is not a verdict of this one.
    fixture.shared.core().handle(Message::Found(finding(pid, start_time)));
    fixture.begin(pid);
    let mut core = fixture.shared.core();
    let is_to_end = |core: &Core| core.deadline().unwrap() <= Instant::now() + STOP_TIMEOUT;
    assert!(!is_to_end(&core));
    // Without a verdict by the deadline, the run is extended.
    let deadline = core.deadline().unwrap();
    core.stop_overdue(deadline);
    core.handle(Message::Found(unjudged(pid, start_time)));
    assert!(!is_to_end(&core));
    core.handle(Message::Found(finding(pid, start_time)));
    assert!(is_to_end(&core));
    drop(core);
    fixture.let_go.send(()).unwrap();
}

#[test]
fn a_finding_is_not_recorded_for_another_process_with_the_same_pid() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    fixture.begin(pid);
    let mut core = fixture.shared.core();
    let before = Message::Ended(run(pid, start_time - 1, Ok(Some(finding(pid, start_time - 1)))));
    core.handle(before);
    core.handle(Message::Found(finding(pid, start_time - 1)));
    assert!(core.findings.is_empty() && core.jobs.len() == 1);
    assert_eq!(core.watcher.get_mut(pid).unwrap().case.state().name(), "profiling");
    core.handle(Message::Found(finding(pid, start_time)));
    assert_eq!(core.findings.len(), 1);
}

#[test]
fn a_process_that_ends_while_its_last_profile_is_taken_still_counts_for_at_once() {
    let fixture = Fixture::new();
    let (first, second) = (Cat::start(), Cat::start());
    fixture.scan();
    fixture.begin(first.pid());
    let ended = first.pid();
    drop(first);
    fixture.scan();
    assert!(fixture.shared.core().watcher.get_mut(ended).is_none());
    fixture.begin(second.pid());
    assert_eq!((fixture.state(second.pid()), fixture.shared.core().jobs.len()), ("suspected", 1));
}

#[test]
fn a_process_that_is_no_longer_watched_has_no_finding() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let mut core = fixture.shared.core();
    let start_time = core.watcher.get_mut(cat.pid()).unwrap().process.start_time;
    core.handle(Message::Found(finding(cat.pid(), start_time)));
    assert_eq!(core.findings.len(), 1);
    let mut config = core.config.clone();
    config.watch.names.clear();
    core.apply_config(config);
    assert!(core.findings.is_empty());
}

/// A finding of a profile that was too short for a verdict.
fn unjudged(pid: Pid, start_time: u64) -> Finding {
    let mut profile = profile(pid, start_time);
    profile.unjudge();
    Finding::of(pid, &Entry::of(Id::of(&profile), &profile, "a test"))
}

#[test]
fn an_inconclusive_profile_revokes_no_verdict() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let (judged, later) = (finding(pid, start_time), unjudged(pid, start_time));
    assert!(judged.judged && judged.leaking > 0 && !later.judged && later.leaking == 0);
    let mut core = fixture.shared.core();
    core.handle(Message::Found(later.clone()));
    assert_eq!(core.findings[&pid], later);
    core.handle(Message::Found(judged.clone()));
    assert_eq!(core.findings[&pid], judged);
    let mut much_later = later;
    much_later.live_bytes = 7;
    core.handle(Message::Found(much_later));
    let known = core.findings[&pid].clone();
    assert_eq!((known.leaking, &known.verdict), (judged.leaking, &judged.verdict));
    assert!(known.judged && known.live_bytes == 7);
    // The last profile is still reported as inconclusive.
    assert!(
        metrics::of_processes(&core)
            .contains(&format!("jjleak_process_profile_judged{{pid=\"{pid}\",comm=\"cat\"}} 0\n"))
    );
    // A verdict that nothing leaks any more revokes it.
    let mut fixed = judged;
    fixed.leaking = 0;
    core.handle(Message::Found(fixed));
    assert_eq!(core.findings[&pid].leaking, 0);
}

#[test]
fn the_next_daemon_restores_a_verdict_despite_a_later_inconclusive_profile() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let judged = profile(pid, start_time);
    let mut later = judged.clone();
    later.unjudge();
    later.taken_at += jiff::SignedDuration::from_secs(1);
    for profile in [judged, later] {
        let entry = Entry::of(Id::of(&profile), &profile, "a test");
        fixture.shared.history().keep(&profile, entry, b"<svg/>").unwrap();
    }
    assert_eq!(fixture.shared.restore_findings(), 1);
    let known = fixture.shared.core().findings[&pid].clone();
    assert!(known.judged && known.leaking == finding(pid, start_time).leaking, "{known:?}");
}

#[test]
fn a_profile_stopped_for_its_cost_does_not_lengthen_the_back_off() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let mut core = fixture.shared.core();
    for (is_too_costly, rounds) in [(true, 0), (false, 1)] {
        let case = &mut core.watcher.get_mut(pid).unwrap().case;
        case.suspect_for_a_test();
        assert!(case.begin(Duration::ZERO).is_some());
        let outcome = Ok(Some(unjudged(pid, start_time)));
        core.handle(Message::Ended(Run { is_too_costly, ..run(pid, start_time, outcome) }));
        assert_eq!(core.watcher.get_mut(pid).unwrap().case.rounds_for_a_test(), rounds);
    }
}

#[test]
fn alerts_and_the_dashboard_use_existing_metrics_and_every_metric_of_a_process() {
    use std::collections::BTreeSet;
    let fixture = Fixture::new();
    let status = crate::push::Status::default();
    let text = metrics::of_processes(&fixture.shared.core())
        + &metrics::of_dumps(&dumps::lock(&fixture.shared.dumps))
        + &metrics::of_history(&fixture.shared.history())
        + &metrics::of_pushing(&status);
    let there: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let name = regex::Regex::new(r"\b(jjleak|process)_[a-z_]+\b").unwrap();
    let deployed = [
        include_str!("../../../../deploy/prometheus/jjleak.rules.yml"),
        include_str!("../../../../deploy/grafana/jjleak.json"),
    ];
    let named: BTreeSet<_> =
        deployed.iter().flat_map(|text| name.find_iter(text)).map(|found| found.as_str()).collect();
    let unknown: Vec<_> = named.difference(&there).collect();
    assert!(unknown.is_empty() && named.len() > 15, "{unknown:?}");
    // Except for the state, which is summed over all processes, and the group's memory, which says less than the limit.
    let unused = there.difference(&named).filter(|name| name.starts_with("jjleak_process_"));
    assert_eq!(unused.collect::<Vec<_>>(), [&"jjleak_process_cgroup_bytes", &"jjleak_process_state"]);
}
