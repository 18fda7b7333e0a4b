//! Log messages at the end of profiling.

use std::io::{self, Write};

use tracing::subscriber::with_default;
use tracing_subscriber::fmt;

use super::*;
use crate::daemon::config::Every;
use crate::daemon::profile::Take;
use crate::diagnosis::{self, Cause};
use crate::memory;
use crate::profile::{InWindows, JUDGED_SPANS};

/// Captures what this thread logs.
fn logged(what: impl FnOnce()) -> String {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let log = Log::default();
    let writer = log.clone();
    let subscriber = fmt().with_ansi(false).without_time().with_writer(move || writer.clone()).finish();
    with_default(subscriber, what);
    let bytes = log.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// A profile in windows of time, which can have no verdict.
fn in_windows(pid: Pid, start_time: u64) -> Profile {
    let mut profile = profile(pid, start_time);
    profile.coverage.windows = Some(InWindows { windows: 12, ..InWindows::default() });
    profile.unjudge();
    profile
}

fn found(profile: &Profile) -> Finding {
    let pid = Pid::new(profile.process.pid).unwrap();
    Finding::of(pid, &Entry::of(Id::of(profile), profile, "a test"))
}

#[test]
fn the_log_says_of_a_process_what_its_finding_says() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let leaks = finding(pid, start_time);
    let mut fixed = leaks.clone();
    fixed.leaking = 0;
    let early = unjudged(pid, start_time);
    let never = found(&in_windows(pid, start_time));
    let begins = ["leaks: ", "was not found to leak: ", "is not judged: ", "cannot be judged: "];
    let [leaks_so, fixed_so, early_so, never_so] = begins;
    for (before, last, expected) in [
        (None, &leaks, leaks_so),
        (None, &fixed, fixed_so),
        (None, &early, early_so),
        (None, &never, never_so),
        (Some(&leaks), &early, leaks_so),
        (Some(&leaks), &never, leaks_so),
        (Some(&leaks), &fixed, fixed_so),
        (Some(&fixed), &early, fixed_so),
        (Some(&fixed), &never, fixed_so),
        (Some(&fixed), &leaks, leaks_so),
        (Some(&never), &early, early_so),
        (Some(&early), &never, never_so),
    ] {
        let mut core = fixture.shared.core();
        core.findings.clear();
        if let Some(before) = before {
            core.handle(Message::Found(before.clone()));
        }
        let is_never = std::ptr::eq(last, &raw const never);
        let mut last = last.clone();
        last.verdict_profile = format!("1600000000000-{pid}").parse().ok();
        let outcome = Ok(Some(last.clone()));
        let said = logged(|| {
            core.handle(Message::Ended(run(pid, start_time, outcome)));
        });

        let known = &core.findings[&pid];
        let case = format!("{before:?}, then {last:?}: {said}");
        let worst = known.worst.as_ref().filter(|_| known.leaking > 0);
        let worst = worst.map_or_else(String::new, |worst| format!("{worst}; "));
        assert!(said.contains(&format!("(pid {pid}) {expected}{worst}{}", known.verdict)), "{case}");
        assert!(said.contains("; resident memory "), "{case}");
        let id = known.verdict_profile.as_ref().unwrap();
        assert!(said.contains(&format!("localhost/profiles/{id}/report.html")), "{case}");
        assert_eq!(known.judged, expected == leaks_so || expected == fixed_so, "{case}");
        assert_eq!(known.leaking > 0, expected == leaks_so, "{case}");
        // The named profile is the one with the verdict, and the last one's message is included.
        assert!(said.contains(&format!("profile=\"{}\"", known.verdict_profile.as_ref().unwrap())), "{case}");
        assert!(said.contains(&last.last_verdict), "{case}");
        // Warnings alone report leaks, and runs that ended inconclusively.
        assert_eq!(said.contains("WARN"), expected == leaks_so || is_never, "{case}");
        assert_eq!(said.contains("an earlier profile"), known.judged && !known.is_last_judged, "{case}");
    }
}

#[test]
fn a_verdict_holds_even_if_later_snapshots_of_the_run_are_inconclusive() {
    let mut fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let (judged, mut last) = (profile(pid, start_time), in_windows(pid, start_time));
    last.taken_at = judged.taken_at + jiff::SignedDuration::from_secs(1);
    let expected = found(&judged);
    let profiles = Mutex::new(vec![last.clone(), judged]);
    fixture.profiler = Arc::new(move |_, take: Take, _| {
        while let Some(profile) = profiles.lock().unwrap().pop() {
            take(vec![profile]);
        }
        Ok(())
    });

    fixture.begin(pid);
    let outcome = loop {
        if let Message::Ended(Run { outcome, .. }) = fixture.messages.blocking_recv().unwrap() {
            break outcome.unwrap().unwrap();
        }
    };

    assert_eq!((&outcome.verdict, outcome.leaking), (&expected.verdict, expected.leaking));
    assert!(outcome.judged && outcome.is_final() && !outcome.is_last_judged);
    assert_eq!(outcome.last_profile, Some(Id::of(&last)));
    assert_eq!(outcome.verdict_profile, expected.verdict_profile);
}

