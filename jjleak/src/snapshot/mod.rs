//! A process's allocations at one instant: pure data, filled by [`crate::collect`] and [`crate::symbolize`].

mod frame;
mod frames;
mod paths;
mod sampler_code;
pub(crate) mod sums;
mod thread;
pub(crate) mod timeline;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use jjleak_common::counter::Counter;
use jjleak_common::process::ImageId;
use jjleak_common::stack::{StackFrame, StackStatus};
use jjleak_common::unwind::MAX_FOUND;

pub use frame::{Frame, FrameKind, SharedFrame};
pub use frames::Frames;
pub use paths::{Path, Paths, PathsBuilder};
pub use sums::{Block, Cohort, Cohorts, LiveBlocks};
pub use thread::Thread;
pub use timeline::{MAX_INSTANTS, Timeline};

/// A process's accounting at one instant.
///
/// The tables are read while the target runs. Blocks allocated after the instant are excluded; blocks freed
/// after it are logged until they have been read. A block is in the snapshot if its allocation had returned
/// by the instant and its free had not begun. A call that runs at that very instant may count either way.
/// While a `realloc` runs, the old block is present; in the fraction of a microsecond in which its outcome is
/// recorded, a snapshot can show both blocks, or neither if the address stays the same.
///
/// Cumulative sums are read one by one right after the instant, before the blocks: they can be ahead by the
/// allocations of these microseconds. Counters are read last. The sums of a [`crate::attach::Settings::combined`] run have
/// no common instant.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The instant, in nanoseconds of `CLOCK_MONOTONIC`.
    pub taken_ns: u64,
    /// Instants between the cohorts of blocks; the last is this snapshot's. Each image has its own: see
    /// [`crate::collect::Collector::divide_at`]. Empty if blocks are not divided.
    pub instants_ns: Arc<[u64]>,
    /// Blocks allocated after this are not shown.
    pub youngest_ns: u64,
    /// Maximum number of blocks listed per stack.
    pub blocks_per_stack: usize,
    /// Estimated variances of the number and bytes of live blocks of all images in the snapshot, if they were
    /// counted in windows.
    pub live_variance: Option<(f64, f64)>,
    /// The program image.
    pub image: ImageId,
    /// All stacks of the image that have allocated, with their rows in the kernel's table, in the order of
    /// rows.
    pub stacks: Vec<(u32, StackUse)>,
    /// All counters of the kernel side.
    pub counters: BTreeMap<Counter, u64>,
}

/// Allocations of one stack.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StackUse {
    /// Hash over its addresses; 0 for allocations without a stack.
    pub hash: u64,
    /// Live blocks.
    pub live: LiveBlocks,
    /// Live blocks by time of allocation: the cohorts with live blocks, in the order of intervals. Empty if
    /// ages are unknown.
    pub cohorts: Cohorts,
    /// Number of blocks allocated since accounting began.
    pub allocated_objects: u64,
    /// Bytes requested by them.
    pub allocated_bytes: u64,
    /// The largest live blocks, as many as the [`BlockFilter`] asks for.
    pub blocks: Vec<Block>,
}

/// Cumulative allocations of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Number of blocks.
    pub objects: u64,
    /// Bytes requested by them.
    pub bytes: u64,
}

impl Allocated {
    /// Adds other allocations.
    pub const fn add(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

/// Which blocks a snapshot shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockFilter {
    /// Minimum age in nanoseconds.
    pub older_ns: u64,
    /// Maximum number of blocks listed per stack.
    pub blocks_per_stack: usize,
}

/// Identities of the mappings that the kernel side found by itself for a stack. Most stacks have none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundMappings(Option<Box<[u64; MAX_FOUND]>>);

impl From<[u64; MAX_FOUND]> for FoundMappings {
    fn from(found: [u64; MAX_FOUND]) -> Self {
        Self((found != NOTHING_FOUND).then(|| Box::new(found)))
    }
}

impl Deref for FoundMappings {
    type Target = [u64; MAX_FOUND];

    fn deref(&self) -> &Self::Target {
        self.0.as_deref().unwrap_or(&NOTHING_FOUND)
    }
}

const NOTHING_FOUND: [u64; MAX_FOUND] = [0; MAX_FOUND];

/// Addresses of one stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawStack {
    /// End of the walk.
    pub status: StackStatus,
    /// Mappings that the kernel side found by itself; frames refer to them by their layer.
    pub found: FoundMappings,
    /// [Identity](jjleak_common::stack::thread_identity) of the thread; 0 if threads are not distinguished.
    pub thread: u64,
    /// Leaf first: the probe site, then return addresses or [`jjleak_common::stack::InterpretedFrame`]s.
    pub frames: Vec<StackFrame>,
}

/// A symbolized stack.
#[derive(Debug, Clone)]
pub struct NamedStack {
    /// End of the stack walk.
    pub status: StackStatus,
    /// Frames, leaf first.
    pub frames: Frames,
}
