//! Command lines of processes, which are read from their memory.

use std::fs::File;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::daemon::questions::{Answers, Question, Questions, Subject};
use crate::processes::{Credentials, Pid};
use crate::render::printable;

/// Maximum number of characters shown of a command line.
const MAX_CHARACTERS: usize = 4096;
/// Time that a page waits for all command lines.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads command lines.
#[derive(Debug)]
pub(super) struct CommandLines(Mutex<Questions<String>>);

impl CommandLines {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Questions::new()))
    }

    /// Command lines of processes, given by PID and start time. Those that cannot be read in time are missing.
    pub(super) fn read(&self, processes: impl Iterator<Item = (Pid, u64)>) -> Answers<String> {
        let questions = processes.filter_map(|(pid, start_time)| {
            let user = Credentials::of(pid).ok()?.user;
            let question: Question<String> = Box::new(move || command_line(pid));
            Some((Subject { pid, start_time, user }, question))
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).ask(questions, TIMEOUT)
    }
}

fn command_line(pid: Pid) -> String {
    let mut bytes = Vec::new();
    let file = File::open(pid.proc_file("cmdline"));
    // Empty if it cannot be read because the process has ended.
    let _ = file.and_then(|file| file.take(MAX_CHARACTERS as u64).read_to_end(&mut bytes));
    let words = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
    printable(words.trim_end()).chars().take(MAX_CHARACTERS).collect()
}
