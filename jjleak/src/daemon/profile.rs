//! Profiles one process for a bounded time, on a thread of its own: whatever becomes of it there, the watching goes on.
//!
//! In: an [`Order`], and a [`Profiler`] that carries it out, which is the command line's own run. Out: profiles in the
//! history, and [`Message`]s.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use super::history::{Costs, Entry, Estimate, History, Id, Sealed};
use super::memory;
use super::tab::Tab;
use crate::analyze::{Selection, SortBy};
use crate::processes::Pid;
use crate::profile::Profile;
use crate::push::Pusher;
use crate::render::{Contents, Format, Options, Value, render};

/// What is to be profiled, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Order {
    /// The process.
    pub pid: Pid,
    /// Its start time: another one with its PID is not meant.
    pub start_time: u64,
    /// Younger allocations are not judged.
    pub settle: Duration,
    /// Between two profiles.
    pub snapshot: Duration,
    /// One allocation in so many bytes; 0 for all.
    pub sample_bytes: u64,
    /// Per cent of the CPU time that the process uses itself, which profiling may take; `None` for any. Where not everything
    /// can be counted for that, allocations are counted in windows of time.
    pub max_overhead: Option<f64>,
}

/// Takes the profiles of an instant.
pub type Take = Arc<dyn Fn(Vec<Profile>) + Send + Sync>;

/// Carries out an order until the process ends, or is notified; blocks. The last profile is taken then.
pub type Profiler = Arc<dyn Fn(&Order, Take, &Arc<Notify>) -> Result<(), String> + Send + Sync>;

/// What profiling has found so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Of which process.
    pub pid: Pid,
    /// Its start time: another one with its PID has nothing to do with it.
    pub start_time: u64,
    /// The verdict on it, in words.
    pub verdict: String,
    /// The profile that the verdict is of, if it could be kept.
    pub told_in: Option<Id>,
    /// Call sites that leak.
    pub leaking: usize,
    /// By how many bytes a second, together.
    pub leak_rate: f64,
    /// Whether it was watched for long enough to tell leaks.
    pub judged: bool,
    /// Whether the last profile was one that could tell, even if what an earlier one told holds.
    pub is_last_judged: bool,
    /// What the last profile said, whether or not it could tell.
    pub last_verdict: String,
    /// Bytes that live of what was allocated since.
    pub live_bytes: u64,
    /// How the figures were estimated; `None` when everything was counted.
    pub estimate: Option<Estimate>,
    /// What being profiled costs it; `None` when that is not known.
    pub cost: Option<Costs>,
    /// Whether another look of the last profile can bring no verdict that it has not brought.
    is_last_final: bool,
    /// What was lost, by name.
    pub lost: Vec<(String, u64)>,
    /// The profile, if it could be kept.
    pub kept: Option<Id>,
}

impl Finding {
    /// What an entry of the history says of a process.
    #[must_use]
    pub fn of(pid: Pid, entry: &Entry) -> Self {
        Self {
            pid,
            start_time: entry.start_time,
            verdict: entry.verdict.clone(),
            told_in: Some(entry.id.clone()),
            leaking: entry.leaking_sites.max(entry.leaking.len()),
            leak_rate: entry.leak_rate,
            judged: entry.judged,
            is_last_judged: entry.judged,
            last_verdict: entry.verdict.clone(),
            live_bytes: entry.live_bytes,
            estimate: entry.estimate.clone(),
            cost: entry.cost,
            is_last_final: entry.is_final(),
            lost: entry.lost.clone().into_iter().collect(),
            kept: Some(entry.id.clone()),
        }
    }

    /// The same, where this was found before of the same process: a profile that could judge nothing takes back nothing.
    #[must_use]
    pub fn after(self, before: &Self) -> Self {
        if self.judged || !before.judged || self.start_time != before.start_time {
            return self;
        }
        let Self { verdict, told_in, leaking, leak_rate, judged, .. } = before.clone();
        Self { verdict, told_in, leaking, leak_rate, judged, ..self }
    }

