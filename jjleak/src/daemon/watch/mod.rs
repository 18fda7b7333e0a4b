//! Finds processes when they start, and scans their memory until they end.
//!
//! In: the kernel's process events, and `/proc`. Out: a [`Case`] for each watched process. The processes are not disturbed.

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
use super::handover::SavedProcesses;
use crate::processes::{
    ControlGroup, MemoryLimit, Pid, Process, Resident, ResidentMemory, Started, Starts, pids,
};

/// Number of scans in which a new process is checked: a program maps its libraries only after its start.
const SCANS_OF_NEW: u8 = 2;
/// Maximum number of new processes between two scans. If there are more, as in a fork storm, all processes are scanned.
const MAX_NEW: usize = 4096;
/// Clock ticks per second of start times in `/proc/PID/stat` (`USER_HZ`; the same on all architectures of Linux).
const TICKS: u64 = 100;

/// A watched process.
#[derive(Debug)]
pub struct Watched {
    /// Its identity.
    pub process: Process,
    /// Its control group.
    pub group: ControlGroup,
    /// Its state.
    pub case: Case,
    memory: ResidentMemory,
}

/// All watched processes.
#[derive(Debug)]
pub struct Watcher {
    watched: BTreeMap<Pid, Watched>,
    starts: Option<Starts>,
    /// New processes, and the number of scans in which each is still checked.
    new: BTreeMap<Pid, u8>,
    rescanned: Option<Duration>,
    /// Processes that match but exceed `watch.max_processes`, since the last scan of all processes.
    turned_away: BTreeSet<Pid>,
    /// Saved state of processes that have not been found again yet.
    saved: SavedProcesses,
}

/// Changes found by a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Processes newly watched.
    pub found: Vec<Pid>,
    /// Processes that have ended.
    pub ended: Vec<Pid>,
    /// Number of those newly watched whose saved state was restored.
    pub resumed: usize,
    /// Number of saved processes that are no longer watched.
    pub forgotten: usize,
}

impl Watcher {
    /// A watcher without processes. The second value is the reason why process events are unavailable, if they are; processes
    /// are then found later.
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
            saved: SavedProcesses::new(),
        };
        (watcher, error)
    }

    /// Sets the saved state to restore for processes that the next scan finds.
    pub fn restore(&mut self, saved: SavedProcesses) {
        self.saved = saved;
    }

    /// All watched processes.
    pub fn iter(&self) -> impl Iterator<Item = &Watched> {
        self.watched.values()
    }

    /// The watched process with this PID.
    pub fn get_mut(&mut self, pid: Pid) -> Option<&mut Watched> {
        self.watched.get_mut(&pid)
    }

    /// The watched process with this PID and start time.
    pub fn same(&mut self, pid: Pid, start_time: u64) -> Option<&mut Watched> {
        self.watched.get_mut(&pid).filter(|watched| watched.process.start_time == start_time)
    }

    /// Number of processes that match but exceed `watch.max_processes`.
    #[must_use]
    pub fn turned_away(&self) -> usize {
        self.turned_away.len()
    }

    /// Reads the memory of all watched processes, and scans for new ones.
    pub fn scan(&mut self, now: Duration, config: &Config) -> Changes {
        let mut changes = Changes::default();
        let started = self.starts.as_ref().map(Starts::take).unwrap_or_default();
        let Started { pids: started, missed } = started;
        let is_due = self.rescanned.is_none_or(|last| now.saturating_sub(last) >= config.watch.rescan.0);
        self.new.extend(started.iter().map(|pid| (*pid, SCANS_OF_NEW)));
        let all = is_due || missed || self.new.len() > MAX_NEW;
        // After an exec, a process is another one to its users. Not every exec raises an event.
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
            self.new.values_mut().for_each(|scans| *scans -= 1);
            self.new.retain(|_, scans| *scans > 0);
            candidates
        };
        let saved_count = self.saved.len();
        for pid in candidates {
            if !self.watched.contains_key(&pid) {
                self.take_in(pid, now, config, &mut changes);
            }
        }
        // The first scan covers all processes.
        self.saved.clear();
        changes.forgotten = saved_count - changes.resumed;
        self.watched.retain(|pid, watched| {
            let runs = watched.scan(now, config);
            if !runs {
                changes.ended.push(*pid);
            }
            runs
        });
        changes
    }

    /// Applies a changed configuration: drops processes that no longer match, unless they are being profiled.
    pub fn apply_config(&mut self, config: &Config) {
        self.rescanned = None;
        self.watched.retain(|_, watched| watched.case.state().has_probes() || watched.is_wanted(config));
    }

    /// Watches a process if it matches.
    fn take_in(&mut self, pid: Pid, now: Duration, config: &Config, changes: &mut Changes) {
        if pid.number().get() == std::process::id() {
            return;
        }
        // A process may end meanwhile, and kernel threads have no memory: skip them silently.
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
        let left = self.saved.remove(&(pid, process.start_time));
        if let Some(past) = left.and_then(|left| left.of_program(&process.exe)) {
            watched.case = Case::resume(now, started(process), past, config);
            changes.resumed += 1;
        }
        self.watched.insert(pid, watched);
        changes.found.push(pid);
    }
}

impl Watched {
    /// Reads its memory; returns whether it still runs.
    fn scan(&mut self, now: Duration, config: &Config) -> bool {
        let resident = match self.memory.read() {
            Ok(Resident::Bytes(bytes)) => bytes,
            Ok(Resident::Ended) => return false,
            // Skip this sample.
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

    /// Returns true if the process has executed another program.
    fn is_another(&self) -> bool {
        let exe = fs::read_link(self.process.pid.proc_file("exe"));
        exe.is_ok_and(|exe| program(&exe) != program(&self.process.exe)) && !self.case.state().has_probes()
    }
}

/// Path of a program, without the kernel's mark for a deleted file: after an upgrade of its package, a process goes on running
/// the replaced file.
#[must_use]
pub fn program(exe: &Path) -> &Path {
    let path = exe.as_os_str().as_bytes();
    Path::new(OsStr::from_bytes(path.strip_suffix(b" (deleted)").unwrap_or(path)))
}

/// Start time of a process since boot.
const fn started(process: &Process) -> Duration {
    Duration::from_millis(process.start_time.saturating_mul(1000 / TICKS))
}

#[cfg(test)]
pub(super) mod cat;
#[cfg(test)]
mod tests;
