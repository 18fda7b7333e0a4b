//! Objects in a Java heap that HotSpot announces: the first in each new thread-local buffer (TLAB), and those outside of buffers.

use crate::process::ImageId;
use crate::sampling::{certain_from, scale_of};

/// Offsets of fields in a JVM's structures, by process slot. All zeros if they are unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HeapLayout {
    /// `Thread::_allocated_bytes`: what a thread has allocated, except in its current buffer.
    pub allocated: u32,
    /// `ThreadLocalAllocBuffer::_start`, within the thread.
    pub buffer_start: u32,
    /// `ThreadLocalAllocBuffer::_top`, within the thread.
    pub buffer_top: u32,
    /// `Klass::_name`.
    pub class_name: u32,
}

impl HeapLayout {
    /// Returns true if the layout is known: no class begins with its name.
    #[inline(always)]
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.class_name != 0
    }
}

/// A Java heap that is followed, by process slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FollowedHeap {
    /// Layout of the JVM's structures.
    pub layout: HeapLayout,
    /// Distance between recorded objects as in [`crate::sampling::draws_of_bytes`]; 0 if all are recorded, or the program's settings say
    /// which.
    pub sample_scale: u64,
    /// Bytes from which on each is recorded.
    pub sample_certain_from: u64,
}

impl FollowedHeap {
    /// The heap with one object in so many bytes recorded; 0 for all.
    #[must_use]
    pub const fn sampled(layout: HeapLayout, bytes: u64) -> Self {
        let (sample_scale, sample_certain_from) =
            if bytes == 0 { (0, 0) } else { (scale_of(bytes), certain_from(bytes)) };
        Self { layout, sample_scale, sample_certain_from }
    }
}

/// Figures of a thread, in the kernel's storage of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ThreadHeap {
    /// The process's image; the other figures are those of an earlier program if it differs.
    pub image: u64,
    /// HotSpot's `Thread`. A thread of the system that detaches from the JVM and attaches again, as `main` does at the end, gets another.
    pub thread: u64,
    /// Size of the current buffer; 0 before the first one is seen.
    pub buffer: u64,
    /// Size of the first object in it, for which HotSpot may have made it larger.
    pub first: u64,
    /// Bytes allocated in buffers when the first object of the current one was announced.
    pub in_buffers: u64,
    /// Bytes allocated in buffers before the current one.
    pub retired: u64,
    /// Bytes allocated outside of buffers since the first announcement.
    pub outside: u64,
    /// The object that is being announced: the BPF stack, which the stack walk shares before Linux 6.13, has no room for it.
    pub record: Record,
}

/// An announced object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// Its `Klass`.
    pub class: u64,
    /// The `Symbol` with the name of the class.
    pub class_name: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Bytes that its thread has allocated in buffers since the previous buffer's first object, or since the thread's start for
    /// [`Reason::FirstBuffer`]. For [`Reason::Outside`], its size.
    pub stands_for: u64,
    /// Size of the buffer that it did not fit into, without its first object; 0 if unknown.
    pub buffer: u64,
    /// Inverse of the chance that it was reported, with [`crate::sampling::WEIGHT_BITS`] fractional bits.
    pub weight: u64,
    /// Its thread's `Thread`.
    pub thread: u64,
    /// The process's image.
    pub image: ImageId,
    /// Row of the stack in the stack table.
    pub stack: u32,
    /// A [`Reason`] as a number.
    pub because: u32,
    /// Zero.
    pub padding: u32,
}

/// Reason why an object is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// It did not fit into the thread's buffer: of all objects, those with more bytes are more likely to be the one.
    Full = 0,
    /// It is the first object after a collection has taken the buffer away: that depends on the time only.
    TakenAway = 1,
    /// It is in the first buffer that is seen of its thread.
    FirstBuffer = 2,
    /// It is outside of buffers.
    Outside = 3,
}

/// Bytes at the end of a buffer that objects cannot use: for the last filler, and for the processor's prefetching
/// (`ThreadLocalAllocBuffer::end_reserve` in the JDK); more than any version has.
const RESERVE: u64 = 1024;

impl Reason {
    /// Reason for a new buffer: in the previous one of this size, `used` bytes were used.
    #[inline(always)]
    #[must_use]
    pub const fn of_buffer(previous: u64, used: u64, size: u64) -> Self {
        if previous == 0 {
            Self::FirstBuffer
        } else if used.saturating_add(size).saturating_add(RESERVE) > previous {
            Self::Full
        } else {
            Self::TakenAway
        }
    }
}

impl Record {
    /// The reason why the object was announced.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self.because {
            0 => Reason::Full,
            1 => Reason::TakenAway,
            2 => Reason::FirstBuffer,
            _ => Reason::Outside,
        }
    }

    /// Zeros.
    pub const NONE: Self = Self {
        class: 0,
        class_name: 0,
        size: 0,
        stands_for: 0,
        buffer: 0,
        weight: 0,
        thread: 0,
        image: ImageId(0),
        stack: 0,
        because: 0,
        padding: 0,
    };
}

// SAFETY: integers only, no padding (asserted below), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Record {}
// SAFETY: integers only, no padding (asserted below), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for FollowedHeap {}

const _: () = assert!(size_of::<Record>() == 72 && align_of::<Record>() == 8);
const _: () = assert!(size_of::<FollowedHeap>() == 32 && size_of::<ThreadHeap>() == 128);

/// Size of the ring buffer in bytes while objects are followed, a power of two: 14,000 objects.
pub const RING_BYTES: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_has_room_for_the_object_was_taken_away() {
        assert_eq!(Reason::of_buffer(0, 0, 64), Reason::FirstBuffer);
        assert_eq!(Reason::of_buffer(1 << 20, (1 << 20) - 600, 64), Reason::Full);
        assert_eq!(Reason::of_buffer(1 << 20, 1 << 19, 1 << 20), Reason::Full);
        assert_eq!(Reason::of_buffer(1 << 20, 1 << 19, 64), Reason::TakenAway);
        for reason in [Reason::Full, Reason::TakenAway, Reason::FirstBuffer, Reason::Outside] {
            assert_eq!(Record { because: reason as u32, ..Record::NONE }.reason(), reason);
        }
    }
}
