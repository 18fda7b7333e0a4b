//! Hints of the kernel side that the process maps code it does not know of.

use std::time::Duration;

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use jjleak_common::names;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::Error;

/// Time to the next hint after one that led to nothing new, doubled each time up to the longest. Each costs a look at
/// all mappings, and garbage on stacks can miss at any rate. But the first useless one is often left from before the
/// last look, and a program that loads a library is likely to load the next one soon.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The hints.
pub struct Misses {
    ring: AsyncFd<RingBuf<MapData>>,
    not_before: Instant,
    pause: Duration,
}

impl Misses {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let name = names::MISSES;
        let map = ebpf.take_map(name).ok_or(Error::ObjectLacks { what: "map", name })?;
        let ring = RingBuf::try_from(map).map_err(Error::table)?;
        // SAFETY: a ring buffer owns its descriptor and never exchanges it.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| Error::Map(error.into()))?;
        Ok(Self { ring, not_before: Instant::now(), pause: SHORTEST_PAUSE })
    }

    /// Waits until there is a reason to look at the process's mappings again. Can be dropped and called again.
    pub async fn wait(&mut self) {
        sleep_until(self.not_before).await;
        // An error means that the runtime is going down.
        let Ok(mut guard) = self.ring.readable_mut().await else { return };
        let ring = guard.get_inner_mut();
        while ring.next().is_some() {}
        guard.clear_ready();
    }

    /// The last hint led to something new. Hints from before it was known are dropped.
    pub fn was_right(&mut self) {
        self.pause = SHORTEST_PAUSE;
        let ring = self.ring.get_mut();
        while ring.next().is_some() {}
    }

    /// The last hint led to nothing new.
    pub fn was_wrong(&mut self) {
        self.not_before = Instant::now() + self.pause;
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
    }
}
