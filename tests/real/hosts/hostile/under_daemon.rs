//! Profiles hostile processes under a daemon whose control group may use 512 MiB.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::entry::Entry;
use super::run::Hostile;
use crate::support::bounded::{LONG, SOON, until};
use crate::support::compile;
use crate::support::daemon::{Daemon, Place};
use crate::support::jjleak::PROGRAM;
use crate::support::process::status;

/// `MemoryMax` of the unit.
const MAX_BYTES: u64 = 512 << 20;
/// Profiles are as short as they can be.
const PROFILE: &str = "[profile]\nduration = \"5s\"\nsettle = \"1s\"\nsnapshot = \"1s\"\nback_off = \"1s\"\n\
    [suspect]\nlimit_within = \"0s\"\nlimit_percent = 100.0\npressure_percent = 100.0\ngrowth_bytes = \"1TiB\"";
/// A profile that hangs is given up after this time; the next scan is a second later.
const MAX_PROFILE: Duration = Duration::from_secs(60);

/// A daemon in a control group of its own.
pub(super) struct Confined {
    daemon: Daemon,
    place: Place,
    group: Group,
}

impl Confined {
    /// Starts the daemon of a worker.
    pub(super) fn start(worker: usize) -> Self {
        let place = Place::new(&format!("harm{worker}"));
        let http =
            format!("[http]\nlisten = \"unix:{}\"\nshow_command_lines = true", place.socket().display());
        place.configure("warm_up = \"1s\"", &format!("{PROFILE}\n{http}"));
        let group = Group::new(worker);
        let daemon = place.spawn_as(group.command()).until_it_watches();
        Self { daemon, place, group }
    }

    /// Has a hostile process profiled. Returns the seconds until that has ended, and the daemon's highest resident memory in KiB.
    pub(super) fn profile(&self, entry: &Entry) -> (f64, u64) {
        let pid = self.daemon.pid();
        // Resets the highest resident memory (proc_pid_clear_refs(5)).
        fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
        let hostile = Hostile::start(entry, Some(&self.place.program(compile::hostile())));
        let begin = Instant::now();
        let profiled = self.metric("jjleak_profiles_total");
        // A process that has another name by now is not watched.
        let asked = format!("POST /api/v1/processes/{}/profile", hostile.pid());
        let is_watched = (0..30).any(|_| {
            thread::sleep(Duration::from_millis(200));
            self.place.ask(&asked).0.starts_with("HTTP/1.1 202 ")
        });
        if is_watched {
            until(SOON, "a profile", || {
                self.metric("jjleak_profiles_total") > profiled || self.profiling() > 0
            });
            until(MAX_PROFILE, "the end of a profile", || self.profiling() == 0);
        }
        for path in ["/", "/metrics", "/api/v1/processes"] {
            let (head, _) = self.place.ask(&format!("GET {path}"));
            assert!(head.starts_with("HTTP/1.1 200 "), "{}: {head}", entry.name);
        }
        let seconds = begin.elapsed().as_secs_f64();
        drop(hostile);
        (seconds, status(pid, "VmHWM:"))
    }

    /// A figure of the daemon; 0 if there is none.
    fn metric(&self, name: &str) -> u64 {
        let (_, body) = self.place.ask("GET /metrics");
        let text = String::from_utf8(body).unwrap();
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
    }

    /// Number of processes that are being profiled.
    fn profiling(&self) -> usize {
        let (_, body) = self.place.ask("GET /api/v1/processes");
        let all: Value = serde_json::from_slice(&body).unwrap();
        let processes = all["processes"].as_array().unwrap().iter();
        processes.filter(|process| process["state"] == "profiling" || process["state"] == "suspected").count()
    }

    /// Ends it. Fails if it has been killed or restarted meanwhile.
    pub(super) fn end(self) {
        self.daemon.end();
        assert_eq!(self.group.kills(), 0, "the daemon's control group was out of memory");
    }
}

/// A control group with a limit of memory; removed when dropped.
pub(super) struct Group {
    folder: PathBuf,
    is_second: bool,
}

impl Group {
    fn new(worker: usize) -> Self {
        let second = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(second.join("cgroup.subtree_control")).unwrap_or_default();
        let is_second = controllers.contains("memory");
        let parent = if is_second { second.to_owned() } else { second.join("memory") };
        let folder = parent.join(format!("jjleak-test-{}-{worker}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let limit = if is_second { "memory.max" } else { "memory.limit_in_bytes" };
        fs::write(folder.join(limit), MAX_BYTES.to_string()).unwrap();
        Self { folder, is_second }
    }

    /// The daemon, which enters the group first.
    fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.folder);
        command.args([PROGRAM, "daemon"]);
        command
    }

    /// Number of processes that have been killed.
    fn kills(&self) -> u64 {
        let file = if self.is_second { "memory.events" } else { "memory.oom_control" };
        let events = fs::read_to_string(self.folder.join(file)).unwrap();
        events.lines().find_map(|line| line.strip_prefix("oom_kill ")).unwrap().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        until(LONG, "the end of a control group", || fs::remove_dir(&self.folder).is_ok());
    }
}
