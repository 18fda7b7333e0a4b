//! Ring buffers of records of one type.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};

use aya::Pod;
use aya::maps::{MapData, RingBuf};

/// Receiver of the records that the kernel side writes into a ring buffer.
pub(super) struct Ring<T> {
    buffer: RingBuf<MapData>,
    record: PhantomData<T>,
}

impl<T: Pod> Ring<T> {
    pub(super) const fn new(buffer: RingBuf<MapData>) -> Self {
        Self { buffer, record: PhantomData }
    }

    /// Takes the oldest record; `None` if there is none.
    pub(super) fn next(&mut self) -> Option<T> {
        loop {
            if let Some(record) = decode(&self.buffer.next()?) {
                return Some(record);
            }
        }
    }
}

impl<T> AsRawFd for Ring<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.buffer.as_raw_fd()
    }
}

/// A record; `None` if the bytes have another size.
fn decode<T: Pod>(bytes: &[u8]) -> Option<T> {
    // SAFETY: there are enough bytes, and every bit pattern is a valid value of a `Pod`.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_size_of_its_type() {
        assert_eq!(decode::<u64>(&7u64.to_ne_bytes()), Some(7));
        assert_eq!(decode::<u64>(&[0; 7]), None);
        assert_eq!(decode::<u64>(&[0; 16]), None);
    }
}
