//! The service: watches processes for weeks at next to no cost, profiles the one that grows, and keeps and serves what it
//! finds.
//!
//! ```text
//! config     what is to be done
//!   watch      processes found and looked at, from outside
//!     decide     which of them is a suspect                       (pure)
//!       profile    the run of the command line, on a thread
//!         history    what was found, on disk; and, in handover, what the next daemon is to know of processes
//!           http       and told to whoever asks; metrics, too
//! ```
//!
//! In: a [`Config`], and a [`Profiler`], which `cli` gives it. Out: the state directory, and the log.

pub mod config;
mod core;
pub mod decide;
pub mod handover;
pub mod history;
pub mod http;
mod life;
pub mod log;
pub mod memory;
mod metrics;
mod outcome;
mod privileges;
pub mod profile;
pub mod pushing;
mod tab;
mod token;
pub mod watch;

use std::io;
use std::mem;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout_at};

use config::Config;
use core::Shared;
use handover::Handover;
use history::{History, Lock};
use http::{Guard, Listener};
use profile::{Message, Profiler};
use watch::Watcher;

/// Messages of profiling that wait: there are few, and of what is found on the way only the last matters.
const MAX_MESSAGES: usize = 64;
/// How long the last profiles may take when the daemon is to end: systemd and people expect it within five seconds.
const FAREWELL: Duration = Duration::from_secs(4);
/// How often what is kept is compared with what may be kept.
const TIDY: Duration = Duration::from_secs(60);
/// How often the next daemon is left what is known of processes, beside what is left around every profile. That is what a
/// killed daemon's successor does not know.
const HAND_OVER: Duration = Duration::from_secs(600);
/// Threads that wait for the disk, or draw what is asked for, at a time: each has a stack, and leaves some memory taken.
const MAX_BLOCKING: usize = 8;
/// Without systemd's watchdog, there is nobody who waits for a sign of life.
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// The daemon could not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be used.
    #[error("the state directory {0} cannot be used")]
    State(std::path::PathBuf, #[source] history::Error),
    /// Nobody can be served.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// Profiles cannot be sent.
    #[error(transparent)]
    Push(#[from] pushing::Error),
    /// Something else of the system.
    #[error("{0} failed")]
    System(&'static str, #[source] io::Error),
}

/// Reads the configuration anew.
pub type Reload = Box<dyn Fn() -> Result<Config, String>>;

/// Watches until SIGTERM or SIGINT.
pub fn run(config: Config, reload: &Reload, profiler: &Profiler) -> Result<(), Error> {
    let directory = config.state.directory.clone();
    let unusable = |error| Error::State(directory.clone(), error);
    let _lock = Lock::take(&directory).map_err(unusable)?;
    let (history, mended) = History::open(&directory).map_err(unusable)?;
    if mended != history::Mended::default() {
        tracing::warn!("the history was not whole: {mended:?}");
    }
    let (handover, inheritance) = Handover::open(&directory).map_err(unusable)?;
    let (mut watcher, deaf) = Watcher::new();
    watcher.inherit(inheritance);
    if let Some(error) = deaf {
        tracing::warn!(
            "the kernel does not tell of programs that start ({error}): they are found at each watch.rescan"
        );
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(MAX_BLOCKING).build();
    let runtime = runtime.map_err(|error| Error::System("starting the runtime", error))?;
    let (guard, listener) = {
        let _within = runtime.enter();
        (Guard::of(&config.http)?, Listener::open(&config.http.listen)?)
    };
    privileges::give_away();
    let pusher = pushing::start(&config)?;
    let shared = Shared::new(config, watcher, (history, handover), pusher);
    shared.tidy_up();
    let outcome = runtime.block_on(async {
        let serving = listener.map(|listener| serve(listener, guard, &shared));
        watch(&shared, reload, profiler, serving).await
    });
    // Nobody waits for a report that is still being drawn.
    runtime.shutdown_background();
    outcome
}

/// What wakes the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
    request: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reload: signal(SignalKind::hangup())?,
            request: signal(SignalKind::user_defined1())?,
        })
    }
}

