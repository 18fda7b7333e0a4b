//! Profiles one process for a bounded time, on a thread of its own: whatever becomes of it there, the watching goes on.
//!
//! In: an [`Order`], and a [`Profiler`] that carries it out, which is the command line's own run. Out: profiles in the
//! history, and [`Message`]s.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use super::history::{Entry, History, Id};
use crate::analyze::{Selection, SortBy};
use crate::processes::Pid;
use crate::profile::{Profile, VerdictKind};
use crate::push::Pusher;
use crate::render::{Contents, Format, Options, Value, render};

/// What is to be profiled, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The verdict on it, in words.
    pub verdict: String,
    /// Call sites that leak.
    pub leaking: usize,
    /// By how many bytes a second, together.
    pub leak_rate: f64,
    /// Whether it was watched for long enough to tell leaks.
    pub judged: bool,
    /// Bytes that live of what was allocated since.
    pub live_bytes: u64,
    /// What was lost, by name.
    pub lost: Vec<(String, u64)>,
    /// The profile, if it could be kept.
    pub kept: Option<Id>,
}

/// What the thread tells.
#[derive(Debug)]
pub enum Message {
    /// A profile has been taken.
    Found(Finding),
    /// Profiling has ended: with what was found last, or why it could not be done.
    Ended(Pid, Result<Option<Finding>, String>),
}

/// A process that is being profiled.
#[derive(Debug)]
pub struct Job {
    /// Which.
    pub pid: Pid,
    /// When it is to end; `None` when it has been told to.
    pub deadline: Option<Instant>,
    /// How long it gets beyond that, once, if nothing can be judged by then.
    grace: Option<Duration>,
    stop: Arc<Notify>,
}

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
            let take: Take = Arc::new(move |profiles| {
                let is_meant = |profile: &&Profile| profile.process.start_time == order.start_time;
                for profile in profiles.iter().filter(is_meant) {
                    let finding = keep(profile, order.pid, &why, &kept);
                    *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(finding.clone());
                    // Nobody waits for what is found on the way; the last one is told again at the end.
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
            let _ = messages.blocking_send(Message::Ended(order.pid, outcome.map(|()| last)));
        })?;
        Ok(Self { pid: order.pid, deadline: Some(Instant::now() + duration), grace: Some(duration), stop })
    }

    /// Its time is over: it ends, or goes on for as long again if that may bring a verdict.
    pub fn expire(&mut self, is_judged: bool) {
        match self.grace.take().filter(|_| !is_judged) {
            Some(grace) => self.deadline = Some(Instant::now() + grace),
            None => self.stop(),
        }
    }

    /// Asks for the last profile, and the end.
    pub fn stop(&mut self) {
        self.deadline = None;
        self.stop.notify_one();
    }
}

/// Keeps a profile, and says what is in it.
fn keep(profile: &Profile, pid: Pid, why: &str, history: &Mutex<History>) -> Finding {
    let leaks = || profile.verdicts.iter().filter(|verdict| verdict.kind == VerdictKind::Leaking);
    let entry = Entry::of(Id::of(profile), profile, why);
    let mut finding = Finding {
        pid,
        verdict: entry.verdict.clone(),
        leaking: leaks().count(),
        leak_rate: leaks().filter_map(|verdict| verdict.rate).map(|rate| rate.per_second).sum(),
        judged: entry.judged,
        live_bytes: entry.live_bytes,
        lost: profile
            .lost
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(name, count)| (name.clone(), *count))
            .collect(),
        kept: None,
    };
    let kept = render(profile, Format::Svg, &options()).map_err(|error| crate::cli::chain(&error)).and_then(
        |picture| {
            let lock = || history.lock().unwrap_or_else(PoisonError::into_inner);
            let folder = lock().folder();
            let written = folder.write(profile, entry, &picture);
            lock().enter(written).map_err(|error| crate::cli::chain(&error))
        },
    );
    match kept {
        Ok(id) => finding.kept = Some(id),
        Err(error) => tracing::error!("the profile of {} is not kept: {error}", profile.process),
    }
    finding
}

/// Sends a profile that is kept to where those of others are.
fn push(pusher: &Pusher, id: &Id, history: &Mutex<History>) {
    let kept = history.lock().unwrap_or_else(PoisonError::into_inner).profile(id);
    let file = kept.and_then(|kept| kept.read());
    let pushed = file
        .map_err(|error| crate::cli::chain(&error))
        .and_then(|file| pusher.push(&file).map_err(|error| crate::cli::chain(&error)));
    if let Err(error) = pushed {
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
