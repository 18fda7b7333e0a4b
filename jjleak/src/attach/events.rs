//! Single allocations and frees, as the kernel side tells of them.

use std::ptr;

use aya::maps::{MapData, RingBuf};
use jjleak_common::trace::Event;
use tokio::io::unix::AsyncFd;

use super::Error;

/// The events.
pub struct Events {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl Events {
    pub(super) fn new(ring: RingBuf<MapData>) -> Result<Self, Error> {
        // SAFETY: a ring buffer owns its descriptor and never exchanges it.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| Error::Map(error.into()))?;
        Ok(Self { ring })
    }

    /// Waits until there is an event. Can be dropped and called again.
    pub async fn wait(&mut self) {
        // An error means that the runtime is going down.
        let Ok(mut guard) = self.ring.readable_mut().await else { return };
        guard.clear_ready();
    }

    /// Hands out what has come, as many as the ring holds at most: a busy program could go on for ever.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) {
        const MOST: usize = jjleak_common::trace::RING_BYTES as usize / size_of::<Event>();
        let ring = self.ring.get_mut();
        for _ in 0..MOST {
            let Some(item) = ring.next() else { break };
            if item.len() >= size_of::<Event>() {
                // SAFETY: as many bytes are there, and every bit pattern is an event.
                each(unsafe { ptr::read_unaligned(item.as_ptr().cast()) });
            }
        }
    }
}
