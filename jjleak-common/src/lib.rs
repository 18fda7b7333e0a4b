//! The ABI between jjleak's BPF programs and its user side.
//!
//! Everything here is plain data with a fixed layout, or a rule that both sides must apply in the same way.
//! The kernel side writes these types into BPF maps; the user side reads them through `mmap`. Layouts are
//! asserted at compile time.
//!
//! - [`cookie`]: which registers to read at a probe site.
//! - [`process`]: one row per profiled process: whether it is armed, and its program image.
//! - [`live`]: the table of live allocations.
//! - [`mapping`]: system calls that map and unmap memory.
//! - [`fault`]: page faults.
//! - [`java_heap`]: objects in Java heaps.
//! - [`freed`]: blocks that leave that table while a snapshot is taken.
//! - [`stack`]: deduplicated stacks, their frames and their cumulative counters.
//! - [`settings`]: constants of the programs, which the loader sets.
//! - [`stage`]: stages of accounting an allocation, for the benchmark.
//! - [`unwind`]: unwind tables, from a frame to its caller.
//! - [`pending`]: an allocation call between its entry and its return.
//! - [`sampling`]: selection of allocations.
//! - [`samples`]: allocations that programs sample themselves.
//! - [`trace`]: single allocations and frees.
//! - [`unfinished`]: stacks that the user side finishes.
//! - [`walk_hash`]: hashes of the words that a stack walk depends on.
//! - [`counter`]: every way to lose or distort data, by name.
#![cfg_attr(not(test), no_std)]
#![expect(
    clippy::inline_always,
    reason = "the kernel side needs these inlined: BPF passes no structs in calls"
)]

pub mod cookie;
pub mod counter;
pub mod fault;
pub mod freed;
pub mod java_heap;
pub mod jvm;
pub mod live;
pub mod mapping;
mod named;
pub mod pending;
pub mod process;
pub mod samples;
pub mod sampling;
pub mod settings;
pub mod stack;
pub mod stage;
pub mod trace;
pub mod unfinished;
pub mod unwind;
pub mod walk_hash;

/// Names of the BPF maps and programs, as the loader finds them in the object.
pub mod names {
    /// Array of [`crate::process::ProcessRow`], memory-mapped.
    pub const PROCESSES: &str = "PROCESSES";
    /// Hash map from PID to the process's index in [`PROCESSES`].
    pub const TRACKED: &str = "TRACKED";
    /// Queue of free indexes in [`PROCESSES`].
    pub const FREE_SLOTS: &str = "FREE_SLOTS";
    /// Array of [`crate::live::LiveSet`], memory-mapped.
    pub const LIVE: &str = "LIVE";
    /// Hash map from [`crate::live::Key`] to [`crate::live::Record`]: blocks that did not fit into their set.
    pub const SPILL: &str = "SPILL";
    /// Array of [`crate::stack::StackRow`], memory-mapped.
    pub const STACKS: &str = "STACKS";
    /// One array element of `u32`, memory-mapped: the number of times that the used part of [`STACKS`] has doubled.
    pub const STACK_DOUBLINGS: &str = "STACK_DOUBLINGS";
    /// Array of [`crate::stack::StackUsage`], parallel to [`PROCESSES`], memory-mapped.
    pub const STACK_USAGE: &str = "STACK_USAGE";
    /// Ring buffer of [`crate::stack::StackRecord`], each truncated after its last frame.
    pub const FRAMES: &str = "FRAMES";
    /// Ring buffer of [`crate::unfinished::Unfinished`], each followed by a copy of the stack.
    pub const UNFINISHED: &str = "UNFINISHED";
    /// Array of [`crate::stack::StackTotals`], memory-mapped; parallel to [`STACKS`] if live blocks are summed up.
    pub const TOTALS: &str = "TOTALS";
    /// One array element, a [`crate::freed::FreedLog`], memory-mapped.
    pub const FREED: &str = "FREED";
    /// Ring buffer of [`crate::trace::Event`].
    pub const EVENTS: &str = "EVENTS";
    /// Array of maps: the chunks with [`crate::unwind::Row`]s. Each is an array of one element.
    pub const ROWS: &str = "ROWS";
    /// One array element of `u32`: the directory of the rows, memory-mapped.
    pub const GROUPS: &str = "GROUPS";
    /// Array of [`crate::unwind::MappingTable`], memory-mapped.
    pub const MAPPINGS: &str = "MAPPINGS";
    /// Array of [`crate::jvm::CodeCache`], parallel to [`PROCESSES`], memory-mapped.
    pub const JVMS: &str = "JVMS";
    /// Hash map from [`crate::unwind::CodeFile`] to [`crate::unwind::CodeRows`].
    pub const CODE: &str = "CODE";
    /// Ring buffer of [`crate::unwind::Hint`].
    pub const HINTS: &str = "HINTS";
    /// Ring buffer of programs that processes have begun to run.
    pub const PROGRAMS: &str = "PROGRAMS";
    /// Ring buffer of [`crate::mapping::Event`].
    pub const MAPPING_EVENTS: &str = "MAPPING_EVENTS";
    /// Ring buffer of [`crate::fault::Record`].
    pub const PAGE_FAULTS: &str = "PAGE_FAULTS";
    /// Ring buffer of [`crate::java_heap::Record`].
    pub const JAVA_OBJECTS: &str = "JAVA_OBJECTS";
    /// Array of [`crate::java_heap::FollowedHeap`], parallel to [`PROCESSES`].
    pub const JAVA_HEAPS: &str = "JAVA_HEAPS";
    /// Array of [`crate::samples::Site`].
    pub const SAMPLE_SITES: &str = "SAMPLE_SITES";
    /// Array of [`crate::counter::CounterRow`], memory-mapped.
    pub const COUNTERS: &str = "COUNTERS";
    /// Read-only global: [`crate::settings::Settings`].
    pub const SETTINGS: &str = "SETTINGS";
    /// Constants of the benchmark's object ([`crate::stage::Measurement`]).
    pub const MEASUREMENT: &str = "MEASUREMENT";
    /// Read-only global: [`crate::settings::KernelOffsets`].
    pub const KERNEL_OFFSETS: &str = "KERNEL_OFFSETS";
}
