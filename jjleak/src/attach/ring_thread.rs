//! A thread that takes records from a ring buffer at once, because other work takes longer than the buffer lasts.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;

use super::Error;

/// Time to leave for more records, and for a record that is being written.
const REST: Duration = Duration::from_millis(1);

/// Ends when dropped.
pub struct RingThread {
    end: Arc<EventFd>,
    /// `None` if no thread could be started.
    thread: Option<JoinHandle<()>>,
}

impl RingThread {
    /// Begins to call `receive` each time that `ring` is readable. It returns true if it should be called again at once.
    pub fn start(
        name: &str,
        ring: OwnedFd,
        receive: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, Error> {
        let end = Arc::new(EventFd::new().map_err(|errno| Error::Map(errno.into()))?);
        let run = {
            let end = Arc::clone(&end);
            move || {
                hurry();
                receive_until_end(&ring, &end, &receive);
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run).ok();
        Ok(Self { end, thread })
    }

    /// Returns true if the thread could be started.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.thread.is_some()
    }
}

impl Drop for RingThread {
    fn drop(&mut self) {
        // The counter has room for this.
        let _ = self.end.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn receive_until_end(ring: &OwnedFd, end: &EventFd, receive: &impl Fn() -> bool) {
    loop {
        let mut events = [ring.as_fd(), end.as_fd()].map(|waiting| PollFd::new(waiting, PollFlags::POLLIN));
        let outcome = poll(&mut events, PollTimeout::NONE);
        let is_over = events[1].any().unwrap_or(true);
        if is_over || outcome.is_err_and(|errno| errno != Errno::EINTR) {
            return;
        }
        if !receive() {
            // The thread that is writing a record may wait for this CPU.
            thread::sleep(REST);
        }
    }
}

/// Lets the thread run ahead of the target, which fills a buffer within milliseconds. It has little to do. Without `CAP_SYS_NICE`,
/// or in a service with `RestrictRealtime=yes`, it stays an ordinary thread.
fn hurry() {
    const LOWEST_REAL_TIME: nix::libc::c_int = 1;
    const NICE: nix::libc::c_int = -10;
    // SAFETY: the parameters are valid (musl has more of them, which are zero). Not sched_setscheduler(2), which musl refuses.
    unsafe {
        let mut parameters: nix::libc::sched_param = std::mem::zeroed();
        parameters.sched_priority = LOWEST_REAL_TIME;
        let this = nix::libc::pthread_self();
        let error = nix::libc::pthread_setschedparam(this, nix::libc::SCHED_FIFO, &raw const parameters);
        if error != 0 {
            let error = std::io::Error::from_raw_os_error(error);
            tracing::debug!(%error, "no real-time priority: on a busy machine, frames of stacks and copies of stacks may be lost");
            nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, NICE);
        }
    }
}
