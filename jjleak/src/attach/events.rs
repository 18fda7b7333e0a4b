//! Individual allocations and frees, as reported by the kernel side.

use jjleak_common::trace::Event;
use tokio::io::unix::AsyncFd;

use super::Error;
use super::ring::Ring;

/// Stream of these events.
pub struct Events {
    ring: AsyncFd<Ring<Event>>,
}

impl Events {
    pub(super) fn new(ring: Ring<Event>) -> Result<Self, Error> {
        // SAFETY: a ring buffer owns its descriptor and never replaces it.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| Error::Map(error.into()))?;
        Ok(Self { ring })
    }

    /// Waits for an event. Cancel-safe.
    pub async fn wait(&mut self) {
        // An error means that the runtime is shutting down.
        let Ok(mut guard) = self.ring.readable_mut().await else { return };
        guard.clear_ready();
    }

    /// Passes on pending events, at most as many as the ring buffer holds: a busy program could add events endlessly.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) {
        const MOST: usize = jjleak_common::trace::RING_BYTES as usize / size_of::<Event>();
        let ring = self.ring.get_mut();
        for _ in 0..MOST {
            let Some(event) = ring.next() else { break };
            each(event);
        }
    }
}
