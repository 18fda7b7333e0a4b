//! The processes that are watched: found when they start, looked at until they end.
//!
//! In: the kernel's process events, and `/proc`. Out: a [`Case`] for each. No process notices any of it.

mod matching;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::time::Duration;

use matching::{Candidate, is_wanted};

use super::config::Config;
use super::decide::{Case, Sample};
use crate::processes::{
    ControlGroup, MemoryLimit, Pid, Process, Resident, ResidentMemory, Started, Starts, pids,
};

/// A program that has just started maps its libraries later: so often it is looked at, at one look after the other.
const LOOKS_AT_NEW: u8 = 2;
/// More than start between two looks, but for a storm: then all processes are looked through.
const MAX_NEW: usize = 4096;
/// Ticks in a second of what `/proc/PID/stat` counts start times in (`USER_HZ`; the same on every architecture of Linux).
const TICKS: u64 = 100;

/// A process that is watched.
#[derive(Debug)]
pub struct Watched {
    /// Who it is.
    pub process: Process,
    /// Its control group.
    pub group: ControlGroup,
    /// Where it stands.
    pub case: Case,
    memory: ResidentMemory,
}

/// All processes that are watched.
#[derive(Debug)]
pub struct Watcher {
    watched: BTreeMap<Pid, Watched>,
    starts: Option<Starts>,
    /// Those that have just started, and how often they are still looked at.
    new: BTreeMap<Pid, u8>,
    rescanned: Option<Duration>,
    /// Processes that were wanted and found no room.
    turned_away: usize,
}

/// What a look has shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Processes that are watched from now on.
    pub found: Vec<Pid>,
    /// Processes that have ended.
    pub ended: Vec<Pid>,
}

impl Watcher {
    /// Watches nobody yet. The second value is why the kernel does not tell of processes that start, if it does not: they are
    /// found later then.
    #[must_use]
    pub fn new() -> (Self, Option<io::Error>) {
        let (starts, error) = match Starts::listen() {
            Ok(starts) => (Some(starts), None),
            Err(error) => (None, Some(error)),
        };
        let (watched, new) = (BTreeMap::new(), BTreeMap::new());
        (Self { watched, starts, new, rescanned: None, turned_away: 0 }, error)
    }

    /// Those that are watched.
    pub fn iter(&self) -> impl Iterator<Item = &Watched> {
        self.watched.values()
    }

    /// One of them.
    pub fn get_mut(&mut self, pid: Pid) -> Option<&mut Watched> {
        self.watched.get_mut(&pid)
    }

    /// One of them, and no other that has its PID now.
    pub fn same(&mut self, pid: Pid, start_time: u64) -> Option<&mut Watched> {
        self.watched.get_mut(&pid).filter(|watched| watched.process.start_time == start_time)
    }

    /// How many wanted processes found no room at the last search.
    #[must_use]
    pub const fn turned_away(&self) -> usize {
        self.turned_away
    }

    /// Looks at all that are watched, and for others to watch.
    pub fn look(&mut self, now: Duration, config: &Config) -> Changes {
        let mut changes = Changes::default();
        let started = self.starts.as_ref().map(Starts::take).unwrap_or_default();
        let Started { pids: started, missed } = started;
        let is_due = self.rescanned.is_none_or(|last| now.saturating_sub(last) >= config.watch.rescan.0);
        self.new.extend(started.iter().map(|pid| (*pid, LOOKS_AT_NEW)));
        let all = is_due || missed || self.new.len() > MAX_NEW;
        // What runs another program now is another process to its users. Not of every program is told that it starts.
        self.watched.retain(|pid, watched| {
            let is_another = (all || started.contains(pid)) && watched.is_another();
            if is_another {
                changes.ended.push(*pid);
            }
            !is_another
        });
        let candidates: BTreeSet<Pid> = if all {
            self.rescanned = Some(now);
            self.new.clear();
            self.turned_away = 0;
            pids().collect()
        } else {
            let candidates = self.new.keys().copied().collect();
            self.new.values_mut().for_each(|looks| *looks -= 1);
            self.new.retain(|_, looks| *looks > 0);
            candidates
        };
        for pid in candidates {
            if !self.watched.contains_key(&pid) && self.take_in(pid, now, config) {
                changes.found.push(pid);
            }
        }
        self.watched.retain(|pid, watched| {
            let runs = watched.look(now, config);
            if !runs {
                changes.ended.push(*pid);
            }
            runs
        });
        changes
    }

    /// Applies rules that have changed: those that are not wanted any more are let go, but for those that are being profiled.
    pub fn reconsider(&mut self, config: &Config) {
        self.rescanned = None;
        self.watched.retain(|_, watched| watched.case.state().has_probes() || watched.is_wanted(config));
    }

    /// Takes a process in, if it is wanted.
    fn take_in(&mut self, pid: Pid, now: Duration, config: &Config) -> bool {
        if pid.number().get() == std::process::id() {
            return false;
        }
        // Processes end while they are looked at, and some belong to nobody: none of that is of interest.
        let Ok(process) = Process::open(pid) else { return false };
        let Ok(memory) = ResidentMemory::open(pid) else { return false };
        let case = Case::new(now, age(&process).unwrap_or_default());
        let watched = Watched { group: ControlGroup::of(pid), process, case, memory };
        if !watched.is_wanted(config) {
            return false;
        }
        if self.watched.len() >= config.watch.max_processes.0 {
            self.turned_away += 1;
            return false;
        }
        self.watched.insert(pid, watched);
        true
    }
}

