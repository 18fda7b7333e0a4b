//! Waits that end. Their limits are far above what a slow machine needs that is busy with other tests: they turn a hang into a
//! failure that says what was waited for, and nothing else depends on them.

use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// For anything a process does without much work.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// For ten million traced operations, and whatever else is work.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// For what takes a machine minutes that has nothing else to do.
pub(crate) const HOURLONG: Duration = Duration::from_secs(3600);

/// Waits for a child to end.
pub(crate) fn exit(child: &mut Child, limit: Duration, who: &str) -> ExitStatus {
    if let Some(status) = child.try_wait().unwrap() {
        return status;
    }
    // A child that has not been waited for keeps its PID, even when it has ended.
    let descriptor = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
    assert!(ready(&descriptor, limit), "{who} did not end within {limit:?}");
    child.wait().unwrap()
}

/// Waits until there is something to read.
pub(crate) fn readable(pipe: &impl AsFd, limit: Duration, what: &str) {
    assert!(ready(pipe, limit), "nothing came through {what} within {limit:?}");
}

/// Waits until something that can only be looked at is as it should be.
pub(crate) fn until(limit: Duration, what: &str, is_so: impl FnMut() -> bool) {
    assert!(comes(limit, is_so), "{what} did not come within {limit:?}");
}

/// The same for who has more to say when it does not come: whether it has.
pub(crate) fn comes(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
    let begin = Instant::now();
    while !is_so() {
        if begin.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(BETWEEN_LOOKS);
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
