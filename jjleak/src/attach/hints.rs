//! Hints of the kernel side that there is something to look at: a process maps code that is not known, runs another
//! program, begins or ends.

use std::collections::BTreeSet;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use jjleak_common::process::ProcessSlot;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::Error;

/// Time to the next hint after one that led to nothing new, doubled each time up to the longest. Each costs a look at
/// all mappings, and garbage on stacks can miss at any rate. But the first useless one is often left from before the
/// last look, and a program that loads a library is likely to load the next one soon.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The hints.
pub struct Hints {
    ring: AsyncFd<RingBuf<MapData>>,
    not_before: Instant,
    pause: Duration,
}

impl Hints {
    pub(super) fn new(ring: RingBuf<MapData>) -> Result<Self, Error> {
        // SAFETY: a ring buffer owns its descriptor and never exchanges it.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| Error::Map(error.into()))?;
        Ok(Self { ring, not_before: Instant::now(), pause: SHORTEST_PAUSE })
    }

    /// Waits until there is a reason to look, and at which processes. Can be dropped and called again.
    pub async fn wait(&mut self) -> BTreeSet<ProcessSlot> {
        sleep_until(self.not_before).await;
        // An error means that the runtime is going down.
        let Ok(mut guard) = self.ring.readable_mut().await else { return BTreeSet::new() };
        let slots = take(guard.get_inner_mut());
        guard.clear_ready();
        slots
    }

    /// The last hint led to something new. Hints from before it was known are dropped, unless they are of other
    /// processes.
    pub fn was_right(&mut self) -> BTreeSet<ProcessSlot> {
        self.pause = SHORTEST_PAUSE;
        take(self.ring.get_mut())
    }

    /// The last hint led to nothing new.
    pub fn was_wrong(&mut self) {
        self.not_before = Instant::now() + self.pause;
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
    }
}

/// The processes that the waiting hints are of. A record begins with the slot.
fn take(ring: &mut RingBuf<MapData>) -> BTreeSet<ProcessSlot> {
    let mut slots = BTreeSet::new();
    while let Some(hint) = ring.next() {
        let slot = hint.first_chunk::<2>().map(|bytes| u16::from_le_bytes(*bytes));
        slots.extend(slot.map(ProcessSlot));
    }
    slots
}
