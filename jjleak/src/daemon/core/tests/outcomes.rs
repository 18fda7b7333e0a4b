//! What the log says when profiling has ended.

use std::io::{self, Write};

use tracing::subscriber::with_default;
use tracing_subscriber::fmt;

use super::*;
use crate::daemon::profile::Take;
use crate::profile::InWindows;

/// What is logged meanwhile by this thread.
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

/// A profile that was taken in windows of time, which can judge nothing.
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
fn nothing_else_is_said_of_a_process_than_what_is_known_of_it() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    let leaks = finding(pid, start_time);
    let mut mended = leaks.clone();
    mended.leaking = 0;
    let early = unjudged(pid, start_time);
    let never = found(&in_windows(pid, start_time));
    let begins = ["leaks: ", "was not found to leak: ", "is not judged: ", "cannot be judged: "];
    let [leaks_so, mended_so, early_so, never_so] = begins;
    for (before, last, expected) in [
        (None, &leaks, leaks_so),
        (None, &mended, mended_so),
        (None, &early, early_so),
        (None, &never, never_so),
        (Some(&leaks), &early, leaks_so),
        (Some(&leaks), &never, leaks_so),
        (Some(&leaks), &mended, mended_so),
        (Some(&mended), &early, mended_so),
        (Some(&mended), &never, mended_so),
        (Some(&mended), &leaks, leaks_so),
        (Some(&never), &early, early_so),
        (Some(&early), &never, never_so),
    ] {
        let mut core = fixture.shared.core();
        core.findings.clear();
        if let Some(before) = before {
            core.hear(Message::Found(before.clone()));
        }
        let is_never = std::ptr::eq(last, &raw const never);
        let mut last = last.clone();
        last.told_in = format!("1600000000000-{pid}").parse().ok();
        let outcome = Ok(Some(last.clone()));
        let said = logged(|| core.hear(Message::Ended { pid, start_time, outcome, is_too_dear: false }));

        let known = &core.findings[&pid];
        let case = format!("{before:?}, then {last:?}: {said}");
        assert!(said.contains(&format!("cat (pid {pid}) {expected}{}", known.verdict)), "{case}");
        assert_eq!(known.judged, expected == leaks_so || expected == mended_so, "{case}");
        assert_eq!(known.leaking > 0, expected == leaks_so, "{case}");
        // The profile that is named is the one that tells it, and what the last one had to say is not left out.
        assert!(said.contains(&format!("profile=\"{}\"", known.told_in.as_ref().unwrap())), "{case}");
        assert!(said.contains(&last.last_verdict), "{case}");
        // Whoever is told of warnings alone is told of leaks, and of what could not be judged in the end.
        assert_eq!(said.contains("WARN"), expected == leaks_so || is_never, "{case}");
        assert_eq!(said.contains("an earlier profile"), known.judged && !known.is_last_judged, "{case}");
    }
}

#[test]
fn a_verdict_holds_to_the_end_of_profiling_though_nothing_can_be_judged_any_more() {
    let mut fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
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
        if let Message::Ended { outcome, .. } = fixture.messages.blocking_recv().unwrap() {
            break outcome.unwrap().unwrap();
        }
    };

    assert_eq!((&outcome.verdict, outcome.leaking), (&expected.verdict, expected.leaking));
    assert!(outcome.judged && outcome.is_final() && !outcome.is_last_judged);
    assert_eq!(outcome.kept, Some(Id::of(&last)));
    assert_eq!(outcome.told_in, expected.told_in);
}
