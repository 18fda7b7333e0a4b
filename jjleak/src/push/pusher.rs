//! Background thread that sends queued profiles.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;
use ureq::Agent;
use ureq::http::{Response, StatusCode};

use super::queue::{Error, Queue};
use super::request::{Destination, Kind, Request};
use crate::http_client::agent;

/// Timeout of a request and its response.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of bytes read from a response.
const RESPONSE_BYTES: u64 = 64 * 1024;
/// Back-off between attempts, doubled after each one. Jittered, so that the hosts of a fleet do not retry in unison.
const MIN_BACK_OFF: Duration = Duration::from_secs(1);
const MAX_BACK_OFF: Duration = Duration::from_secs(300);

/// Sends profiles to one destination in the background. Dropping it stops the thread; unsent profiles stay on disk.
#[derive(Debug)]
pub struct Pusher {
    shared: Arc<Mutex<Shared>>,
    wake: SyncSender<()>,
}

/// Counters since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Number of queued profiles.
    pub waiting: usize,
    /// Size of the queued profiles.
    pub waiting_bytes: u64,
    /// Profiles that the server accepted.
    pub sent: u64,
    /// Profiles discarded because the server will never accept them.
    pub refused: u64,
    /// Profiles that did not fit into the queue, or were lost from it.
    pub dropped: u64,
    /// Failed attempts that will be retried.
    pub failures: u64,
    /// Error of the last attempt; `None` if it succeeded.
    pub last_error: Option<String>,
}

#[derive(Debug)]
struct Shared {
    queue: Queue,
    status: Status,
}

/// Outcome of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Accepted,
    /// A retry would not help.
    Refused(String),
    /// A retry may succeed, after the delay that the server asked for, if any.
    Failed(String, Option<Duration>),
}

impl Pusher {
    /// Opens the queue in this folder and starts to send.
    ///
    /// # Errors
    ///
    /// If the queue cannot be opened, or the thread cannot be created.
    pub fn start(destination: Destination, folder: &Path, limit: u64) -> Result<Self, Error> {
        let queue = Queue::open(folder, limit)?;
        let shared = Arc::new(Mutex::new(Shared { queue, status: Status::default() }));
        // One pending wake-up suffices.
        let (wake, wake_ups) = mpsc::sync_channel(1);
        let sender = Sender { destination, agent: agent(TIMEOUT), shared: Arc::clone(&shared), wake_ups };
        let failed = |source| Error::Folder { folder: folder.to_owned(), source };
        thread::Builder::new().name("push".to_owned()).spawn(move || sender.run()).map_err(failed)?;
        Ok(Self { shared, wake })
    }

    /// Queues a profile.
    ///
    /// # Errors
    ///
    /// If it cannot be written; it is counted as dropped.
    pub fn push(&self, file: &[u8]) -> Result<(), Error> {
        lock(&self.shared).queue.push(file)?;
        match self.wake.try_send(()) {
            // A wake-up is already pending.
            Ok(()) | Err(TrySendError::Full(())) => Ok(()),
            Err(TrySendError::Disconnected(())) => {
                tracing::error!("the push thread has ended: profiles stay queued until jjleak is restarted");
                Ok(())
            }
        }
    }

    /// Current counters.
    #[must_use]
    pub fn status(&self) -> Status {
        let shared = lock(&self.shared);
        let (waiting, waiting_bytes) = shared.queue.waiting();
        let dropped = shared.queue.dropped();
        Status { waiting, waiting_bytes, dropped, ..shared.status.clone() }
    }
}

/// Ignores poisoning: each counter is updated independently, so they are consistent after a panic.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Sender {
    destination: Destination,
    agent: Agent,
    shared: Arc<Mutex<Shared>>,
    wake_ups: Receiver<()>,
}

