//! Page faults of the profiled processes, from the tracepoints of all page faults of the host, and pages that `mremap` has moved.

use std::os::fd::{AsRawFd, RawFd};

use jjleak_common::fault::{RING_BYTES, Record};

use super::Drained;
use super::ring::Ring;

/// Maximum number of faults taken at once: the capacity of the ring buffer.
const MAX_TAKEN: usize = RING_BYTES as usize / size_of::<Record>();

/// Stream of page faults.
pub struct PageFaults {
    ring: Ring<Record>,
}

impl PageFaults {
    pub(super) const fn new(ring: Ring<Record>) -> Self {
        Self { ring }
    }

    /// A descriptor that is readable if there are faults.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Takes the pending faults in order.
    pub fn take(&mut self, mut each: impl FnMut(&Record)) -> Drained {
        for _ in 0..MAX_TAKEN {
            let Some(record) = self.ring.next() else { return Drained::Empty };
            each(&record);
        }
        Drained::Enough
    }
}