    /// Whether the last profile could not tell, and a longer one of its kind could not either.
    pub(super) const fn is_last_in_vain(&self) -> bool {
        self.is_last_final && !self.is_last_judged
    }

    /// The profile to look at: the one that the verdict is of for as long as the history has it, then the last one.
    pub(super) fn shown(&self, history: &History) -> Option<&Id> {
        self.told_in.as_ref().filter(|id| history.get(id).is_some()).or(self.kept.as_ref())
    }

    /// Whether there is nothing to wait for: what leaks is judged, or cannot be.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        self.is_last_final || self.judged && !self.is_last_judged
    }
}

/// What the thread tells.
#[derive(Debug)]
pub enum Message {
    /// A profile has been taken.
    Found(Finding),
    /// Profiling has ended: with what was found, or why it could not be done.
    Ended {
        /// Which process.
        pid: Pid,
        /// Its start time.
        start_time: u64,
        /// What came out: what holds of all that was found.
        outcome: Result<Option<Finding>, String>,
        /// Whether it has ended before its time because it cost more than is allowed.
        is_too_dear: bool,
    },
}

/// A process that is being profiled.
#[derive(Debug)]
pub struct Job {
    /// Which.
    pub pid: Pid,
    /// Its start time.
    pub start_time: u64,
    /// When it is to end, or when it is given up, if it has been told to end.
    pub deadline: Instant,
    /// How long it gets beyond that, once, if nothing can be judged by then.
    grace: Option<Duration>,
    is_told: bool,
    /// Whether a verdict has come, or it is known that there can be none.
    is_settled: bool,
    stop: Arc<Notify>,
}

/// How long the last profile may take. Whoever takes longer hangs, as in a file of a file system whose server is gone.
pub const PATIENCE: Duration = Duration::from_secs(30);

impl Job {
    /// Begins to profile.
    pub fn start(
        order: Order,
        why: String,
        duration: Duration,
        profiler: Profiler,
        (history, pusher): (Arc<Mutex<History>>, Option<Arc<Pusher>>),
        messages: Sender<Message>,
    ) -> io::Result<Self> {
        let stop = Arc::new(Notify::new());
        let ends = Arc::clone(&stop);
        thread::Builder::new().name(format!("profile {}", order.pid)).spawn(move || {
            let last = Arc::new(Mutex::new(None));
            let (found, latest, kept) = (messages.clone(), Arc::clone(&last), Arc::clone(&history));
            let tab = Mutex::new(order.max_overhead.map(Tab::new));
            let first = Mutex::new(None);
            let (dear, was_too_dear) = (Arc::clone(&ends), Arc::new(AtomicBool::new(false)));
            let is_dear = Arc::clone(&was_too_dear);
            let take: Take = Arc::new(move |profiles| {
                let is_meant = |profile: &&Profile| profile.process.start_time == order.start_time;
                for profile in profiles.iter().filter(is_meant) {
                    let mut tab = tab.lock().unwrap_or_else(PoisonError::into_inner);
                    let is_over = tab.as_mut().is_some_and(|tab| tab.is_overdrawn_after(profile));
                    if is_over && !is_dear.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            "profiling {} ends early: it costs more than profile.max_overhead allows",
                            profile.process
                        );
                        dear.notify_one();
                    }
                    drop(tab);
                    let entry = Entry::of(Id::of(profile), profile, &why);
                    let entry = entry.of_series(&mut first.lock().unwrap_or_else(PoisonError::into_inner));
                    let finding = keep(profile, order.pid, entry, &kept);
                    let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                    *latest = Some(match latest.take() {
                        Some(before) => finding.clone().after(&before),
                        None => finding.clone(),
                    });
                    drop(latest);
                    // Nobody waits for what is found on the way; what holds of it is told again at the end.
                    let _ = found.try_send(Message::Found(finding));
                }
            });
            // A program can be made to surprise whoever reads its memory: that may cost its profile and nothing else.
            let outcome = catch_unwind(AssertUnwindSafe(|| profiler(&order, take, &ends)));
            let outcome =
                outcome.unwrap_or_else(|_| Err("a defect in jjleak ended it; please report it".to_owned()));
            let last = last.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let (Some(pusher), Some(id)) =
                (pusher, last.as_ref().and_then(|last: &Finding| last.kept.as_ref()))
            {
                push(&pusher, id, &history);
            }
            // Nobody listens when the daemon has ended.
            let outcome = outcome.map(|()| last);
            let Order { pid, start_time, .. } = order;
            let is_too_dear = was_too_dear.load(Ordering::Relaxed);
            let _ = messages.blocking_send(Message::Ended { pid, start_time, outcome, is_too_dear });
            memory::give_back();
        })?;
        let Order { pid, start_time, .. } = order;
        let deadline = Instant::now() + duration;
        Ok(Self { pid, start_time, deadline, grace: Some(duration), is_told: false, is_settled: false, stop })
    }

    /// Its time is over: it goes on if that may bring a verdict, until one comes and at most for as long again, or is told to
    /// end. Whether it has been told before, and has not ended: it hangs.
    #[must_use]
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.is_told {
            return true;
        }
        match self.grace.take().filter(|_| !self.is_settled) {
            Some(grace) => self.deadline = now + grace,
            None => self.stop(now),
        }
        false
    }

    /// A verdict has come, or it is known that there can be none: a job that was only waiting for that has no more to wait for.
    pub fn settle(&mut self, now: Instant) {
        self.is_settled = true;
        if self.grace.is_none() && !self.is_told {
            self.stop(now);
        }
    }

    /// Asks for the last profile, and the end.
    pub fn stop(&mut self, now: Instant) {
        (self.is_told, self.deadline) = (true, now + PATIENCE);
        self.stop.notify_one();
    }

    /// Whether it is of this process.
    #[must_use]
    pub fn is_of(&self, pid: Pid, start_time: u64) -> bool {
        self.pid == pid && self.start_time == start_time
    }
}

