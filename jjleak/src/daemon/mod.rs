//! Service that watches processes for weeks at next to no cost, profiles those that grow, and stores and serves the
//! profiles.
//!
//! ```text
//! config     the configuration file
//!   watch      finds processes and reads their memory, from outside
//!     decide     finds suspects                                   (pure)
//!       profile    profiles one on a thread of its own
//!         history    stores profiles on disk; handover saves the state of processes for the next daemon
//!           http       serves a page, JSON, profiles and metrics
//! dumps      reads heap profiles that programs write themselves; its profiles go to the history, too
//! ```
//!
//! In: a [`Config`]. Out: the state directory, and the log.

pub mod config;
mod core;
mod cost_limit;
pub mod decide;
mod dumps;
pub mod handover;
pub mod history;
pub mod http;
pub mod log;
pub mod memory;
mod metrics;
mod outcome;
mod privileges;
pub mod profile;
pub mod pushing;
mod questions;
mod recorder;
mod service;
mod systemd;
mod token;
pub mod watch;

use std::io;
use std::mem;
use std::sync::Arc;
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

/// Capacity of the channel from profiling threads. Messages are rare, and of interim findings only the last one matters.
const MAX_MESSAGES: usize = 64;
/// Time for the last profiles at shutdown: systemd and people expect the end within five seconds.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);
/// Interval of removing old profiles.
const RETENTION_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of saving the state of processes for the next daemon, besides at each profile: the most that a killed daemon
/// loses.
const HANDOVER_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of threads for blocking work: each has a stack, and leaves some memory in the allocator.
const MAX_BLOCKING: usize = 8;
/// Watchdog interval without systemd's watchdog.
const NEVER: Duration = Duration::from_secs(365 * 86_400);

