//! Bounds on what reading one file may cost. The target controls its files.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Maximum number of bytes of a file in memory at a time. A quarter of the daemon's `MemoryHigh`, and enough for the call frame
/// information and the symbol table of any measured program: those of a browser with 2 GiB of debug information have 60 MiB.
pub const MAX_HELD_BYTES: u64 = 96 << 20;
/// Maximum CPU time from opening a file to the last read. The largest measured programs take 2 s.
pub const MAX_CPU: Duration = Duration::from_secs(10);

/// Bytes after which the time is checked: the system call takes 0.2 us, a search of as many bytes 100 us.
const CHECK_BYTES: u64 = 1 << 20;
/// Bytes that one call counts as, besides those that it reads.
const CALL_BYTES: u64 = 256;

/// Reason why a file is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooCostly {
    /// More than [`MAX_HELD_BYTES`].
    #[error("analysing it takes more than {} MiB of memory", MAX_HELD_BYTES >> 20)]
    Memory,
    /// More than [`MAX_CPU`].
    #[error("analysing it takes more than {} s of CPU time", MAX_CPU.as_secs())]
    Time,
    /// [`StopReading::stop`] was called.
    #[error("profiling was given up while it was read")]
    Stopped,
}

thread_local! {
    static OF_THREAD: RefCell<StopReading> = RefCell::default();
}

/// Ends all reading of files by some threads, from another thread.
#[derive(Debug, Clone, Default)]
pub struct StopReading(Arc<AtomicBool>);

impl StopReading {
    /// The one that applies to files opened by this thread.
    #[must_use]
    pub fn of_thread() -> Self {
        OF_THREAD.with_borrow(Self::clone)
    }

    /// Applies to files that this thread opens from now on.
    pub fn apply_to_thread(&self) {
        OF_THREAD.set(self.clone());
    }

    /// Fails all later reads.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Adds up what a file costs.
#[derive(Debug)]
pub(super) struct Meter {
    begin: Duration,
    held: Cell<u64>,
    /// Bytes passed on since the last check of the time, and [`CALL_BYTES`] for each call.
    unchecked: Cell<u64>,
    exceeded: Cell<Option<TooCostly>>,
    stop: StopReading,
}

impl Meter {
    pub(super) fn start() -> Self {
        Self {
            begin: cpu_time(),
            held: Cell::new(0),
            unchecked: Cell::new(0),
            exceeded: Cell::new(None),
            stop: StopReading::of_thread(),
        }
    }

    pub(super) fn exceeded(&self) -> Option<TooCostly> {
        self.exceeded.get()
    }

    /// Adds bytes that stay in memory; `None` if they are too many.
    pub(super) fn hold(&self, bytes: u64) -> Option<()> {
        self.check()?;
        let held = self.held.get() + bytes;
        if held > MAX_HELD_BYTES {
            self.exceeded.set(Some(TooCostly::Memory));
            return None;
        }
        self.held.set(held);
        Some(())
    }

    /// Adds bytes that are passed on, perhaps again, for something to be found in them; `None` if that has taken too long.
    pub(super) fn work(&self, bytes: u64) -> Option<()> {
        let unchecked = self.unchecked.get().saturating_add(bytes).saturating_add(CALL_BYTES);
        if unchecked < CHECK_BYTES {
            self.unchecked.set(unchecked);
            return Some(());
        }
        self.unchecked.set(0);
        self.check()
    }

    /// Returns `None` if the file has cost too much.
    pub(super) fn check(&self) -> Option<()> {
        if self.exceeded.get().is_some() {
            return None;
        }
        if self.stop.0.load(Ordering::Relaxed) {
            self.exceeded.set(Some(TooCostly::Stopped));
        } else if cpu_time().saturating_sub(self.begin) > MAX_CPU {
            self.exceeded.set(Some(TooCostly::Time));
        }
        self.exceeded.get().is_none().then_some(())
    }
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    // Linux has had this clock since 2.6.12.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
