//! Watch for the end of a process.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid as RawPid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;

use super::{Error, Pid};

/// Becomes ready when the process ends. Bound to this process: another one with the same PID does not count.
pub struct ExitWatch(AsyncFd<OwnedFd>);

impl ExitWatch {
    /// Watches a process. Requires a running tokio runtime.
    pub fn new(pid: Pid) -> Result<Self, Error> {
        let raw = i32::try_from(pid.number().get()).ok().and_then(RawPid::from_raw);
        let raw = raw.ok_or(Error::NoSuchProcess(pid))?;
        let fd = pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => Error::Gone(pid),
            errno => Error::Watch { pid, source: errno.into() },
        })?;
        // SAFETY: an OwnedFd gives the same open descriptor for as long as it lives, and is owned by the watch.
        let watch =
            unsafe { AsyncFd::register(fd) }.map_err(|error| Error::Watch { pid, source: error.into() })?;
        Ok(Self(watch))
    }

    /// Returns true if the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut events = [PollFd::new(self.0.get_ref(), PollFlags::IN)];
        // An error means an invalid descriptor; nothing is known then.
        poll(&mut events, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Waits for the end of the process.
    pub async fn wait(&self) {
        // Readiness is all that a pidfd reports; an error of the reactor means that the runtime is gone.
        let _ = self.0.readable().await;
    }
}