/// Keeps a profile, and says what is in it.
fn keep(profile: &Profile, pid: Pid, entry: Entry, history: &Mutex<History>) -> Finding {
    let mut finding = Finding { kept: None, told_in: None, ..Finding::of(pid, &entry) };
    let lock = || history.lock().unwrap_or_else(PoisonError::into_inner);
    let keep = |sealed: Sealed<'_>| {
        let room = lock().make_room(&sealed)?;
        let written = room.folder().write(&sealed);
        lock().enter(sealed, room, written)
    };
    let picture = render(profile, Format::Svg, &options()).map_err(|error| crate::cli::chain(&error));
    let sealed = picture
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|picture| Sealed::of(profile, entry, picture).map_err(|error| crate::cli::chain(&error)));
    // The history counts what it cannot keep by itself.
    let sealed = sealed.inspect_err(|why| lock().lose(why.clone()));
    let kept = sealed.and_then(|sealed| keep(sealed).map_err(|error| crate::cli::chain(&error)));
    match kept {
        Ok(id) => (finding.kept, finding.told_in) = (Some(id.clone()), Some(id)),
        Err(error) => tracing::error!("the profile of {} is not kept: {error}", profile.process),
    }
    finding
}

/// Sends a profile that is kept to where those of others are.
fn push(pusher: &Pusher, id: &Id, history: &Mutex<History>) {
    let kept = history.lock().unwrap_or_else(PoisonError::into_inner).profile(id);
    let file = kept.and_then(|kept| kept.read());
    let outcome = file
        .map_err(|error| crate::cli::chain(&error))
        .and_then(|file| pusher.push(&file).map_err(|error| crate::cli::chain(&error)));
    if let Err(error) = outcome {
        tracing::error!("{id} is not sent: {error}");
    }
}

/// How flame graphs and reports are drawn.
#[must_use]
pub fn options() -> Options {
    Options {
        contents: Contents { verdicts: true, outstanding: true },
        selection: Selection { sort: SortBy::Size, top: 10 },
        value: Value::Bytes,
        time_zone: TimeZone::system(),
        inverted: false,
        view: String::new(),
    }
}