#[test]
fn what_grew_and_is_no_leak_is_a_warning_with_its_cause() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let mut fixed = finding(pid, start_time);
    (fixed.leaking, fixed.judged) = (0, true);
    let said = |growth: Option<Grown>| {
        let run = Run { growth, ..run(pid, start_time, Ok(Some(fixed.clone()))) };
        logged(|| fixture.shared.core().handle(Message::Ended(run)))
    };

    let grew = "it grew by 108.0 MiB in 15.0 s, mostly by Java heap";
    let grown = said(Some(java_heap_grown()));
    assert!(grown.contains("WARN") && grown.contains("grows, but was not found to leak"), "{grown}");
    assert!(grown.contains(&format!("; {grew}")) && !grown.contains("not growing now"), "{grown}");
    let metrics = metrics::of_processes(&fixture.shared.core());
    let labels = format!("pid=\"{pid}\",comm=\"cat\"");
    let row = format!("jjleak_process_memory_bytes{{{labels},kind=\"java_heap\"}} {}", 200 << 20);
    let cause = format!("jjleak_process_growth_cause_bytes{{{labels},cause=\"java_heap\"}} {}", 100 << 20);
    assert!(metrics.contains(&row) && metrics.contains(&cause), "{metrics}");
    let still = said(None);
    assert!(!still.contains("WARN") && still.contains("not growing now"), "{still}");
}

/// Growth of a process, mostly of its Java heap.
fn java_heap_grown() -> Grown {
    grown(Cause::JavaHeap)
}

fn grown(cause: Cause) -> Grown {
    let finding = diagnosis::Finding {
        cause,
        bytes: 100 << 20,
        confidence: 0.9,
        evidence: vec!["it survives collections".to_owned()],
        to_do: "jcmd".to_owned(),
    };
    Grown {
        elapsed: Duration::from_secs(15),
        resident: 108 << 20,
        kinds: Vec::new(),
        now: BTreeMap::from([(memory::Kind::JavaHeap, 200 << 20)]),
        findings: vec![finding],
    }
}

#[test]
fn a_java_heap_that_grows_is_profiled_next_and_leaves_the_finding_on_allocations() {
    let mut fixture = Fixture::new();
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&kinds);
    fixture.profiler = Arc::new(move |order, take: Take, _| {
        seen.lock().unwrap().push(order.kind);
        let mut taken = profile(order.pid, order.start_time);
        taken.coverage.source = order.kind.source();
        take(vec![taken]);
        Ok(())
    });
    let cat = Cat::start();
    fixture.scan();
    let pid = cat.pid();
    fixture.begin(pid);
    let said = end_of_run(&mut fixture, Some(Cause::JavaHeap));
    assert!(said.contains(" leaks: ") && said.contains("(its Java heap is profiled next)"), "{said}");
    assert_eq!(fixture.state(pid), "profiling");

    fixture.shared.begin(&fixture.profiler, &fixture.sender);
    assert_eq!(fixture.shared.core().jobs.len(), 1, "its Java heap is not profiled");
    let said = end_of_run(&mut fixture, Some(Cause::JavaHeap));

    assert_eq!(*kinds.lock().unwrap(), [Kind::Allocations, Kind::JavaHeap]);
    assert!(said.contains("WARN") && said.contains("has a Java heap that grew: "), "{said}");
    assert!(said.contains(" allocated in the Java heap in ") && said.contains("/report.html"), "{said}");
    assert_eq!(fixture.state(pid), "back_off");
    let core = fixture.shared.core();
    let heap = &core.others[&(pid, SourceKind::JavaHeap)];
    assert!(core.findings[&pid].leaking > 0 && heap.verdict.contains("Java heap"));
    assert!(core.next.is_empty(), "it is profiled again and again");
}

