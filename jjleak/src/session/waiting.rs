//! Awaitable descriptors, instants, and timers of a run.

use std::future::pending;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

/// Watches a descriptor for readability. The owner keeps it open for the whole run.
pub fn readable(descriptor: RawFd) -> io::Result<AsyncFd<RawFd>> {
    // SAFETY: the ring buffer that owns the descriptor lives as long as the run, and never replaces it.
    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }.map_err(io::Error::from)
}

/// Waits until a descriptor is readable; forever if there is none.
pub async fn ready(descriptor: Option<&AsyncFd<RawFd>>) -> io::Result<AsyncFdReadyGuard<'_, RawFd>> {
    match descriptor {
        Some(descriptor) => descriptor.readable().await,
        None => pending().await,
    }
}

/// Waits until an instant; forever if there is none.
pub async fn at(instant: Option<std::time::Instant>) {
    match instant {
        Some(instant) => sleep_until(instant.into()).await,
        None => pending().await,
    }
}

/// A timer whose first tick comes after one period.
#[must_use]
pub fn every(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
