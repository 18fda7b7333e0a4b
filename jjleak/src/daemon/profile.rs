//! Profiles one process for a limited time on a thread of its own, so that watching goes on whatever happens there.
//!
//! In: an [`Order`], and a [`Profiler`] that carries it out. Out: profiles in the
//! history, and [`Message`]s.

mod order;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use super::cost_limit::CostLimit;
use super::history::{Costs, Entry, Estimate, History, Id, Sealed};
use super::memory;
use super::service;
use crate::analyze::{Rules, Selection, SortBy};
use crate::diagnosis::{ARENA_TIME, Growing, Grown};
use crate::file_content::StopReading;
use crate::processes::{Credentials, Pid};
use crate::profile::{Profile, SourceKind};
use crate::push::Pusher;
use crate::render::{Contents, Format, GraphLimits, Options, Value, render};

pub use order::{Kind, Order};

/// Receives the profiles of a snapshot.
pub type Take = Arc<dyn Fn(Vec<Profile>) + Send + Sync>;

/// Carries out an order until the process ends, or until notified, and then takes a last profile. Blocks.
pub type Profiler = Arc<dyn Fn(&Order, Take, &Arc<Notify>) -> Result<(), String> + Send + Sync>;

/// Findings of profiling a process.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The process.
    pub pid: Pid,
    /// Start time of the process, to tell it from another one that reuses its PID.
    pub start_time: u64,
    /// The source of its figures.
    pub source: SourceKind,
    /// Verdict on the process, in words.
    pub verdict: String,
    /// The profile that the verdict is from, if it was stored.
    pub verdict_profile: Option<Id>,
    /// Number of leaks that matter.
    pub leaking: usize,
    /// The worst of them: the application's function, and what it calls.
    pub worst: Option<String>,
    /// Total leak rate in bytes per second.
    pub leak_rate: f64,
    /// True if there is a verdict on leaks.
    pub judged: bool,
    /// True if the last profile had a verdict; [`Self::judged`] may be from an earlier one.
    pub is_last_judged: bool,
    /// Verdict of the last profile, conclusive or not.
    pub last_verdict: String,
    /// Live bytes of the allocations since profiling began.
    pub live_bytes: u64,
    /// Bytes allocated per second.
    pub allocation_rate: f64,
    /// Method of estimation; `None` if everything was counted.
    pub estimate: Option<Estimate>,
    /// Overhead of profiling; `None` if unknown.
    pub cost: Option<Costs>,
    /// True if no further snapshot of the last run could change the verdict.
    is_last_final: bool,
    /// Losses by name.
    pub lost: Vec<(String, u64)>,
    /// The last profile, if it was stored.
    pub last_profile: Option<Id>,
}

impl Finding {
    /// Restores the finding from an entry of the history.
    #[must_use]
    pub fn of(pid: Pid, entry: &Entry) -> Self {
        Self {
            pid,
            start_time: entry.start_time,
            source: entry.source(),
            verdict: entry.verdict.clone(),
            verdict_profile: Some(entry.id.clone()),
            leaking: entry.leaking_sites.max(entry.leaking.len()),
            worst: entry.leaking.first().cloned(),
            leak_rate: entry.leak_rate,
            judged: entry.judged,
            is_last_judged: entry.judged,
            last_verdict: entry.verdict.clone(),
            live_bytes: entry.live_bytes,
            allocation_rate: entry.allocation_rate,
            estimate: entry.estimate.clone(),
            cost: entry.cost,
            is_last_final: entry.is_final(),
            lost: entry.lost.clone().into_iter().collect(),
            last_profile: Some(entry.id.clone()),
        }
    }

    /// Merges with an earlier finding for the same process: an inconclusive profile revokes no verdict.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        if self.judged || !before.judged || self.start_time != before.start_time {
            return self;
        }
        let Self { verdict, verdict_profile, leaking, worst, leak_rate, judged, .. } = before.clone();
        Self { verdict, verdict_profile, leaking, worst, leak_rate, judged, ..self }
    }

    /// Returns true if the last profile was inconclusive, and a longer one of its kind would be, too.
    pub(super) const fn is_last_in_vain(&self) -> bool {
        self.is_last_final && !self.is_last_judged
    }

    /// The profile to link to: that of the verdict while the history has it, else the last one.
    pub(super) fn shown(&self, history: &History) -> Option<&Id> {
        self.verdict_profile.as_ref().filter(|id| history.get(id).is_some()).or(self.last_profile.as_ref())
    }

    /// Returns true if waiting longer is pointless: there is a verdict, or there can be none.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.is_last_final || self.judged && !self.is_last_judged
    }
}

