//! Single allocations and frees, for those who want to see each as it happens.

/// Bytes of the ring buffer between the kernel and the user side when tracing: 25,000 events on their way.
pub const RING_BYTES: u32 = 1 << 20;

/// What happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The block.
    pub address: u64,
    /// Its size in bytes, as requested.
    pub size: u64,
    /// The thread, as the initial PID namespace numbers it.
    pub thread: u32,
    /// [`ALLOCATED`] or [`FREED`].
    pub kind: u32,
}

/// [`Event::kind`]: the block was allocated.
pub const ALLOCATED: u32 = 1;
/// [`Event::kind`]: the block is being freed.
pub const FREED: u32 = 2;

const _: () = assert!(size_of::<Event>() == 32 && align_of::<Event>() == 8);

// SAFETY: integers only, no padding (asserted above), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Event {}
