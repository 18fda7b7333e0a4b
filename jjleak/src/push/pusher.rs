//! The thread that sends.

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

/// For a request and its answer.
const LIMIT: Duration = Duration::from_secs(30);
/// What is read of an answer.
const ANSWER_BYTES: u64 = 64 * 1024;
/// Between attempts: twice as long after each, and somewhat random, so that a fleet does not come back at once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Sends profiles to one destination, in the background. Dropping it ends that; what waits stays on disk.
#[derive(Debug)]
pub struct Pusher {
    shared: Arc<Mutex<Shared>>,
    wake: SyncSender<()>,
}

/// What has become of the profiles since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// How many wait.
    pub waiting: usize,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// How many the other side has taken.
    pub sent: u64,
    /// How many the other side will never take, and were thrown away.
    pub refused: u64,
    /// How many found no place in the queue, or were lost from it.
    pub dropped: u64,
    /// How many attempts have failed that will be made again.
    pub failures: u64,
    /// Why the last attempt failed; `None` after one that did not.
    pub last_error: Option<String>,
}

#[derive(Debug)]
struct Shared {
    queue: Queue,
    status: Status,
}

/// How an attempt has ended.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Taken,
    /// Trying again would not help.
    Refused(String),
    /// It may go better later; the other side may say when.
    Failed(String, Option<Duration>),
}

impl Pusher {
    /// Starts to send what is in the queue of this folder, and what will be.
    ///
    /// # Errors
    ///
    /// When the queue cannot be used, or no thread can be made.
    pub fn start(destination: Destination, folder: &Path, limit: u64) -> Result<Self, Error> {
        let queue = Queue::open(folder, limit)?;
        let shared = Arc::new(Mutex::new(Shared { queue, status: Status::default() }));
        // One word is enough to wake it.
        let (wake, woken) = mpsc::sync_channel(1);
        let sender = Sender { destination, agent: agent(), shared: Arc::clone(&shared), woken };
        let failed = |source| Error::Folder { folder: folder.to_owned(), source };
        thread::Builder::new().name("push".to_owned()).spawn(move || sender.run()).map_err(failed)?;
        Ok(Self { shared, wake })
    }

    /// Queues a profile.
    ///
    /// # Errors
    ///
    /// When it cannot be kept; it counts as dropped then.
    pub fn push(&self, file: &[u8]) -> Result<(), Error> {
        lock(&self.shared).queue.push(file)?;
        match self.wake.try_send(()) {
            // It will look anyway.
            Ok(()) | Err(TrySendError::Full(())) => Ok(()),
            Err(TrySendError::Disconnected(())) => {
                tracing::error!(
                    "the thread that sends profiles has ended: they wait until jjleak starts anew"
                );
                Ok(())
            }
        }
    }

    /// What has become of the profiles so far.
    #[must_use]
    pub fn status(&self) -> Status {
        let shared = lock(&self.shared);
        let (waiting, waiting_bytes) = shared.queue.waiting();
        let dropped = shared.queue.dropped();
        Status { waiting, waiting_bytes, dropped, ..shared.status.clone() }
    }
}

/// A panic elsewhere has left counts that are right: each is changed by itself.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn agent() -> Agent {
    Agent::config_builder()
        .timeout_global(Some(LIMIT))
        // A token goes to nobody but whom it was meant for.
        .max_redirects(0)
        .http_status_as_error(false)
        .user_agent(concat!("jjleak/", env!("CARGO_PKG_VERSION")))
        .build()
        .into()
}

struct Sender {
    destination: Destination,
    agent: Agent,
    shared: Arc<Mutex<Shared>>,
    woken: Receiver<()>,
}

impl Sender {
    fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let oldest = lock(&self.shared).queue.oldest();
            let Some((number, file)) = oldest else {
                if self.woken.recv().is_err() {
                    return;
                }
                continue;
            };
            let outcome = match self.destination.request(&file) {
                Ok(request) => self.send(request),
                Err(error) => Outcome::Refused(format!("it is damaged: {}", with_cause(&error))),
            };
            if let Outcome::Failed(_, wanted) = &outcome {
                let wait = wanted.unwrap_or_else(|| jittered(pause)).min(LONGEST_PAUSE);
                pause = (pause * 2).min(LONGEST_PAUSE);
                self.book(number, outcome);
                if !self.sleep(wait) {
                    return;
                }
            } else {
                pause = FIRST_PAUSE;
                self.book(number, outcome);
            }
        }
    }

    /// Waits, whatever comes in meanwhile; whether anybody still wants profiles to be sent.
    fn sleep(&self, wait: Duration) -> bool {
        let end = std::time::Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.woken.recv_timeout(left) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Writes down how an attempt has ended.
    fn book(&self, number: u64, outcome: Outcome) {
        let Shared { queue, status } = &mut *lock(&self.shared);
        match outcome {
            Outcome::Taken => {
                status.sent += 1;
                status.last_error = None;
            }
            Outcome::Refused(reason) => {
                tracing::warn!("a profile is thrown away: {} refuses it: {reason}", self.destination.url);
                status.refused += 1;
                status.last_error = Some(reason);
            }
            Outcome::Failed(reason, _) => {
                if status.last_error.as_ref() != Some(&reason) {
                    tracing::warn!("profiles wait: {} cannot take them: {reason}", self.destination.url);
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
            Ok(response) => self.judge(response),
            Err(error) => Outcome::Failed(with_cause(&error), None),
        }
    }

    fn judge(&self, mut response: Response<ureq::Body>) -> Outcome {
        let status = response.status();
        let wanted = retry_after(&response);
        let answer = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec();
        if status.is_success() {
            return match (self.destination.kind, answer) {
                (Kind::Otlp, Ok(answer)) => judge_export(&answer),
                _ => Outcome::Taken,
            };
        }
        let answer =
            String::from_utf8_lossy(&answer.unwrap_or_default()).trim().chars().take(200).collect::<String>();
        let reason = format!("{status}: {}", answer.escape_debug());
        let later = status.is_server_error()
            || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status)
            // Somebody has to give jjleak another token; profiles can wait for it.
            || [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status);
        if later { Outcome::Failed(reason, wanted) } else { Outcome::Refused(reason) }
    }
}

/// How long the other side wants to be left alone.
fn retry_after(response: &Response<ureq::Body>) -> Option<Duration> {
    let seconds = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).max(FIRST_PAUSE))
}

/// A collector may take a request and not the profiles in it.
fn judge_export(answer: &[u8]) -> Outcome {
    let answer = ExportProfilesServiceResponse::decode(answer).ok();
    match answer.and_then(|answer| answer.partial_success) {
        Some(partial) if partial.rejected_profiles > 0 => Outcome::Refused(format!(
            "{} profiles rejected: {}",
            partial.rejected_profiles,
            partial.error_message.escape_debug()
        )),
        _ => Outcome::Taken,
    }
}

/// Half of a pause to all of it.
fn jittered(pause: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(pause) % 512;
    pause.mul_f64(f64::from(u32::try_from(random).unwrap_or_default()).mul_add(1.0 / 1024.0, 0.5))
}

fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
