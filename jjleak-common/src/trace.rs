//! Single allocations and frees, for following them as they happen.

/// Size of the ring buffer when tracing: 25,000 pending events.
pub const RING_BYTES: u32 = 1 << 20;

/// An allocation or a free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// Time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Address of the block.
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Thread ID in the initial PID namespace.
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
