//! The ABI between jjleak's BPF programs and its user side.
//!
//! Everything here is plain data with a fixed layout, or a rule both sides must apply in the same way.
//! The kernel side writes these types into BPF maps; the user side reads them through `mmap`. Layouts are
//! asserted at compile time.
//!
//! - [`cookie`]: how a probe site tells the one BPF program of its role which registers to read.
//! - [`process`]: one row per profiled process: armed or not, which program image it runs.
//! - [`live`]: the table of live allocations.
//! - [`mapping`]: system calls that map and unmap memory.
//! - [`stack`]: deduplicated stacks, their frames and their cumulative counters.
//! - [`unwind`]: tables that lead from a frame to its caller.
//! - [`pending`]: an allocation call between its entry and its return.
//! - [`counter`]: every way to lose or distort data, by name.
#![cfg_attr(not(test), no_std)]
#![expect(
    clippy::inline_always,
    reason = "the kernel side needs these inlined: BPF passes no structs in calls"
)]

pub mod cookie;
pub mod counter;
pub mod live;
pub mod mapping;
pub mod pending;
pub mod process;
pub mod stack;
pub mod unwind;

/// Names of the BPF maps and programs, as the loader finds them in the object.
pub mod names {
    /// Array of [`crate::process::ProcessRow`], memory-mapped.
    pub const PROCESSES: &str = "PROCESSES";
    /// Hash map from PID to the process's index in [`PROCESSES`].
    pub const TRACKED: &str = "TRACKED";
    /// Queue of indexes in [`PROCESSES`] that stand for no process.
    pub const FREE_SLOTS: &str = "FREE_SLOTS";
    /// Array of [`crate::live::LiveSet`], memory-mapped.
    pub const LIVE: &str = "LIVE";
    /// Hash map from [`crate::live::Key`] to [`crate::live::Record`]: what did not fit its set.
    pub const SPILL: &str = "SPILL";
    /// Array of [`crate::stack::StackRow`], memory-mapped.
    pub const STACKS: &str = "STACKS";
    /// Ring buffer of [`crate::stack::StackRecord`], each cut to its frames.
    pub const FRAMES: &str = "FRAMES";
    /// One array element of [`crate::unwind::Row`]s, memory-mapped.
    pub const ROWS: &str = "ROWS";
    /// One array element of `u32`: the index of the rows, memory-mapped.
    pub const PAGES: &str = "PAGES";
    /// Array of [`crate::unwind::MappingTable`], memory-mapped.
    pub const MAPPINGS: &str = "MAPPINGS";
    /// Hash map from [`crate::unwind::CodeFile`] to [`crate::unwind::CodeRows`].
    pub const CODE: &str = "CODE";
    /// Ring buffer of [`crate::unwind::Hint`].
    pub const HINTS: &str = "HINTS";
    /// Ring buffer of [`crate::mapping::Event`].
    pub const MAPPING_EVENTS: &str = "MAPPING_EVENTS";
    /// Array of [`crate::counter::CounterRow`], memory-mapped.
    pub const COUNTERS: &str = "COUNTERS";
    /// Read-only global: log2 of the number of sets in [`LIVE`].
    pub const LIVE_SETS_LOG2: &str = "LIVE_SETS_LOG2";
    /// Read-only global: log2 of the number of rows in [`STACKS`].
    pub const STACK_ROWS_LOG2: &str = "STACK_ROWS_LOG2";
}