impl Watched {
    /// Looks at its memory; whether it runs.
    fn look(&mut self, now: Duration, config: &Config) -> bool {
        let resident = match self.memory.read() {
            Ok(Resident::Bytes(bytes)) => bytes,
            Ok(Resident::Ended) => return false,
            // Nothing is known of it this time.
            Err(error) => {
                tracing::debug!("{} (pid {}): {error}", self.process.comm, self.process.pid);
                return true;
            }
        };
        let limit = MemoryLimit::of(self.process.pid).map(|limit| (limit.limit, limit.available));
        self.case.observe(now, Sample { resident, limit, pressure: self.group.pressure() }, config);
        true
    }

    fn is_wanted(&self, config: &Config) -> bool {
        let exe = self.process.exe.to_string_lossy();
        let candidate = Candidate { process: &self.process, exe: &exe, group: &self.group };
        is_wanted(&candidate, &config.watch)
    }

    /// Whether the process runs another program than when it was taken in.
    fn is_another(&self) -> bool {
        let exe = fs::read_link(self.process.pid.proc_file("exe"));
        exe.is_ok_and(|exe| exe != self.process.exe) && !self.case.state().has_probes()
    }
}

/// For how long a process has run.
fn age(process: &Process) -> Option<Duration> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split(' ').next()?.parse().ok()?;
    let started = Duration::from_millis(process.start_time.checked_mul(1000 / TICKS)?);
    Some(Duration::try_from_secs_f64(seconds).ok()?.saturating_sub(started))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    use regex::Regex;

    use super::*;
    use crate::daemon::config::{Count, Pattern};

    /// Ended when dropped.
    struct Cat(Child);

    impl Cat {
        fn start() -> Self {
            let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // It runs when it has answered.
            cat.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            cat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            Self(cat)
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

    fn cats() -> Config {
        let mut config = Config::default();
        config.watch.names = vec![Pattern(Regex::new("^cat$").unwrap())];
        config
    }

    #[test]
    fn a_process_is_found_looked_at_and_let_go_when_it_has_ended() {
        let (mut watcher, _) = Watcher::new();
        let (first, config) = (Cat::start(), cats());
        assert!(watcher.look(Duration::ZERO, &config).found.contains(&first.pid()));
        assert!(watcher.get_mut(first.pid()).unwrap().case.last().resident > 0);
        let second = Cat::start();
        let (pid, due) = (second.pid(), config.watch.rescan.0);
        assert!(watcher.look(due, &config).found.contains(&pid));
        drop(second);
        assert!(watcher.look(due, &config).ended.contains(&pid));
        assert!(watcher.get_mut(pid).is_none() && watcher.get_mut(first.pid()).is_some());
    }

    #[test]
    fn one_that_starts_is_found_at_the_next_look_where_the_kernel_tells_of_it() {
        let (mut watcher, error) = Watcher::new();
        let config = cats();
        watcher.look(Duration::ZERO, &config);
        let cat = Cat::start();
        let found = watcher.look(Duration::from_secs(1), &config).found;
        assert_eq!(found.contains(&cat.pid()), error.is_none());
    }

    #[test]
    fn no_more_are_watched_than_there_is_room_for_and_rules_that_change_hold_at_once() {
        let (mut watcher, _) = Watcher::new();
        let (_first, _second) = (Cat::start(), Cat::start());
        let mut config = cats();
        config.watch.max_processes = Count(1);
        config.watch.jvms = false;
        watcher.look(Duration::ZERO, &config);
        assert_eq!(watcher.iter().count(), 1);
        assert!(watcher.turned_away() >= 1);
        config.watch.names.clear();
        watcher.reconsider(&config);
        assert_eq!(watcher.iter().count(), 0);
    }

    #[test]
    fn another_program_in_the_same_process_is_noticed_also_where_the_kernel_does_not_tell_of_it() {
        let (mut watcher, _) = Watcher::new();
        watcher.starts = None;
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", "read line; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = Cat(shell.spawn().unwrap());
        let (pid, mut config) = (shell.pid(), cats());
        config.watch.names = vec![Pattern(Regex::new("^(sh|cat)$").unwrap())];
        assert!(watcher.look(Duration::ZERO, &config).found.contains(&pid));
        shell.0.stdin.as_mut().unwrap().write_all(b"line\nx").unwrap();
        shell.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let changes = watcher.look(config.watch.rescan.0, &config);
        assert!(changes.ended.contains(&pid) && changes.found.contains(&pid), "{changes:?}");
        assert_eq!(watcher.get_mut(pid).unwrap().process.comm, "cat");
    }

    #[test]
    fn a_process_that_has_just_started_is_young() {
        let cat = Cat::start();
        assert!(age(&Process::open(cat.pid()).unwrap()).unwrap() < Duration::from_secs(60));
    }
}