/// Reasons not to start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be used.
    #[error("cannot use the state directory {0}")]
    State(std::path::PathBuf, #[source] history::Error),
    /// The HTTP server cannot start.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// The pusher cannot start.
    #[error(transparent)]
    Push(#[from] pushing::Error),
    /// A system call failed.
    #[error("cannot {0}")]
    System(&'static str, #[source] io::Error),
}

/// Reloads the configuration.
pub type Reload = Box<dyn Fn() -> Result<Config, String>>;

/// Runs the daemon until SIGTERM or SIGINT.
pub fn run(config: Config, reload: &Reload) -> Result<(), Error> {
    let profiler: Profiler = Arc::new(recorder::record);
    let directory = config.state.directory.clone();
    let unusable = |error| Error::State(directory.clone(), error);
    let _lock = Lock::take(&directory).map_err(unusable)?;
    let (history, repairs) = History::open(&directory).map_err(unusable)?;
    if repairs != history::Repairs::default() {
        tracing::warn!("repaired the history: {repairs}");
    }
    let (handover, saved) = Handover::open(&directory).map_err(unusable)?;
    let (mut watcher, deaf) = Watcher::new();
    watcher.restore(saved);
    if let Some(error) = deaf {
        tracing::warn!(
            "process events are unavailable ({error}): new processes are found by scanning every watch.rescan"
        );
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(MAX_BLOCKING).build();
    let runtime = runtime.map_err(|error| Error::System("start the runtime", error))?;
    let (guard, listener) = {
        let _within = runtime.enter();
        (Guard::of(&config.http)?, Listener::open(&config.http.listen)?)
    };
    privileges::drop_unneeded();
    let pusher = pushing::start(&config)?;
    let shared = Shared::new(config, watcher, (history, handover), pusher);
    shared.apply_retention();
    dumps::start(&shared).map_err(|error| Error::System("create a thread", error))?;
    let outcome = runtime.block_on(async {
        let serving = listener.map(|listener| serve(listener, guard, &shared));
        watch(&shared, reload, &profiler, serving).await
    });
    // Nobody waits for a report that is still being rendered.
    runtime.shutdown_background();
    outcome
}

/// Signals that the daemon handles.
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
    let mut signals = Signals::listen().map_err(|error| Error::System("install signal handlers", error))?;
    let (sender, mut messages) = channel(MAX_MESSAGES);
    let scan_interval = shared.core().config.watch.interval.0;
    let (mut scans, mut tidy, mut hand_over) =
        (every(scan_interval), every(RETENTION_INTERVAL), every(HANDOVER_INTERVAL));
    let mut watchdog = every(systemd::watchdog().unwrap_or(NEVER));
    shared.core().scan();
    let recalled = shared.restore_findings();
    if recalled > 0 {
        tracing::info!("restored findings for {recalled} processes");
    }
    systemd::ready();
    tracing::info!("{}", shared.core().describe());
    loop {
        let deadline = shared.core().deadline().map_or_else(|| Instant::now() + NEVER, Instant::from_std);
        tokio::select! {
            biased;
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.reload.recv() => {
                reload_config(shared, reload);
                scans = every(shared.core().config.watch.interval.0);
            }
            _ = signals.request.recv() => request(shared),
            _ = watchdog.tick() => systemd::alive(),
            () = sleep_until(deadline) => shared.core().stop_overdue(std::time::Instant::now()),
            Some(message) = messages.recv() => shared.core().handle(message),
            _ = scans.tick() => shared.core().scan(),
            _ = tidy.tick() => on_blocking_thread(shared, Shared::apply_retention),
            _ = hand_over.tick() => on_blocking_thread(shared, Shared::hand_over),
            () = shared.wake.notified() => {}
        }
        shared.begin(profiler, &sender);
        if mem::take(&mut shared.core().needs_handover) && shared.claims_handover() {
            on_blocking_thread(shared, Shared::hand_over);
        }
        systemd::status(&shared.core().describe());
    }
    if let Some(serving) = serving {
        serving.abort();
    }
    end(shared, sender, &mut messages).await;
    Ok(())
}

/// Runs work that blocks on the disk on another thread. Work of one kind waits for the lock, so few run at a time.
fn on_blocking_thread(shared: &Shared, work: fn(&Shared)) {
    let shared = shared.clone();
    drop(spawn_blocking(move || work(&shared)));
}

/// Starts the HTTP server.
fn serve(listener: Listener, guard: Guard, shared: &Shared) -> JoinHandle<()> {
    tracing::info!("listening on {}", listener.describe());
    tokio::spawn(http::serve(listener, guard, shared.clone()))
}

/// Reloads the configuration; keeps the old one if the new one is invalid.
fn reload_config(shared: &Shared, reload: &Reload) {
    systemd::reloading();
    match reload() {
        Ok(config) => {
            let mut core = shared.core();
            if !core.config.has_settings_of_start(&config) {
                tracing::warn!(
                    "changes of state.directory, [dumps], [http], [push] and [log] take effect at the next start"
                );
            }
            core.apply_config(config);
            drop(core);
            // The new limits may be lower.
            on_blocking_thread(shared, Shared::apply_retention);
            tracing::info!("reloaded the configuration");
        }
        Err(error) => tracing::error!("cannot reload the configuration, keeping the old one: {error}"),
    }
    systemd::ready();
}

fn request(shared: &Shared) {
    if let Some(pid) = shared.core().request_any() {
        tracing::info!("profile requested: pid {pid} is next");
    } else {
        tracing::warn!("profile requested, but there is no process to profile");
    }
}

/// Stops all profiling, and waits a limited time for the last profiles.
async fn end(shared: &Shared, sender: Sender<Message>, messages: &mut Receiver<Message>) {
    systemd::stopping();
    drop(sender);
    let now = std::time::Instant::now();
    {
        let mut core = shared.core();
        core.is_ending = true;
        core.jobs.iter_mut().for_each(|job| job.stop(now));
    }
    let latest = Instant::now() + SHUTDOWN_TIMEOUT;
    while !shared.core().jobs.is_empty() {
        match timeout_at(latest, messages.recv()).await {
            Ok(Some(message)) => shared.core().handle(message),
            Ok(None) => break,
            Err(_) => {
                tracing::warn!("profiling did not stop in time: its last profile is lost");
                shared.core().interrupt();
                break;
            }
        }
    }
    shared.hand_over();
    tracing::info!("ended");
}

/// A timer whose first tick is one period from now.
fn every(period: Duration) -> Interval {
    let mut timer = interval(period);
    timer.reset();
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}
