//! Shared state of the daemon, and the operations that connect its parts.

mod findings;
mod next;

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use super::config::Config;
use super::decide::{State, next};
use super::dumps::Sources;
use super::handover::{Handover, SavedProcess};
use super::history::{self, Bounds, History};
use super::profile::{Finding, Job, Kind, Message, Order, Profiler, Run};
use super::watch::Watcher;
use crate::diagnosis::Grown;
use crate::processes::{Credentials, Pid, Process};
use crate::profile::SourceKind;
use crate::push::Pusher;
use next::Next;

/// Maximum number of hung profiling threads, each of which holds memory and probes. At this number, profiling stops.
const MAX_STUCK: usize = 8;
/// Maximum number of these for the processes of one user, so that nobody can stop the profiling of others.
const MAX_STUCK_OF_USER: usize = 2;

/// State shared by all parts.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    core: Arc<Mutex<Core>>,
    /// Stored profiles. Lock after the core if both are needed.
    pub(super) history: Arc<Mutex<History>>,
    /// State saved for the next daemon. Lock before the core if both are needed.
    handover: Arc<Mutex<Handover>>,
    /// True if a save is already pending.
    is_handover_pending: Arc<AtomicBool>,
    /// Sends profiles to a remote store, if one is configured.
    pub(super) pusher: Option<Arc<Pusher>>,
    /// Heap profiles that programs write themselves.
    pub(super) dumps: Sources,
    /// Notified when another task than the daemon's loop has changed the core.
    pub(super) wake: Arc<Notify>,
}

/// State of the watched processes and of profiling.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) watcher: Watcher,
    /// Latest findings for watched processes.
    pub(super) findings: BTreeMap<Pid, Finding>,
    /// Growth of watched processes while they were last profiled.
    pub(super) grown: BTreeMap<Pid, Grown>,
    /// Latest profiles of watched processes from other sources than allocations.
    pub(super) others: BTreeMap<(Pid, SourceKind), Finding>,
    /// Profiles that follow those which have just ended.
    pub(super) next: Vec<Next>,
    pub(super) jobs: Vec<Job>,
    /// Jobs that did not stop in time and have been abandoned.
    pub(super) stuck: Vec<Job>,
    /// Start of this daemon, since boot.
    pub(super) began: Duration,
    /// Time of the last scan, since boot.
    pub(super) scanned_at: Duration,
    /// Number of scans, and of profiles begun and failed, since the start.
    pub(super) scans: u64,
    pub(super) profiles_begun: u64,
    pub(super) profiles_failed: u64,
    /// True if there is a change that the next daemon must learn even if this one is killed now.
    pub(super) needs_handover: bool,
    /// True if the daemon is shutting down.
    pub(super) is_ending: bool,
    /// Number of unwatched processes last reported to the log: beyond the maximum, and without an answer.
    reported_turned_away: usize,
    reported_silent: usize,
    /// True once the log has that control groups are unknown.
    has_reported_group: bool,
}

