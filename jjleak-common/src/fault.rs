//! Page faults of profiled processes: the stack that is about to make a page resident.

use crate::process::ImageId;

/// A fault of a thread at an address of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Fault {
    /// Time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The page that is touched, with [`WRITE`] if it is written to.
    pub place: u64,
    /// The process's image.
    pub image: ImageId,
    /// Row of the stack in the stack table.
    pub stack: u32,
}

/// Bit of [`Fault::place`]: the page is written to. Reading untouched anonymous memory maps a page of zeros that all processes share.
pub const WRITE: u64 = 1;

/// Bits of an address within its page.
const WITHIN_PAGE: u64 = 4095;

impl Fault {
    /// The place of a fault with this error code (`X86_PF_WRITE` in `arch/x86/include/asm/trap_pf.h` is bit 1).
    #[inline(always)]
    #[must_use]
    pub const fn place(address: u64, error_code: u64) -> u64 {
        address & !WITHIN_PAGE | error_code >> 1 & WRITE
    }

    /// Address of the page.
    #[must_use]
    pub const fn page(&self) -> u64 {
        self.place & !WITHIN_PAGE
    }

    /// Returns true if the page is only read.
    #[must_use]
    pub const fn is_read(&self) -> bool {
        self.place & WRITE == 0
    }
}

// SAFETY: integers only, no padding (asserted below), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Fault {}

const _: () = assert!(size_of::<Fault>() == 24 && align_of::<Fault>() == 8);

/// Size of the ring buffer in bytes while faults are followed, a power of two: 262,144 faults, or 1 GiB of pages. A thread that does
/// nothing else touches a million pages per second, so that the buffer lasts for a quarter of a second.
pub const RING_BYTES: u32 = 8 << 20;