async fn watch(
    shared: &Shared,
    reload: &Reload,
    profiler: &Profiler,
    serving: Option<JoinHandle<()>>,
) -> Result<(), Error> {
    let mut signals = Signals::listen().map_err(|error| Error::System("taking over signals", error))?;
    let (sender, mut messages) = channel(MAX_MESSAGES);
    let between_looks = shared.core().config.watch.interval.0;
    let (mut looks, mut tidy, mut hand_over) = (every(between_looks), every(TIDY), every(HAND_OVER));
    let mut watchdog = every(life::watchdog().unwrap_or(NEVER));
    shared.core().look();
    let recalled = shared.recall();
    if recalled > 0 {
        tracing::info!("of {recalled} processes it is known what was found before");
    }
    life::ready();
    tracing::info!("{}", shared.core().describe());
    loop {
        let deadline = shared.core().deadline().map_or_else(|| Instant::now() + NEVER, Instant::from_std);
        tokio::select! {
            biased;
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.reload.recv() => {
                reconsider(shared, reload);
                looks = every(shared.core().config.watch.interval.0);
            }
            _ = signals.request.recv() => request(shared),
            _ = watchdog.tick() => life::alive(),
            () = sleep_until(deadline) => shared.core().stop_overdue(std::time::Instant::now()),
            Some(message) = messages.recv() => shared.core().hear(message),
            _ = looks.tick() => shared.core().look(),
            _ = tidy.tick() => aside(shared, Shared::tidy_up),
            _ = hand_over.tick() => aside(shared, Shared::hand_over),
            () = shared.wake.notified() => {}
        }
        shared.begin(profiler, &sender);
        if mem::take(&mut shared.core().has_news) && shared.claims_handing_over() {
            aside(shared, Shared::hand_over);
        }
        life::status(&shared.core().describe());
    }
    if let Some(serving) = serving {
        serving.abort();
    }
    end(shared, sender, &mut messages).await;
    Ok(())
}

/// Does what waits for the disk. Those that do the same wait for each other, and there are never many.
fn aside(shared: &Shared, work: fn(&Shared)) {
    let shared = shared.clone();
    drop(spawn_blocking(move || work(&shared)));
}

/// Begins to serve.
fn serve(listener: Listener, guard: Guard, shared: &Shared) -> JoinHandle<()> {
    tracing::info!("listening on {}", listener.describe());
    tokio::spawn(http::serve(listener, guard, shared.clone()))
}

/// Reads the configuration anew. What is wrong with it is told, and the old one holds.
fn reconsider(shared: &Shared, reload: &Reload) {
    life::reloading();
    match reload() {
        Ok(config) => {
            let mut core = shared.core();
            let fixed =
                (&core.config.state.directory, &core.config.http, &core.config.push, &core.config.log);
            if fixed != (&config.state.directory, &config.http, &config.push, &config.log) {
                tracing::warn!("state.directory, [http], [push] and [log] change at the next start only");
            }
            core.reconsider(config);
            drop(core);
            // There may be less room from now on.
            aside(shared, Shared::tidy_up);
            tracing::info!("the configuration has been read anew");
        }
        Err(error) => tracing::error!("the configuration is refused, and the old one holds: {error}"),
    }
    life::ready();
}

fn request(shared: &Shared) {
    if let Some(pid) = shared.core().request_any() {
        tracing::info!("a profile is asked for: pid {pid} is next");
    } else {
        tracing::warn!("a profile is asked for, and there is no process that could be profiled");
    }
}

/// Waits for the last profiles of what is being profiled; not for long.
async fn end(shared: &Shared, sender: Sender<Message>, messages: &mut Receiver<Message>) {
    life::stopping();
    drop(sender);
    let now = std::time::Instant::now();
    {
        let mut core = shared.core();
        core.is_ending = true;
        core.jobs.iter_mut().for_each(|job| job.stop(now));
    }
    let latest = Instant::now() + FAREWELL;
    while !shared.core().jobs.is_empty() {
        match timeout_at(latest, messages.recv()).await {
            Ok(Some(message)) => shared.core().hear(message),
            Ok(None) => break,
            Err(_) => {
                tracing::warn!("profiling takes too long to end: its last profile is not kept");
                shared.core().interrupt();
                break;
            }
        }
    }
    shared.hand_over();
    tracing::info!("ended");
}

/// A timer whose first tick comes after one period.
fn every(period: Duration) -> Interval {
    let mut timer = interval(period);
    timer.reset();
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}
