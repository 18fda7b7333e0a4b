//! A child process that does not outlive its test.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use super::bounded;

/// Killed when dropped.
pub(crate) struct Process {
    child: Child,
    name: String,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self { child, name }
    }

    /// Waits for the end; panics at the time limit.
    pub(crate) fn end(&mut self, limit: Duration) -> ExitStatus {
        bounded::exit(&mut self.child, limit, &self.name)
    }
}

impl Deref for Process {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Process {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A number in the status of a running process (`proc_pid_status(5)`).
pub(crate) fn status(pid: u32, name: &str) -> u64 {
    status_if_running(pid, name).unwrap_or_else(|| panic!("process {pid} has no {name}"))
}

/// The same; `None` if it has ended.
pub(crate) fn status_if_running(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