impl Shared {
    pub(super) fn new(
        config: Config,
        watcher: Watcher,
        (history, handover): (History, Handover),
        pusher: Option<Pusher>,
    ) -> Self {
        let core = Core {
            config,
            watcher,
            findings: BTreeMap::new(),
            grown: BTreeMap::new(),
            others: BTreeMap::new(),
            next: Vec::new(),
            jobs: Vec::new(),
            stuck: Vec::new(),
            began: since_boot(),
            scanned_at: since_boot(),
            scans: 0,
            profiles_begun: 0,
            profiles_failed: 0,
            needs_handover: false,
            is_ending: false,
            reported_turned_away: 0,
            reported_silent: 0,
            has_reported_group: false,
        };
        Self {
            core: Arc::new(Mutex::new(core)),
            history: Arc::new(Mutex::new(history)),
            handover: Arc::new(Mutex::new(handover)),
            is_handover_pending: Arc::new(AtomicBool::new(false)),
            pusher: pusher.map(Arc::new),
            dumps: Sources::default(),
            wake: Arc::new(Notify::new()),
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves the state of processes for the next daemon.
    pub(super) fn hand_over(&self) {
        let mut handover = self.handover.lock().unwrap_or_else(PoisonError::into_inner);
        // Changes from now on may come too late for this save.
        self.is_handover_pending.store(false, Ordering::SeqCst);
        // Read the state under the handover lock, so that the last save has the latest state.
        let left: Vec<_> = self.core().watcher.iter().map(SavedProcess::of).collect();
        handover.write(left);
    }

    /// Claims the next save; false if one is already pending, which will include the latest changes.
    pub(super) fn claims_handover(&self) -> bool {
        !self.is_handover_pending.swap(true, Ordering::SeqCst)
    }

    /// Restores the findings of earlier daemons for the watched processes; returns their number.
    pub(super) fn restore_findings(&self) -> usize {
        let mut core = self.core();
        // Older profiles are from an earlier boot, whose PIDs mean nothing now.
        let boot = Timestamp::now().checked_sub(since_boot()).unwrap_or(Timestamp::MIN);
        let history = self.history();
        for entry in history.entries().filter(|entry| entry.time >= boot) {
            core.restore_findings(entry);
        }
        core.findings.len()
    }

    /// Removes profiles beyond the limits of age and size.
    pub(super) fn apply_retention(&self) {
        let state = self.core().config.state.clone();
        let bounds = Bounds { bytes: state.max_bytes.0, age: state.max_age.0 };
        let now = history::Instant { wall: Timestamp::now(), boot: since_boot() };
        let removed = self.history().apply_retention(now, bounds);
        if removed > 0 {
            tracing::info!("removed {removed} old profiles");
        }
    }

    /// Starts profiling the suspects that are next.
    pub(super) fn begin(&self, profiler: &Profiler, messages: &Sender<Message>) {
        let mut core = self.core();
        if core.stuck.len() >= MAX_STUCK {
            return;
        }
        for Next { pid, start_time, kind } in mem::take(&mut core.next) {
            let Some(watched) = core.watcher.same(pid, start_time) else { continue };
            let comm = watched.process.comm.clone();
            let order = core.order(pid, start_time, kind);
            let why = next::reason(&order);
            tracing::info!("profiling {comm} (pid {pid}) again: {why}");
            self.start(&mut core, order, why, profiler, messages);
        }
        let now = since_boot();
        // Includes jobs whose process has ended and whose last profile is still being taken.
        let room = core.config.profile.at_once.0.saturating_sub(core.jobs.len());
        let cases = core.watcher.iter().filter(|watched| !core.is_refused(&watched.process));
        let cases = cases.map(|watched| (watched.process.pid, watched.case.state()));
        for pid in next(cases, room) {
            let Some(watched) = core.watcher.get_mut(pid) else { continue };
            let Some(reason) = watched.case.begin(now) else { continue };
            tracing::info!("profiling {} (pid {pid}): {reason}", watched.process.comm);
            let start_time = watched.process.start_time;
            let order = core.order(pid, start_time, Kind::Allocations);
            self.start(&mut core, order, reason.to_string(), profiler, messages);
        }
    }

    /// Starts a job.
    fn start(
        &self,
        core: &mut Core,
        order: Order,
        why: String,
        profiler: &Profiler,
        messages: &Sender<Message>,
    ) {
        let job = Job::start(
            order,
            why,
            Arc::clone(profiler),
            (Arc::clone(&self.history), self.pusher.clone()),
            messages.clone(),
        );
        core.profiles_begun += 1;
        core.needs_handover = true;
        match job {
            Ok(job) => core.jobs.push(job),
            Err(error) => {
                let outcome = Err(format!("cannot create a thread: {error}"));
                core.end(Run { outcome, ..Run::of(&order) });
            }
        }
    }
}

/// Time since boot, including sleep: the clock of processes' start times.
pub(super) fn since_boot() -> Duration {
    // Linux has had this clock since 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

impl Core {
    /// A profile of a process, with the settings of the configuration.
    fn order(&self, pid: Pid, start_time: u64, kind: Kind) -> Order {
        let profile = &self.config.profile;
        let order = Order {
            pid,
            start_time,
            kind,
            settle: profile.settle.0,
            duration: profile.duration.0,
            may_extend: kind.source().is_judged(),
            // The last profile is at the end in any case.
            snapshot: profile.snapshot.0.min(profile.duration.0),
            sample_bytes: profile.sample_bytes.0,
            max_overhead: profile.max_overhead.0,
        };
        match kind {
            Kind::Exact => order.exact(profile.exact_for.0.unwrap_or(order.duration)),
            _ => order,
        }
    }

    /// Scans all processes.
    pub(super) fn scan(&mut self) {
        let now = since_boot();
        let changes = self.watcher.scan(now, &self.config);
        self.scans += 1;
        self.scanned_at = now;
        for pid in changes.ended {
            tracing::info!("pid {pid} has ended, or runs another program");
            self.findings.remove(&pid);
            self.grown.remove(&pid);
            self.others.retain(|(of, _), _| *of != pid);
            for job in self.jobs.iter_mut().filter(|job| job.pid == pid) {
                job.process_ended(Instant::now());
            }
        }
        for pid in changes.found {
            if let Some(watched) = self.watcher.get_mut(pid) {
                tracing::info!("watching {} (pid {pid})", watched.process.comm);
                if watched.group.is_unknown() && !mem::replace(&mut self.has_reported_group, true) {
                    tracing::warn!(
                        "the control group of {} (pid {pid}) is outside of this container's cgroup namespace: its limit and \
                         pressure are unknown, and so are those of others. To do: mount the host's /sys/fs/cgroup at /host/cgroup",
                        watched.process.comm
                    );
                }
            }
        }
        if changes.resumed + changes.forgotten > 0 {
            let (resumed, forgotten) = (changes.resumed, changes.forgotten);
            tracing::info!(
                "resumed {resumed} processes of the previous daemon; {forgotten} others are no longer watched"
            );
        }
        let (many, most) = (self.watcher.turned_away(), self.config.watch.max_processes.0);
        if many > self.reported_turned_away {
            tracing::warn!("{many} processes are not watched: watch.max_processes is {most}");
        }
        self.reported_turned_away = many;
        let silent = self.watcher.silent();
        if silent > self.reported_silent {
            tracing::warn!(
                "{silent} processes are not watched: reading what they map takes too long (a file system may hang)"
            );
        }
        self.reported_silent = silent;
    }

    /// Applies a new configuration.
    pub(super) fn apply_config(&mut self, config: Config) {
        self.config = config;
        self.watcher.apply_config(&self.config);
        self.findings.retain(|pid, finding| self.watcher.same(*pid, finding.start_time).is_some());
        self.others.retain(|(pid, _), other| self.watcher.same(*pid, other.start_time).is_some());
        self.grown.retain(|pid, _| self.watcher.get_mut(*pid).is_some());
    }

    /// Requests a profile of a process. `None` if it is not watched, false if it is already being profiled.
    pub(super) fn request(&mut self, pid: Pid) -> Option<bool> {
        let now = since_boot();
        let case = &mut self.watcher.get_mut(pid)?.case;
        let before = case.state();
        let is_taken = case.request(now);
        // Save the request for the next daemon, once for repeated requests.
        self.needs_handover |= case.state() != before;
        Some(is_taken)
    }

    /// Requests a profile of the fastest-growing process, or else of the largest; returns its PID. `None` if no process is
    /// watched, or all are being profiled.
    #[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
    pub(super) fn request_any(&mut self) -> Option<Pid> {
        let idle = self.watcher.iter().filter(|watched| !watched.case.state().has_probes());
        let pace = |pid: Pid, rise: f64, resident: u64| (rise, resident as f64, pid);
        let ranked = idle.map(|watched| {
            pace(watched.process.pid, watched.case.trend().growth(), watched.case.last().resident)
        });
        let (.., pid) = ranked.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))?;
        self.request(pid);
        Some(pid)
    }

    /// Next deadline of a job.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.jobs.iter().map(|job| job.deadline).min()
    }