/// Message from a profiling thread.
#[derive(Debug)]
pub enum Message {
    /// A snapshot was taken.
    Found(Finding),
    /// Profiling has ended.
    Ended(Run),
}

/// A run that has ended.
#[derive(Debug)]
pub struct Run {
    /// The process.
    pub pid: Pid,
    /// Its start time.
    pub start_time: u64,
    /// Kind of the profile.
    pub kind: Kind,
    /// The merged finding, if any, or the reason for failure.
    pub outcome: Result<Option<Finding>, String>,
    /// True if it was stopped early because it cost more than allowed.
    pub is_too_costly: bool,
    /// The main class or jar of a JVM, or the program.
    pub runs: Option<String>,
    /// Growth while it was profiled, with its cause and the next step; `None` if it could not be read.
    pub growth: Option<Grown>,
}

impl Run {
    /// A run that has found nothing.
    #[must_use]
    pub const fn of(order: &Order) -> Self {
        Self {
            pid: order.pid,
            start_time: order.start_time,
            kind: order.kind,
            outcome: Ok(None),
            is_too_costly: false,
            runs: None,
            growth: None,
        }
    }
}

/// A running profiling thread.
#[derive(Debug)]
pub struct Job {
    /// The process.
    pub pid: Pid,
    /// Its start time.
    pub start_time: u64,
    /// Its user at the beginning, if known.
    pub user: Option<u32>,
    /// End of the run, or, after it was asked to stop, the time at which it is abandoned.
    pub deadline: Instant,
    /// Extension of the run, granted once, if there is no verdict by the deadline.
    grace: Option<Duration>,
    is_stopping: bool,
    /// True if there is a verdict, or can be none.
    is_conclusive: bool,
    stop: Arc<Notify>,
    stop_reading: StopReading,
}

/// Time allowed for the last profile. A thread that takes longer hangs, for example on a file system whose server is gone.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(30);

impl Job {
    /// Starts profiling.
    pub fn start(
        order: Order,
        why: String,
        profiler: Profiler,
        (history, pusher): (Arc<Mutex<History>>, Option<Arc<Pusher>>),
        messages: Sender<Message>,
    ) -> io::Result<Self> {
        let stop = Arc::new(Notify::new());
        let ends = Arc::clone(&stop);
        let stop_reading = StopReading::default();
        let reading = stop_reading.clone();
        thread::Builder::new().name(format!("profile {}", order.pid)).spawn(move || {
            reading.apply_to_thread();
            // Reading a process's memory can block, like all else in this thread.
            let runs = service::runs(order.pid);
            let before = Growing::begin(order.pid, ARENA_TIME);
            let last = Arc::new(Mutex::new(None));
            let (found, latest, kept) = (messages.clone(), Arc::clone(&last), Arc::clone(&history));
            let cost_limit = Mutex::new(order.max_overhead.map(CostLimit::new));
            let first = Mutex::new(None);
            let (stop_early, was_too_costly) = (Arc::clone(&ends), Arc::new(AtomicBool::new(false)));
            let is_too_costly = Arc::clone(&was_too_costly);
            let take: Take = Arc::new(move |profiles| {
                let is_meant = |profile: &&Profile| profile.process.start_time == order.start_time;
                for profile in profiles.iter().filter(is_meant) {
                    let mut cost_limit = cost_limit.lock().unwrap_or_else(PoisonError::into_inner);
                    let is_over =
                        cost_limit.as_mut().is_some_and(|cost_limit| cost_limit.is_exceeded_by(profile));
                    if is_over && !is_too_costly.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            "profiling {} ends early: it costs more than profile.max_overhead allows",
                            profile.process
                        );
                        stop_early.notify_one();
                    }
                    drop(cost_limit);
                    let entry = Entry::of(Id::of(profile), profile, &why);
                    let entry = entry.in_series(&mut first.lock().unwrap_or_else(PoisonError::into_inner));
                    let finding = keep(profile, order.pid, entry, &kept);
                    let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                    *latest = Some(match latest.take() {
                        Some(before) => finding.clone().after(&before),
                        None => finding.clone(),
                    });
                    drop(latest);
                    // The interim finding may be dropped; the merged one is sent at the end.
                    let _ = found.try_send(Message::Found(finding));
                }
            });
            // A target can contain data that crashes its reader; that must cost no more than its profile.
            let outcome = catch_unwind(AssertUnwindSafe(|| profiler(&order, take, &ends)));
            let outcome =
                outcome.unwrap_or_else(|_| Err("internal error in jjleak; please report it".to_owned()));
            let last = last.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let (Some(pusher), Some(id)) =
                (pusher, last.as_ref().and_then(|last: &Finding| last.last_profile.as_ref()))
            {
                push(&pusher, id, &history);
            }
            // The receiver is gone if the daemon has ended.
            let growth = before.and_then(|before| before.grown());
            let outcome = outcome.map(|()| last);
            let is_too_costly = was_too_costly.load(Ordering::Relaxed);
            let run = Run { outcome, is_too_costly, runs, growth, ..Run::of(&order) };
            let _ = messages.blocking_send(Message::Ended(run));
            memory::trim();
        })?;
        let Order { pid, start_time, duration, may_extend, .. } = order;
        let user = Credentials::of(pid).ok().map(|credentials| credentials.user);
        let deadline = Instant::now() + duration;
        Ok(Self {
            pid,
            start_time,
            user,
            deadline,
            grace: may_extend.then_some(duration),
            is_stopping: false,
            is_conclusive: false,
            stop,
            stop_reading,
        })
    }

    /// Handles the deadline: extends the run once if a verdict may still come, else asks it to stop. Returns true if it was
    /// already asked to stop, and so hangs.
    #[must_use]
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.is_stopping {
            return true;
        }
        match self.grace.take().filter(|_| !self.is_conclusive) {
            Some(grace) => self.deadline = now + grace,
            None => self.stop(now),
        }
        false
    }

    /// Records that there is a verdict, or can be none; ends a run that was extended to wait for one.
    pub fn set_conclusive(&mut self, now: Instant) {
        self.is_conclusive = true;
        if self.grace.is_none() && !self.is_stopping {
            self.stop(now);
        }
    }

    /// Handles the end of the process: what the job still has to do takes [`STOP_TIMEOUT`] at most.
    pub fn process_ended(&mut self, now: Instant) {
        if !self.is_stopping {
            self.stop(now);
        }
    }

    /// Ends the job's reading of files, so that it ends if that is what takes so long.
    pub fn abandon(&self) {
        self.stop_reading.stop();
    }

    /// Asks for the last profile and the end of the run.
    pub fn stop(&mut self, now: Instant) {
        (self.is_stopping, self.deadline) = (true, now + STOP_TIMEOUT);
        self.stop.notify_one();
    }

    /// Returns true if the job profiles this process.
    #[must_use]
    pub fn is_of(&self, pid: Pid, start_time: u64) -> bool {
        self.pid == pid && self.start_time == start_time
    }
}

