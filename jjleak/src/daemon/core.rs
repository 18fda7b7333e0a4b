//! What the daemon knows, and what it does about it: the parts at work together.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use super::config::Config;
use super::decide::{State, next};
use super::handover::{Handover, Left};
use super::history::{self, Bounds, Entry, History};
use super::outcome::Outcome;
use super::profile::{Finding, Job, Message, Order, Profiler};
use super::watch::Watcher;
use crate::processes::Pid;
use crate::push::Pusher;

/// Threads that hang keep what they have of memory and probes: with so many, nothing more is profiled.
const MAX_STUCK: usize = 8;

/// What all parts share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    core: Arc<Mutex<Core>>,
    /// What is kept. Taken after the core, if both are.
    pub(super) history: Arc<Mutex<History>>,
    /// What is left to the next daemon. Taken before the core, if both are.
    handover: Arc<Mutex<Handover>>,
    /// Whether somebody is about to leave it what is known.
    is_handing_over: Arc<AtomicBool>,
    /// What sends profiles, if they are sent anywhere.
    pub(super) pusher: Option<Arc<Pusher>>,
    /// Notified when somebody else than the daemon's loop has changed the core.
    pub(super) wake: Arc<Notify>,
}

/// What the daemon knows of processes.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) config: Config,
    pub(super) watcher: Watcher,
    /// What was found last, of processes that are watched.
    pub(super) findings: BTreeMap<Pid, Finding>,
    pub(super) jobs: Vec<Job>,
    /// Jobs that have not ended when they were told to, and are waited for no longer.
    pub(super) stuck: Vec<Job>,
    /// When this daemon was started. All times are since the host was.
    pub(super) began: Duration,
    /// When processes were last looked at.
    pub(super) looked: Duration,
    /// Looks, and profiles begun and failed, since the start.
    pub(super) looks: u64,
    pub(super) profiles_begun: u64,
    pub(super) profiles_failed: u64,
    /// Whether something has happened that the next daemon is to know even if this one is killed now.
    pub(super) has_news: bool,
    /// Whether this daemon ends.
    pub(super) is_ending: bool,
    /// How many processes were turned away when that was told last.
    told_away: usize,
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
            jobs: Vec::new(),
            stuck: Vec::new(),
            began: since_boot(),
            looked: since_boot(),
            looks: 0,
            profiles_begun: 0,
            profiles_failed: 0,
            has_news: false,
            is_ending: false,
            told_away: 0,
        };
        Self {
            core: Arc::new(Mutex::new(core)),
            history: Arc::new(Mutex::new(history)),
            handover: Arc::new(Mutex::new(handover)),
            is_handing_over: Arc::new(AtomicBool::new(false)),
            pusher: pusher.map(Arc::new),
            wake: Arc::new(Notify::new()),
        }
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the next daemon what is known of processes.
    pub(super) fn hand_over(&self) {
        let mut handover = self.handover.lock().unwrap_or_else(PoisonError::into_inner);
        // What happens from now on may be too late for this one.
        self.is_handing_over.store(false, Ordering::SeqCst);
        // In this order: what is written last is the latest.
        let left: Vec<_> = self.core().watcher.iter().map(Left::of).collect();
        handover.write(left);
    }

    /// Whether what is known is to be left once more: nobody is about to already, who would leave it, too.
    pub(super) fn claims_handing_over(&self) -> bool {
        !self.is_handing_over.swap(true, Ordering::SeqCst)
    }

    /// Takes in what other daemons have found of processes that are watched; of how many.
    pub(super) fn recall(&self) -> usize {
        let mut core = self.core();
        // What is older is of another start of the host: its processes have ended, whatever their PIDs are now.
        let boot = Timestamp::now().checked_sub(since_boot()).unwrap_or(Timestamp::MIN);
        let history = self.history();
        for entry in history.entries().filter(|entry| entry.time >= boot) {
            core.recall(entry);
        }
        core.findings.len()
    }

    /// Removes what is kept no longer.
    pub(super) fn tidy_up(&self) {
        let state = self.core().config.state.clone();
        let bounds = Bounds { bytes: state.max_bytes.0, age: state.max_age.0 };
        let now = history::Instant { wall: Timestamp::now(), boot: since_boot() };
        let removed = self.history().tidy_up(now, bounds);
        if removed > 0 {
            tracing::info!("{removed} profiles are kept no longer");
        }
    }

    /// Begins to profile those whose turn it is.
    pub(super) fn begin(&self, profiler: &Profiler, messages: &Sender<Message>) {
        let mut core = self.core();
        if core.stuck.len() >= MAX_STUCK {
            return;
        }
        let now = since_boot();
        // Also those are counted whose process has ended while its last profile is being taken.
        let room = core.config.profile.at_once.0.saturating_sub(core.jobs.len());
        let cases = core.watcher.iter().map(|watched| (watched.process.pid, watched.case.state()));
        for pid in next(cases, room) {
            let profile = core.config.profile.clone();
            let Some(watched) = core.watcher.get_mut(pid) else { continue };
            let Some(reason) = watched.case.begin(now) else { continue };
            let order = Order {
                pid,
                start_time: watched.process.start_time,
                settle: profile.settle.0,
                // The last one is at the end, whatever is said.
                snapshot: profile.snapshot.0.min(profile.duration.0),
                sample_bytes: profile.sample_bytes.0,
                max_overhead: profile.max_overhead.0,
            };
            tracing::info!("profiling {} (pid {pid}): {reason}", watched.process.comm);
            let history = Arc::clone(&self.history);
            let job = Job::start(
                order,
                reason.to_string(),
                profile.duration.0,
                Arc::clone(profiler),
                (history, self.pusher.clone()),
                messages.clone(),
            );
            core.profiles_begun += 1;
            core.has_news = true;
            match job {
                Ok(job) => core.jobs.push(job),
                Err(error) => {
                    core.end(pid, order.start_time, Err(format!("no thread for it: {error}")), false);
                }
            }
        }
    }
}

