//! Streams of records that the kernel side reports: page faults and moved pages, mappings, objects of Java heaps.

use std::os::fd::{AsRawFd, RawFd};

use aya::Pod;

use super::ring::Ring;

/// Stream of records of one type.
pub struct Records<R> {
    ring: Ring<R>,
    /// Maximum number of records taken at once: the capacity of the ring buffer. A busy process adds records continuously.
    most: usize,
}

/// Result of taking records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// No records are left.
    Empty,
    /// The maximum number was taken.
    Enough,
}

impl<R: Pod> Records<R> {
    /// Records of a ring buffer of this size.
    pub(super) const fn new(ring: Ring<R>, ring_bytes: u32) -> Self {
        Self { ring, most: ring_bytes as usize / size_of::<R>() }
    }

    /// A descriptor that is readable if there are records.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// Takes the pending records in order.
    pub fn take(&mut self, mut each: impl FnMut(&R)) -> Drained {
        for _ in 0..self.most {
            let Some(record) = self.ring.next() else { return Drained::Empty };
            each(&record);
        }
        Drained::Enough
    }
}