    /// Stops jobs whose time is up, and abandons those that do not stop.
    pub(super) fn stop_overdue(&mut self, now: Instant) {
        let hangs = |job: &mut Job| job.deadline <= now && job.expire(now);
        let stuck: Vec<_> = self.jobs.extract_if(.., hangs).collect();
        for job in stuck {
            self.give_up(job);
        }
    }

    /// Records interruption of the jobs that have not stopped, so that the next daemon sees them as if they had ended without a
    /// verdict.
    pub(super) fn interrupt(&mut self) {
        let running = self.jobs.iter().map(|job| (job.pid, job.start_time));
        let next = mem::take(&mut self.next);
        for (pid, start_time) in running.chain(next.iter().map(|next| (next.pid, next.start_time))) {
            if let Some(watched) = self.watcher.same(pid, start_time) {
                watched.case.interrupt();
            }
        }
    }

    /// Returns true if a process is there and another profile of it may begin.
    fn may_profile(&mut self, pid: Pid, start_time: u64) -> bool {
        let process = self.watcher.same(pid, start_time).map(|watched| watched.process.clone());
        self.stuck.len() < MAX_STUCK && process.is_some_and(|process| !self.is_refused(&process))
    }

    /// Returns true for a process of a user whose processes already hold as many hung threads as they may.
    fn is_refused(&self, process: &Process) -> bool {
        let of = |user: u32| self.stuck.iter().filter(|job| job.user == Some(user)).count();
        let user = || Credentials::of(process.pid).ok().map(|credentials| credentials.user);
        self.stuck.len() >= MAX_STUCK_OF_USER && user().is_some_and(|user| of(user) >= MAX_STUCK_OF_USER)
    }

    /// Abandons a hung job. Its slot is free for others; its process is not profiled again until the job ends.
    fn give_up(&mut self, job: Job) {
        self.profiles_failed += 1;
        job.abandon();
        let since = since_boot();
        let name = match self.watcher.same(job.pid, job.start_time) {
            Some(watched) => {
                watched.case.give_up(since);
                watched.process.comm.clone()
            }
            None => "a process that has ended".to_owned(),
        };
        tracing::error!(pid = job.pid.number(), "profiling {name} (pid {}) hangs: giving up on it", job.pid);
        self.stuck.push(job);
        if self.stuck.len() >= MAX_STUCK {
            tracing::error!("{} profiles hang: nothing is profiled until one ends", self.stuck.len());
        }
    }

    /// Summary in one line.
    pub(super) fn describe(&self) -> String {
        let count = |wanted: fn(&State) -> bool| {
            self.watcher.iter().filter(|watched| wanted(&watched.case.state())).count()
        };
        let suspected = count(|state| matches!(state, State::Suspected(..)));
        let profiled = count(|state| matches!(state, State::Profiling(..)));
        let leaking = self.findings.values().filter(|finding| finding.leaking > 0).count();
        let watched = self.watcher.iter().count();
        let processes = if watched == 1 { "process" } else { "processes" };
        format!(
            "watching {watched} {processes}: {suspected} suspected, {profiled} being profiled, {leaking} found to leak"
        )
    }
}

#[cfg(test)]
mod tests;