impl Sender {
    fn run(self) {
        let mut back_off = MIN_BACK_OFF;
        loop {
            let oldest = lock(&self.shared).queue.oldest();
            let Some((number, file)) = oldest else {
                if self.wake_ups.recv().is_err() {
                    return;
                }
                continue;
            };
            let outcome = match self.destination.request(&file) {
                Ok(request) => self.send(request),
                Err(error) => Outcome::Refused(format!("damaged profile: {}", with_cause(&error))),
            };
            if let Outcome::Failed(_, retry_after) = &outcome {
                let wait = retry_after.unwrap_or_else(|| jittered(back_off)).min(MAX_BACK_OFF);
                back_off = (back_off * 2).min(MAX_BACK_OFF);
                self.record(number, outcome);
                if !self.sleep(wait) {
                    return;
                }
            } else {
                back_off = MIN_BACK_OFF;
                self.record(number, outcome);
            }
        }
    }

    /// Sleeps through wake-ups; returns whether the [`Pusher`] still exists.
    fn sleep(&self, wait: Duration) -> bool {
        let end = std::time::Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.wake_ups.recv_timeout(left) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Records the outcome of an attempt.
    fn record(&self, number: u64, outcome: Outcome) {
        let Shared { queue, status } = &mut *lock(&self.shared);
        match outcome {
            Outcome::Accepted => {
                status.sent += 1;
                status.last_error = None;
            }
            Outcome::Refused(reason) => {
                tracing::warn!("cannot push a profile to {}, discarding it: {reason}", self.destination.url);
                status.refused += 1;
                status.last_error = Some(reason);
            }
            Outcome::Failed(reason, _) => {
                if status.last_error.as_ref() != Some(&reason) {
                    tracing::warn!("cannot push profiles to {}, retrying: {reason}", self.destination.url);
                }
                status.failures += 1;
                status.last_error = Some(reason);
                return;
            }
        }
        queue.remove(number);
    }

    fn send(&self, request: Request) -> Outcome {
        let mut post = self.agent.post(&request.url);
        for (name, value) in &request.query {
            post = post.query(*name, value);
        }
        for (name, value) in &request.headers {
            post = post.header(name, value);
        }
        match post.send(request.body) {
            Ok(response) => self.outcome(response),
            Err(error) => Outcome::Failed(with_cause(&error), None),
        }
    }

    fn outcome(&self, mut response: Response<ureq::Body>) -> Outcome {
        let status = response.status();
        let retry_after = retry_after(&response);
        let answer = response.body_mut().with_config().limit(RESPONSE_BYTES).read_to_vec();
        if status.is_success() {
            return match (self.destination.kind, answer) {
                (Kind::Otlp, Ok(answer)) => export_outcome(&answer),
                _ => Outcome::Accepted,
            };
        }
        let answer =
            String::from_utf8_lossy(&answer.unwrap_or_default()).trim().chars().take(200).collect::<String>();
        let reason = format!("{status}: {}", answer.escape_debug());
        let later = status.is_server_error()
            || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
            // Profiles can wait until somebody replaces the token.
            || [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status);
        if later { Outcome::Failed(reason, retry_after) } else { Outcome::Refused(reason) }
    }
}

/// Delay that the server asked for.
fn retry_after(response: &Response<ureq::Body>) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).max(MIN_BACK_OFF))
}

/// An OTLP collector can accept a request and still reject its profiles.
fn export_outcome(answer: &[u8]) -> Outcome {
    let answer = ExportProfilesServiceResponse::decode(answer).ok();
    match answer.and_then(|answer| answer.partial_success) {
        Some(partial) if partial.rejected_profiles > 0 => Outcome::Refused(format!(
            "{} profiles rejected: {}",
            partial.rejected_profiles,
            partial.error_message.escape_debug()
        )),
        _ => Outcome::Accepted,
    }
}

/// A random duration between half of a back-off and all of it.
fn jittered(back_off: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(back_off) % 512;
    back_off.mul_f64(f64::from(u32::try_from(random).unwrap_or_default()).mul_add(1.0 / 1024.0, 0.5))
}

fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