/// Stores a profile; returns its finding.
fn keep(profile: &Profile, pid: Pid, entry: Entry, history: &Mutex<History>) -> Finding {
    let finding = Finding::of(pid, &entry);
    let id = store(profile, entry, history);
    Finding { last_profile: id.clone(), verdict_profile: id, ..finding }
}

/// Stores a profile with its flame graph; returns its ID, or logs why it is lost.
pub(super) fn store(profile: &Profile, entry: Entry, history: &Mutex<History>) -> Option<Id> {
    let lock = || history.lock().unwrap_or_else(PoisonError::into_inner);
    let keep = |sealed: Sealed<'_>| {
        let room = lock().reserve(&sealed)?;
        let written = room.folder().write(&sealed);
        lock().commit(sealed, room, written)
    };
    let picture = render(profile, Format::Svg, &options()).map_err(|error| crate::error_chain::chain(&error));
    let sealed = picture.as_ref().map_err(Clone::clone).and_then(|picture| {
        Sealed::of(profile, entry, picture).map_err(|error| crate::error_chain::chain(&error))
    });
    // A failure to render is a loss, which the history has not counted yet.
    let sealed = sealed.inspect_err(|why| lock().record_loss(why.clone()));
    let kept = sealed.and_then(|sealed| keep(sealed).map_err(|error| crate::error_chain::chain(&error)));
    kept.inspect_err(|error| tracing::error!("cannot store the profile of {}: {error}", profile.process)).ok()
}

/// Queues a stored profile for the remote store.
pub(super) fn push(pusher: &Pusher, id: &Id, history: &Mutex<History>) {
    let kept = history.lock().unwrap_or_else(PoisonError::into_inner).profile(id);
    let file = kept.and_then(|kept| kept.read());
    let outcome = file
        .map_err(|error| crate::error_chain::chain(&error))
        .and_then(|file| pusher.push(&file).map_err(|error| crate::error_chain::chain(&error)));
    if let Err(error) = outcome {
        tracing::error!("cannot push {id}: {error}");
    }
}

/// Render options of flame graphs and reports.
#[must_use]
pub fn options() -> Options {
    Options {
        contents: Contents { verdicts: true, outstanding: true },
        selection: Selection { sort: SortBy::Size, top: 10 },
        value: Value::Bytes,
        time_zone: TimeZone::system(),
        full: false,
        rules: Rules::default(),
        inverted: false,
        graph: GraphLimits::default(),
        view: String::new(),
    }
}
