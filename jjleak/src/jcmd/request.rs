//! A running request to a JVM.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Access, Question, VERB};
use crate::processes::Process;

/// Time after which the child is killed. It gives up earlier itself, unless it is blocked.
const LIMIT: Duration = Duration::from_secs(8);
/// Time within which a stopped child must end. It gives half of this to a JVM that has been sent a signal.
const GRACE: Duration = Duration::from_secs(1);
/// Interval at which to check whether it has ended.
const POLL: Duration = Duration::from_millis(5);
/// Maximum length of the child's message. The JVM controls a part of it.
const MAX_ANSWER: u64 = 512;

/// The helper process that asks. It stops when the pipe to its stdin closes.
pub(super) fn helper(question: Question, process: &Process, access: Access) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args([VERB, question.name()])
        .args([process.pid.to_string(), process.start_time.to_string()])
        .args((access == Access::SocketOrSignal).then_some("signal"))
        .env_clear()
        // Signals from the terminal must not end it before it has cleaned up.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// A running request.
#[derive(Debug)]
pub struct Request {
    child: Child,
    since: Instant,
}

/// State of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Still running.
    Running,
    /// The JVM has written its perf map.
    Done,
    /// The JVM has written no perf map, for this reason.
    Failed(String),
}

impl Request {
    /// Starts a request for a perf map.
    pub fn begin(process: &Process, access: Access) -> io::Result<Self> {
        let child = helper(Question::PerfMap, process, access).spawn()?;
        Ok(Self { child, since: Instant::now() })
    }

    /// Polls the state. Must not be called again once the request has ended.
    pub fn state(&mut self) -> State {
        match self.child.try_wait() {
            Ok(None) if self.since.elapsed() < LIMIT => State::Running,
            Ok(None) => State::Failed("it did not answer in time".to_owned()),
            Ok(Some(status)) if status.success() => State::Done,
            Ok(Some(_)) => State::Failed(self.answer()),
            Err(error) => State::Failed(error.to_string()),
        }
    }

    fn answer(&mut self) -> String {
        self.said().unwrap_or_else(|| "it was killed".to_owned())
    }

    fn said(&mut self) -> Option<String> {
        let mut bytes = Vec::new();
        // The writer has ended; an unreadable message counts as none.
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
        let stopped = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && stopped.elapsed() < GRACE {
            sleep(POLL);
        }
        // It may have ended by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(said) = self.said() {
            tracing::warn!("gave up waiting for the JVM's perf map: {said}");
        }
    }
}
