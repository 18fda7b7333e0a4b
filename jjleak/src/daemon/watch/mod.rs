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

use matching::{Candidate, Match, maps_jvm, matches};

use super::config::Config;
use super::decide::{Case, Sample};
use super::handover::SavedProcesses;
use super::questions::{Answers, Question, Questions, Subject};
use crate::processes::{
    ControlGroup, Credentials, MemoryLimit, Pid, Process, Resident, ResidentMemory, Started, Starts,
    is_own_child, pids,
};

/// Number of scans in which a new process is checked: a program maps its libraries only after its start.
const SCANS_OF_NEW: u8 = 2;
/// Maximum number of new processes between two scans. If there are more, as in a fork storm, all processes are scanned.
const MAX_NEW: usize = 4096;
/// Time that a scan waits for the answers of all processes together; 5,000 processes take less than a second. One that does not
/// answer delays a scan by much less.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);
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
    /// Asks processes whether they are JVMs.
    are_jvms: Questions<bool>,
    /// Processes that have not answered, since the last scan of all processes.
    silent: BTreeSet<Pid>,
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
            are_jvms: Questions::new(),
            silent: BTreeSet::new(),
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

    /// Number of processes that do not answer whether they are JVMs, and are not watched for that reason. Asked again by the next
    /// scan of all processes.
    #[must_use]
    pub fn silent(&self) -> usize {
        self.silent.len()
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
            self.silent.clear();
            pids().collect()
        } else {
            let candidates = self.new.keys().copied().collect();
            self.new.values_mut().for_each(|scans| *scans -= 1);
            self.new.retain(|_, scans| *scans > 0);
            candidates
        };
        let saved_count = self.saved.len();
        let unknown = candidates.into_iter().filter(|pid| !self.watched.contains_key(pid));
        let unknown: Vec<_> = unknown.filter_map(|pid| Unmatched::open(pid, config)).collect();
        let are_jvms = self.ask_jvms(&unknown);
        for unmatched in unknown {
            let pid = unmatched.process.pid;
            match (unmatched.matches, are_jvms.get(&pid)) {
                (Match::Yes, _) | (Match::IfJvm, Some(true)) => {
                    self.take_in(unmatched, now, config, &mut changes);
                }
                (Match::No, _) | (Match::IfJvm, Some(false)) => {}
                (Match::IfJvm, None) => {
                    self.silent.insert(pid);
                }
            }
        }
        // The first scan covers all processes that answer.
        self.saved.retain(|(pid, _), _| self.silent.contains(pid));
        changes.forgotten = saved_count - changes.resumed - self.saved.len();
        self.watched.retain(|pid, watched| {
            let runs = watched.scan(now, config);
            if !runs {
                changes.ended.push(*pid);
            }
            runs
        });
        changes
    }

    /// Applies a changed configuration: drops processes that no longer match, unless they are being profiled. One that does not
    /// answer stays.
    pub fn apply_config(&mut self, config: &Config) {
        self.rescanned = None;
        let matched = |watched: &Watched| {
            (match_of(&watched.process, &watched.group, config), subject(&watched.process))
        };
        let all: BTreeMap<_, _> =
            self.watched.iter().map(|(pid, watched)| (*pid, matched(watched))).collect();
        let open = all.values().filter(|(matches, _)| *matches == Match::IfJvm);
        let are_jvms = self.are_jvms.ask(open.filter_map(|(_, subject)| ask_jvm(*subject)), ANSWERS_TIMEOUT);
        self.watched.retain(|pid, watched| {
            let is_wanted = match all.get(pid) {
                Some((Match::Yes, _)) => true,
                Some((Match::IfJvm, _)) => are_jvms.get(pid).copied().unwrap_or(true),
                Some((Match::No, _)) | None => false,
            };
            is_wanted || watched.case.state().has_probes()
        });
    }

    /// Asks the processes for which that decides whether they are JVMs.
    fn ask_jvms(&self, unknown: &[Unmatched]) -> Answers<bool> {
        let open = unknown.iter().filter(|unmatched| unmatched.matches == Match::IfJvm);
        self.are_jvms.ask(open.filter_map(|unmatched| ask_jvm(subject(&unmatched.process))), ANSWERS_TIMEOUT)
    }

    /// Watches a process that matches.
    fn take_in(&mut self, found: Unmatched, now: Duration, config: &Config, changes: &mut Changes) {
        let Unmatched { process, group, .. } = found;
        let pid = process.pid;
        if self.watched.len() >= config.watch.max_processes.0 {
            self.turned_away.insert(pid);
            return;
        }
        // It may have ended meanwhile.
        let Ok(memory) = ResidentMemory::open(pid) else { return };
        let left = self.saved.remove(&(pid, process.start_time));
        let case = match left.and_then(|left| left.of_program(&process.exe)) {
            Some(past) => {
                changes.resumed += 1;
                Case::resume(now, started(&process), past, config)
            }
            None => Case::new(now, started(&process)),
        };
        self.watched.insert(pid, Watched { process, group, case, memory });
        changes.found.push(pid);
    }
}

/// The question whether a process is a JVM; `None` if it has ended.
fn ask_jvm(subject: Option<Subject>) -> Option<(Subject, Question<bool>)> {
    let subject = subject?;
    Some((subject, Box::new(move || maps_jvm(subject.pid))))
}

/// A process that is not watched yet.
struct Unmatched {
    process: Process,
    group: ControlGroup,
    matches: Match,
}

impl Unmatched {
    /// Reads the process; `None` for kernel threads, for the daemon itself and its child, and for a process that has ended meanwhile.
    fn open(pid: Pid, config: &Config) -> Option<Self> {
        if pid.number().get() == std::process::id() || is_own_child(pid) {
            return None;
        }
        let process = Process::open(pid).ok()?;
        let group = ControlGroup::of(pid);
        let matches = match_of(&process, &group, config);
        Some(Self { process, group, matches }).filter(|_| matches != Match::No)
    }
}

fn match_of(process: &Process, group: &ControlGroup, config: &Config) -> Match {
    let exe = process.exe.to_string_lossy();
    matches(&Candidate { process, exe: &exe, group }, &config.watch)
}

/// The process as one that is asked; `None` if it has ended.
fn subject(process: &Process) -> Option<Subject> {
    let Process { pid, start_time, .. } = *process;
    Some(Subject { pid, start_time, user: Credentials::of(pid).ok()?.user })
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
