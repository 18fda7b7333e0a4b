//! The processes that are watched: found when they start, looked at until they end.
//!
//! In: the kernel's process events, and `/proc`. Out: a [`Case`] for each. No process notices any of it.

mod matching;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use matching::{Candidate, is_wanted};

use super::config::Config;
use super::decide::{Case, Sample};
use super::handover::Inheritance;
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
    /// Processes that were wanted and found no room since the last search among all.
    turned_away: BTreeSet<Pid>,
    /// What is known of processes that have not been found again yet.
    inheritance: Inheritance,
}

/// What a look has shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Processes that are watched from now on.
    pub found: Vec<Pid>,
    /// Processes that have ended.
    pub ended: Vec<Pid>,
    /// How many of those that are found go on where another daemon was.
    pub resumed: usize,
    /// How many others that it watched are not watched any more.
    pub forgotten: usize,
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
        let watcher = Self {
            watched: BTreeMap::new(),
            starts,
            new: BTreeMap::new(),
            rescanned: None,
            turned_away: BTreeSet::new(),
            inheritance: Inheritance::new(),
        };
        (watcher, error)
    }

    /// Has processes that another daemon has watched go on where they were, if the next look finds them.
    pub fn inherit(&mut self, inheritance: Inheritance) {
        self.inheritance = inheritance;
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

    /// How many wanted processes have found no room since the last search among all.
    #[must_use]
    pub fn turned_away(&self) -> usize {
        self.turned_away.len()
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
            self.turned_away.clear();
            pids().collect()
        } else {
            let candidates = self.new.keys().copied().collect();
            self.new.values_mut().for_each(|looks| *looks -= 1);
            self.new.retain(|_, looks| *looks > 0);
            candidates
        };
        let inherited = self.inheritance.len();
        for pid in candidates {
            if !self.watched.contains_key(&pid) {
                self.take_in(pid, now, config, &mut changes);
            }
        }
        // The first look is at all that are there.
        self.inheritance.clear();
        changes.forgotten = inherited - changes.resumed;
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
    fn take_in(&mut self, pid: Pid, now: Duration, config: &Config, changes: &mut Changes) {
        if pid.number().get() == std::process::id() {
            return;
        }
        // Processes end while they are looked at, and some belong to nobody: none of that is of interest.
        let Ok(process) = Process::open(pid) else { return };
        let Ok(memory) = ResidentMemory::open(pid) else { return };
        let case = Case::new(now, started(&process));
        let mut watched = Watched { group: ControlGroup::of(pid), process, case, memory };
        if !watched.is_wanted(config) {
            return;
        }
        if self.watched.len() >= config.watch.max_processes.0 {
            self.turned_away.insert(pid);
            return;
        }
        let process = &watched.process;
        let left = self.inheritance.remove(&(pid, process.start_time));
        if let Some(past) = left.and_then(|left| left.of_program(&process.exe)) {
            watched.case = Case::resume(now, started(process), past, config);
            changes.resumed += 1;
        }
        self.watched.insert(pid, watched);
        changes.found.push(pid);
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
        let (group, pressure) = (self.group.usage(), self.group.pressure());
        let sample = Sample { resident, group, limit: MemoryLimit::of(self.process.pid), pressure };
        self.case.observe(now, sample, config);
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
        exe.is_ok_and(|exe| program(&exe) != program(&self.process.exe)) && !self.case.state().has_probes()
    }
}

/// The path of a program. Of one whose file was replaced, as by an upgrade of its package, the kernel says that it is deleted:
/// whoever runs it goes on.
#[must_use]
pub fn program(exe: &Path) -> &Path {
    let path = exe.as_os_str().as_bytes();
    Path::new(OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path)))
}

/// When a process was started, since the host was.
const fn started(process: &Process) -> Duration {
    Duration::from_millis(process.start_time.saturating_mul(1000 / TICKS))
}

#[cfg(test)]
pub(super) mod cat;
#[cfg(test)]
mod tests;
