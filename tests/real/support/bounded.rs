//! Bounded waits. The limits are far above the needs of a slow machine that is busy with other tests: they only turn a hang into
//! a failure with a message.

use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// For anything that takes a process little work.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// For ten million traced operations, and other larger work.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// For work that takes an idle machine minutes.
pub(crate) const HOURLONG: Duration = Duration::from_secs(3600);

/// Waits for a child to end.
pub(crate) fn exit(child: &mut Child, limit: Duration, who: &str) -> ExitStatus {
    if let Some(status) = child.try_wait().unwrap() {
        return status;
    }
    // A child that has not been waited for keeps its PID, even after its end.
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
    assert!(ready(&descriptor, limit), "{who} did not end within {limit:?}");
    child.wait().unwrap()
}

/// Waits until there is something to read.
pub(crate) fn readable(pipe: &impl AsFd, limit: Duration, what: &str) {
    assert!(ready(pipe, limit), "nothing came through {what} within {limit:?}");
}

/// Waits until a condition that can only be polled is true.
pub(crate) fn until(limit: Duration, what: &str, is_so: impl FnMut() -> bool) {
    assert!(comes(limit, is_so), "{what} did not come within {limit:?}");
}

/// The same for callers with their own failure message: returns true if the condition came true.
pub(crate) fn comes(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    const POLL_INTERVAL: Duration = Duration::from_millis(50);
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

fn ready(descriptor: &impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    loop {
        match poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&limit)) {
            Err(Errno::INTR) => {}
            events => return events.unwrap() > 0,
        }
    }
}
