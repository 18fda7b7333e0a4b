//! A request to a JVM, while it runs.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{VERB, Way};
use crate::processes::Process;

/// A request that has not ended by itself by then is ended. The child gives up before: this is for when it is kept from it.
const LIMIT: Duration = Duration::from_secs(8);
/// One that is told to stop ends within this: it gives a JVM that has been sent a signal half of it to answer.
const GRACE: Duration = Duration::from_secs(1);
/// How often it is looked whether it has.
const POLL: Duration = Duration::from_millis(5);
/// Most bytes of what the child says that are looked at. The JVM has a part in it.
const MAX_ANSWER: u64 = 512;

/// A request that runs.
#[derive(Debug)]
pub struct Request {
    child: Child,
    since: Instant,
}

/// How far a request has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Running,
    /// The JVM has written its perf map.
    Done,
    /// It has not; why.
    Failed(String),
}

impl Request {
    /// Begins to ask a JVM for its perf map.
    pub fn begin(process: &Process, way: Way) -> io::Result<Self> {
        let child = Command::new("/proc/self/exe")
            .arg(VERB)
            .args([process.pid.to_string(), process.start_time.to_string()])
            .args((way == Way::SocketOrSignal).then_some("signal"))
            .env_clear()
            // What ends jjleak from the terminal does not end it: it has to tidy up, when nobody holds this pipe any more.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, since: Instant::now() })
    }

    /// How far it has come. Once it has ended, it must not be asked again.
    pub fn state(&mut self) -> State {
        match self.child.try_wait() {
            Ok(None) if self.since.elapsed() < LIMIT => State::Running,
            Ok(None) => State::Failed("it has not answered in time".to_owned()),
            Ok(Some(status)) if status.success() => State::Done,
            Ok(Some(_)) => State::Failed(self.answer()),
            Err(error) => State::Failed(error.to_string()),
        }
    }

    fn answer(&mut self) -> String {
        self.said().unwrap_or_else(|| "it was ended".to_owned())
    }

    fn said(&mut self) -> Option<String> {
        let mut bytes = Vec::new();
        // Whoever has written it has ended; what cannot be read has not been said.
        let _ = self.child.stdout.take().map(|pipe| pipe.take(MAX_ANSWER).read_to_end(&mut bytes));
        let answer = String::from_utf8_lossy(&bytes).trim().to_owned();
        Some(answer).filter(|answer| !answer.is_empty())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        drop(self.child.stdin.take());
        let told = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && told.elapsed() < GRACE {
            sleep(POLL);
        }
        // It may have ended by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(said) = self.said() {
            tracing::warn!("a JVM is not waited for any longer that was asked for a perf map: {said}");
        }
    }
}
