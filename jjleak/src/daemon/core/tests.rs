use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use regex::Regex;
use tokio::sync::mpsc::{Receiver, channel};

use super::*;
use crate::daemon::config::Pattern;

/// A process that does nothing, ended when dropped.
struct Cat(Child);

impl Cat {
    fn start() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::new(self.0.id()).unwrap()
    }
}

impl Drop for Cat {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A daemon that watches cats, and whose profiler does not return before it is let go.
struct Fixture {
    shared: Shared,
    profiler: Profiler,
    let_go: mpsc::Sender<()>,
    sender: Sender<Message>,
    messages: Receiver<Message>,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.watch.names = vec![Pattern(Regex::new("^cat$").unwrap())];
        config.watch.jvms = false;
        let shared = Shared::new(config, Watcher::new().0, History::open(folder.path()).unwrap().0, None);
        let (let_go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let profiler: Profiler = Arc::new(move |_, _, _| {
            let _ = wait.lock().unwrap().recv();
            Ok(())
        });
        let (sender, messages) = channel(8);
        Self { shared, profiler, let_go, sender, messages, _folder: folder }
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

fn finding(pid: Pid, start_time: u64) -> Finding {
    Finding {
        pid,
        start_time,
        verdict: "it leaks".to_owned(),
        leaking: 1,
        leak_rate: 1.,
        judged: true,
        live_bytes: 1,
        lost: Vec::new(),
        kept: None,
    }
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
        assert!(crate::daemon::metrics::of_processes(&core).contains("\njjleak_profiles_stuck 1\n"));
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
fn what_is_found_of_a_process_is_not_entered_for_another_with_its_pid() {
    let fixture = Fixture::new();
    let cat = Cat::start();
    fixture.look();
    let (pid, start_time) = (cat.pid(), fixture.start_time(cat.pid()));
    fixture.begin(pid);
    let mut core = fixture.shared.core();
    let before =
        Message::Ended { pid, start_time: start_time - 1, outcome: Ok(Some(finding(pid, start_time - 1))) };
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