#[test]
fn what_grows_beside_malloc_is_profiled_next_if_the_configuration_permits_it() {
    let mut fixture = Fixture::new();
    let kinds = Arc::new(Mutex::new(Vec::new()));
    let (seen, leaks) = (Arc::clone(&kinds), Arc::new(AtomicBool::new(false)));
    let leaks_now = Arc::clone(&leaks);
    fixture.profiler = Arc::new(move |order, take: Take, _| {
        seen.lock().unwrap().push(order.kind);
        let mut taken = profile(order.pid, order.start_time);
        taken.coverage.source = order.kind.source();
        if !leaks_now.load(Ordering::Relaxed) {
            taken.verdicts.clear();
        }
        take(vec![taken]);
        Ok(())
    });
    let cat = Cat::start();
    fixture.scan();
    let pid = cat.pid();
    let pages = Some((Kind::Pages, "has grown by memory that its allocations do not explain: "));
    for (cause, is_leaking, next) in [
        (Cause::OwnPool, false, pages),
        (Cause::SharedMemory, true, pages),
        (Cause::Unknown, false, pages),
        (Cause::Unknown, true, None),
        (Cause::MappedFiles, false, Some((Kind::MappedFiles, "was not found to leak what it allocates: "))),
        (Cause::NativeLeak, true, None),
        (Cause::Threads, true, None),
    ] {
        kinds.lock().unwrap().clear();
        leaks.store(is_leaking, Ordering::Relaxed);
        fixture.begin(pid);
        let said = end_of_run(&mut fixture, Some(cause));
        let Some((kind, outcome)) = next else {
            assert_eq!(fixture.state(pid), "back_off", "{cause:?}: {said}");
            continue;
        };
        assert!(said.contains("profiled next)"), "{cause:?}: {said}");
        fixture.shared.begin(&fixture.profiler, &fixture.sender);
        let said = end_of_run(&mut fixture, Some(cause));
        assert!(said.contains("WARN") && said.contains(outcome), "{cause:?}: {said}");
        assert!(said.contains("(the report names the stacks that "), "{cause:?}: {said}");
        assert_eq!(fixture.state(pid), "back_off", "{cause:?} is profiled again and again");
        assert_eq!(*kinds.lock().unwrap(), [Kind::Allocations, kind], "{cause:?}");
    }
    // Mappings cannot be judged either if counting is bounded.
    let mut core = fixture.shared.core();
    let start_time = core.watcher.get_mut(pid).unwrap().process.start_time;
    let growth = Some(grown(Cause::MappedFiles));
    let bounded = run(pid, start_time, Ok(Some(found(&in_windows(pid, start_time)))));
    assert_eq!(core.kind_after(&Run { growth, ..bounded }), Some(Kind::Pages));
    core.config.profile.follow_up = false;
    drop(core);
    fixture.begin(pid);
    let said = end_of_run(&mut fixture, Some(Cause::OwnPool));
    assert!(fixture.state(pid) == "back_off" && said.contains("(to do: jcmd)"), "{said}");
}

/// Waits for the end of a run, in which the process grew from this cause; returns what the daemon logs.
fn end_of_run(fixture: &mut Fixture, cause: Option<Cause>) -> String {
    let run = loop {
        if let Message::Ended(run) = fixture.messages.blocking_recv().unwrap() {
            break run;
        }
    };
    let run = Run { growth: cause.map(grown), ..run };
    logged(|| fixture.shared.core().handle(Message::Ended(run)))
}

#[test]
fn a_profile_without_a_verdict_is_followed_by_one_of_everything_where_the_configuration_permits_it() {
    let mut fixture = Fixture::new();
    let orders = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&orders);
    fixture.profiler = Arc::new(move |order, take: Take, _| {
        seen.lock().unwrap().push(*order);
        let mut taken = profile(order.pid, order.start_time);
        if order.max_overhead.is_some() {
            taken.coverage.windows = Some(InWindows { windows: 12, ..InWindows::default() });
            taken.unjudge();
        }
        take(vec![taken]);
        Ok(())
    });
    let cat = Cat::start();
    fixture.scan();
    let pid = cat.pid();
    fixture.begin(pid);
    let said = end_of_run(&mut fixture, None);
    assert!(said.contains(" cannot be judged: "), "{said}");
    assert_eq!(fixture.state(pid), "back_off", "everything is counted without permission");

    fixture.shared.core().config.profile.exact_for = Every(Some(Duration::from_secs(60)));
    fixture.begin(pid);
    end_of_run(&mut fixture, None);
    assert_eq!(fixture.state(pid), "profiling");
    let said = logged(|| fixture.shared.begin(&fixture.profiler, &fixture.sender));
    assert!(said.contains(": counting everything for 1 min 0 s, which profile.exact_for permits"), "{said}");
    let said = end_of_run(&mut fixture, None);
    assert!(said.contains(" leaks: "), "{said}");
    assert_eq!(fixture.state(pid), "back_off");

    let orders = orders.lock().unwrap();
    let [_, bounded, exact] = orders[..] else { panic!("{orders:?}") };
    assert_eq!((bounded.max_overhead, exact.max_overhead), (Some(10.), None));
    assert_eq!((exact.duration, exact.may_extend), (Duration::from_secs(60), false));
    assert!(exact.settle * JUDGED_SPANS < exact.duration, "{exact:?}");
}

#[test]
fn a_jvm_whose_heap_cannot_be_followed_is_no_failure_to_be_alerted_of() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.scan();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    for (kind, failed) in [(Kind::JavaHeap, 0), (Kind::Allocations, 1)] {
        let run = Run { kind, ..run(pid, start_time, Err("it runs JDK 8".to_owned())) };
        let said = logged(|| fixture.shared.core().handle(Message::Ended(run)));
        assert!(said.contains("WARN") && said.contains("it runs JDK 8"), "{said}");
        assert_eq!(said.contains("cannot profile the Java heap of "), kind == Kind::JavaHeap, "{said}");
        assert_eq!(fixture.shared.core().profiles_failed, failed);
    }
}
