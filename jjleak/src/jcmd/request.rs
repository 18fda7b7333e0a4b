//! Requests to a JVM: one that runs by itself, and one that is waited for.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::child::{WITH_SIGNAL, WITHOUT_SIGNAL};
use super::{Access, Question, VERB};
use crate::processes::Process;

/// Time beyond that of the JVM's answer after which the child is killed. It gives up earlier itself, unless it is blocked.
const BLOCKED: Duration = Duration::from_secs(3);
/// Time within which a stopped child must end. It gives half of this to a JVM that has been sent a signal.
const GRACE: Duration = Duration::from_secs(1);
/// Interval at which to check whether it has ended.
const POLL: Duration = Duration::from_millis(5);
/// Maximum length of the child's message. The JVM controls a part of it.
const MAX_ANSWER: u64 = 512;

/// The helper process that asks. It stops when the pipe to its stdin closes.
fn helper(question: Question, process: &Process, access: Access, words: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .args([VERB, question.name()])
        .args([process.pid.to_string(), process.start_time.to_string()])
        .arg(if access == Access::SocketOrSignal { WITH_SIGNAL } else { WITHOUT_SIGNAL })
        .args(words)
        .env_clear()
        // Signals from the terminal must not end it before it has cleaned up.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// Asks a JVM, and returns its answer. Blocks.
pub(super) fn ask(
    question: Question,
    process: &Process,
    access: Access,
    words: &[&str],
) -> Result<String, String> {
    let mut child = helper(question, process, access, words).spawn().map_err(|error| error.to_string())?;
    let answer = read(&mut child, question);
    if answer.is_err() {
        // It may have ended by now.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let answer = answer.map_err(|error| error.to_string())?;
    if status.success() { Ok(answer) } else { Err(answer.trim().to_owned()) }
}

/// All that the child says.
fn read(child: &mut Child, question: Question) -> io::Result<String> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time");
    let mut pipe = child.stdout.take().ok_or_else(late)?;
    let deadline = Instant::now() + question.time_limit() + BLOCKED;
    let (mut answer, mut part) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = deadline.checked_duration_since(Instant::now()).ok_or_else(late)?;
        let mut waits = [PollFd::new(&pipe, PollFlags::IN)];
        poll(&mut waits, Timespec::try_from(left).ok().as_ref())?;
        if waits[0].revents().is_empty() {
            continue;
        }
        let length = pipe.read(&mut part)?;
        answer.extend(part.iter().take(length));
        if length == 0 || answer.len() as u64 > question.longest() {
            return Ok(String::from_utf8_lossy(&answer).into_owned());
        }
    }
}

/// A running request.
#[derive(Debug)]
pub struct Request {
    child: Child,
    what: &'static str,
    deadline: Instant,
}

/// State of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Still running.
    Running,
    /// The JVM has done it.
    Done,
    /// The JVM has not done it, for this reason.
    Failed(String),
}

impl Request {
    /// Starts a request for a perf map.
    pub fn perf_map(process: &Process, access: Access) -> io::Result<Self> {
        Self::begin(Question::PerfMap, process, access, &[], "perf map")
    }

    pub(super) fn begin(
        question: Question,
        process: &Process,
        access: Access,
        words: &[&str],
        what: &'static str,
    ) -> io::Result<Self> {
        let child = helper(question, process, access, words).spawn()?;
        Ok(Self { child, what, deadline: Instant::now() + question.time_limit() + BLOCKED })
    }

    /// Polls the state. Must not be called again once the request has ended.
    pub fn state(&mut self) -> State {
        match self.child.try_wait() {
            Ok(None) if Instant::now() < self.deadline => State::Running,
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
            tracing::warn!("gave up waiting for the JVM's {}: {said}", self.what);
        }
    }
}
