//! Page faults of the profiled processes, from the tracepoints of all page faults of the host.

use std::os::fd::{AsRawFd, RawFd};

use jjleak_common::fault::{Fault, RING_BYTES};

use super::Drained;
use super::ring::Ring;

/// Maximum number of faults taken at once: the capacity of the ring buffer.
const MAX_TAKEN: usize = RING_BYTES as usize / size_of::<Fault>();

/// Stream of page faults.
pub struct PageFaults {
    ring: Ring<Fault>,
}

impl PageFaults {
    pub(super) const fn new(ring: Ring<Fault>) -> Self {
        Self { ring }
    }

    /// A descriptor that is readable if there are faults.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Takes the pending faults in order.
    pub fn take(&mut self, mut each: impl FnMut(&Fault)) -> Drained {
        for _ in 0..MAX_TAKEN {
            let Some(fault) = self.ring.next() else { return Drained::Empty };
            each(&fault);
        }
        Drained::Enough
    }
}