/// Since the host was started: goes on through sleep, and is the same clock that start times of processes are told by.
pub(super) fn since_boot() -> Duration {
    // Linux has had this clock since 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

impl Core {
    /// Looks at all processes.
    pub(super) fn look(&mut self) {
        let now = since_boot();
        let changes = self.watcher.look(now, &self.config);
        self.looks += 1;
        self.looked = now;
        for pid in changes.ended {
            tracing::info!("pid {pid} has ended, or runs another program");
            self.findings.remove(&pid);
        }
        for pid in changes.found {
            if let Some(watched) = self.watcher.get_mut(pid) {
                tracing::info!("watching {} (pid {pid})", watched.process.comm);
            }
        }
        if changes.resumed + changes.forgotten > 0 {
            let (resumed, forgotten) = (changes.resumed, changes.forgotten);
            tracing::info!(
                "{resumed} processes go on where they were when another daemon ended; {forgotten} others are not watched any more"
            );
        }
        let (many, most) = (self.watcher.turned_away(), self.config.watch.max_processes.0);
        if many > self.told_away {
            tracing::warn!("{many} processes are not watched: watch.max_processes is {most}");
        }
        self.told_away = many;
    }

    /// Takes in what profiling tells.
    pub(super) fn hear(&mut self, message: Message) {
        match message {
            Message::Found(finding) => {
                let now = Instant::now();
                let is_of = |job: &&mut Job| job.is_of(finding.pid, finding.start_time);
                if let Some(job) = self.jobs.iter_mut().find(is_of).filter(|_| finding.is_final()) {
                    job.settle(now);
                }
                self.enter(finding);
            }
            Message::Ended { pid, start_time, outcome, is_too_dear } => {
                self.end(pid, start_time, outcome, is_too_dear);
            }
        }
    }

    /// What another daemon has found, if the process is the same.
    fn recall(&mut self, entry: &Entry) {
        let Some(pid) = Pid::new(entry.pid) else { return };
        let watched = self.watcher.same(pid, entry.start_time);
        if watched.is_some_and(|watched| watched.process.comm == entry.comm) {
            self.enter(Finding::of(pid, entry));
        }
    }

    /// Notes what was found, for as long as nothing is found that says more. What holds by now.
    fn enter(&mut self, finding: Finding) -> Finding {
        if self.watcher.same(finding.pid, finding.start_time).is_none() {
            return finding;
        }
        let finding = match self.findings.get(&finding.pid) {
            Some(before) => finding.after(before),
            None => finding,
        };
        self.findings.insert(finding.pid, finding.clone());
        finding
    }

    /// Profiling of a process has ended.
    fn end(
        &mut self,
        pid: Pid,
        start_time: u64,
        outcome: Result<Option<Finding>, String>,
        is_too_dear: bool,
    ) {
        self.jobs.retain(|job| !job.is_of(pid, start_time));
        self.stuck.retain(|job| !job.is_of(pid, start_time));
        self.has_news = true;
        let (now, config) = (since_boot(), &self.config);
        let name = match self.watcher.same(pid, start_time) {
            Some(watched) => {
                let is_done = matches!(&outcome, Ok(Some(finding)) if finding.is_final());
                if self.is_ending && !is_done {
                    watched.case.interrupt();
                } else {
                    // What was cut short for its cost has brought no verdict that would be a reason to wait longer.
                    watched.case.end(now, outcome.is_ok() && (is_done || !is_too_dear), config);
                }
                format!("{} (pid {pid})", watched.process.comm)
            }
            None => format!("pid {pid}, which has ended"),
        };
        match outcome {
            Err(error) => {
                self.profiles_failed += 1;
                tracing::warn!("{name} cannot be profiled: {error}");
            }
            Ok(None) => tracing::info!("{name}: nothing is known of it"),
            // What is said is what holds: an earlier profile may have told what this one could not.
            Ok(Some(finding)) => Outcome::of(&self.enter(finding), is_too_dear).log(&name),
        }
    }

    /// Does as another configuration says from now on.
    pub(super) fn reconsider(&mut self, config: Config) {
        self.config = config;
        self.watcher.reconsider(&self.config);
        self.findings.retain(|pid, finding| self.watcher.same(*pid, finding.start_time).is_some());
    }

    /// Has a process profiled; whether it is watched and not being profiled already.
    pub(super) fn request(&mut self, pid: Pid) -> Option<bool> {
        let now = since_boot();
        let case = &mut self.watcher.get_mut(pid)?.case;
        let before = case.state();
        let is_taken = case.request(now);
        // The next daemon is to know, once for as often as it is asked for.
        self.has_news |= case.state() != before;
        Some(is_taken)
    }

    /// Has the process profiled that grows fastest, or else the largest one. Which that is; `None` when nobody is watched, or
    /// all are being profiled.
    #[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
    pub(super) fn request_any(&mut self) -> Option<Pid> {
        let idle = self.watcher.iter().filter(|watched| !watched.case.state().has_probes());
        let pace = |pid: Pid, rise: f64, resident: u64| (rise, resident as f64, pid);
        let ranked = idle.map(|watched| {
            pace(watched.process.pid, watched.case.course().growth(), watched.case.last().resident)
        });
        let (.., pid) = ranked.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))?;
        self.request(pid);
        Some(pid)
    }

    /// When the next job is to end.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.jobs.iter().map(|job| job.deadline).min()
    }

    /// Ends the jobs whose time is over, and gives up those that have not ended.
    pub(super) fn stop_overdue(&mut self, now: Instant) {
        let hangs = |job: &mut Job| job.deadline <= now && job.expire(now);
        let stuck: Vec<_> = self.jobs.extract_if(.., hangs).collect();
        for job in stuck {
            self.give_up(job);
        }
    }

    /// Nobody waits any more for jobs that have not ended: the next daemon is to know of them what it would if they had, without
    /// a verdict.
    pub(super) fn interrupt(&mut self) {
        for job in &self.jobs {
            if let Some(watched) = self.watcher.same(job.pid, job.start_time) {
                watched.case.interrupt();
            }
        }
    }

    /// A job hangs. Others have its place, and its process is not profiled again before it ends.
    fn give_up(&mut self, job: Job) {
        self.profiles_failed += 1;
        let since = since_boot();
        let name = match self.watcher.same(job.pid, job.start_time) {
            Some(watched) => {
                watched.case.give_up(since);
                watched.process.comm.clone()
            }
            None => "a process that has ended".to_owned(),
        };
        tracing::error!(pid = job.pid.number(), "profiling {name} (pid {}) hangs: it is given up", job.pid);
        self.stuck.push(job);
        if self.stuck.len() >= MAX_STUCK {
            tracing::error!("{} profiles hang: nothing is profiled until one ends", self.stuck.len());
        }
    }

    /// What the daemon does, in a line.
    pub(super) fn describe(&self) -> String {
        let count = |wanted: fn(&State) -> bool| {
            self.watcher.iter().filter(|watched| wanted(&watched.case.state())).count()
        };
        let suspected = count(|state| matches!(state, State::Suspected(..)));
        let profiled = count(|state| matches!(state, State::Profiling(..)));
        let leaking = self.findings.values().filter(|finding| finding.leaking > 0).count();
        let watched = self.watcher.iter().count();
        format!(
            "watching {watched} processes: {suspected} suspected, {profiled} being profiled, {leaking} found to leak"
        )
    }
}

#[cfg(test)]
mod tests;
