//! Events of system calls that change a process's mappings.
//!
//! A call can have two events: on entry, if it may unmap memory, and on return, if it mapped memory or
//! failed. The unmapping is reported before the kernel does it: if another thread gets the address next, this
//! call does not remove it. The mapping is reported afterwards. The user side applies the rules.

use crate::process::ImageId;

/// A system call that can map or unmap memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Call {
    /// `mmap(address, length, protection, flags)`.
    Map = 0,
    /// `munmap(address, length)`.
    Unmap = 1,
    /// `mremap(old_address, old_length, new_length, flags, new_address)`.
    Remap = 2,
    /// `brk(address)`; the second argument is the break before the call.
    Break = 3,
}

impl Call {
    /// The call with this system call number of x86-64 (`arch/x86/entry/syscalls/syscall_64.tbl`); `None` for any other call.
    #[inline(always)]
    #[must_use]
    pub const fn of_x86_64(number: u64) -> Option<Self> {
        match number {
            9 => Some(Self::Map),
            11 => Some(Self::Unmap),
            12 => Some(Self::Break),
            25 => Some(Self::Remap),
            _ => None,
        }
    }

    /// The call with this number; `None` for a number no call has.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Map),
            1 => Some(Self::Unmap),
            2 => Some(Self::Remap),
            3 => Some(Self::Break),
            _ => None,
        }
    }
}

/// Number of reported arguments: as many as matter of `mremap`, which has the most.
pub const ARGUMENTS: usize = 5;

/// An event of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// Time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The call's arguments.
    pub arguments: [u64; ARGUMENTS],
    /// The call's result; 0 on entry.
    pub result: i64,
    /// The image that made the call.
    pub image: ImageId,
    /// The thread, to pair the two events of a call.
    pub thread: u32,
    /// Row of the call's stack in the stack table, if it mapped memory.
    pub stack: u32,
    /// A [`Call`].
    pub call: u8,
    /// Flags, see [`flag`].
    pub flags: u8,
    /// Explicit padding, always 0.
    pub reserved: u16,
}

// SAFETY: integers only, no padding (asserted below), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Event {}

/// Bits of [`Event::flags`].
pub mod flag {
    /// The call has returned.
    pub const LEFT: u8 = 1;
    /// The call is part of a tracked allocation call.
    pub const NESTED: u8 = 2;
}

const _: () = assert!(size_of::<Event>() == 72 && align_of::<Event>() == 8);

/// `MAP_FIXED` (include/uapi/asm-generic/mman-common.h): replaces existing mappings.
pub const MAP_FIXED: u64 = 0x10;
/// `MAP_ANONYMOUS`: no file is mapped.
pub const MAP_ANONYMOUS: u64 = 0x20;

/// Kinds of tracked mappings, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappingKinds(pub u8);

impl MappingKinds {
    /// Anonymous memory, and the break.
    pub const ANONYMOUS: Self = Self(1);
    /// Files and devices.
    pub const FILES: Self = Self(2);
    /// Both.
    pub const ALL: Self = Self(Self::ANONYMOUS.0 | Self::FILES.0);

    /// Returns true if an `mmap` with these flags is tracked.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, map_flags: u64) -> bool {
        let kind = if map_flags & MAP_ANONYMOUS == 0 { Self::FILES } else { Self::ANONYMOUS };
        self.0 & kind.0 != 0
    }

    /// Returns true if the break is tracked.
    #[inline(always)]
    #[must_use]
    pub const fn has_break(self) -> bool {
        self.has(MAP_ANONYMOUS)
    }
}

/// Size of the ring buffer in bytes while mappings are tracked, a power of two: 58,000 events. A thread that
/// does nothing else maps and unmaps some hundred thousand times per second, so the buffer lasts for the
/// tenths of a second that symbolizing many new stacks takes.
pub const RING_BYTES: u32 = 4 << 20;

/// Size of the ring buffer while mappings are not tracked: the minimum.
pub const UNUSED_RING_BYTES: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_of_one_kind() {
        let shared = 1;
        for flags in [shared, shared | MAP_FIXED] {
            let kinds = [MappingKinds::ANONYMOUS, MappingKinds::FILES, MappingKinds::ALL];
            assert_eq!(kinds.map(|kinds| kinds.has(flags)), [false, true, true]);
            assert_eq!(kinds.map(|kinds| kinds.has(flags | MAP_ANONYMOUS)), [true, false, true]);
            assert_eq!(kinds.map(MappingKinds::has_break), [true, false, true]);
        }
    }
}
