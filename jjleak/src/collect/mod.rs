//! From BPF maps to a snapshot.
//!
//! In: an armed [`Attachment`]. Out: a [`Snapshot`]: live blocks summed by stack, cumulative counters, losses.
//! The tables are read through `mmap`, without a system call an entry and without stopping anything.

mod live;
mod stacks;

use std::collections::BTreeMap;

use aya::maps::{HashMap, Map, PerCpuArray};
use jjleak_common::counter::Counter;
use jjleak_common::live::{LiveSet, Record};
use jjleak_common::names;
use jjleak_common::process::ImageId;
use jjleak_common::stack::{FrameStorage, StackRow, StackStatus};
use nix::time::{ClockId, clock_gettime};

use crate::attach::{Attachment, Error, Mapped};

pub use live::LiveBlocks;

/// The state of the books at one instant.
///
/// The tables are read while the target runs. Each record is consistent in itself; a block allocated or freed
/// during the few milliseconds of the reading may or may not be in the snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// When the reading began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub taken_ns: u64,
    /// The program image it is of.
    pub image: ImageId,
    /// Every stack of the image that allocated since the start, by its row in the kernel's table.
    pub stacks: BTreeMap<u32, StackUse>,
    /// Every counter of the kernel side.
    pub counters: BTreeMap<Counter, u64>,
}

/// What one stack allocated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackUse {
    /// Identity: a hash over its addresses.
    pub hash: u64,
    /// Its blocks that live.
    pub live: LiveBlocks,
    /// Blocks allocated since the start.
    pub allocated_objects: u64,
    /// Bytes requested by them.
    pub allocated_bytes: u64,
}

/// Addresses of one stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawStack {
    /// How the walk ended.
    pub status: StackStatus,
    /// Leaf first: the probe site, then return addresses.
    pub addresses: Vec<u64>,
}

/// Reads the tables of an attachment.
pub struct Collector {
    live: Mapped<LiveSet>,
    stacks: Mapped<StackRow>,
    frames: Mapped<FrameStorage>,
}

impl Collector {
    /// Maps the tables.
    pub fn new(attachment: &Attachment) -> Result<Self, Error> {
        Ok(Self {
            live: Mapped::new(attachment.map(names::LIVE)?)?,
            stacks: Mapped::new(attachment.map(names::STACKS)?)?,
            frames: Mapped::new(attachment.map(names::FRAMES)?)?,
        })
    }

    /// Takes a snapshot.
    pub fn snapshot(&self, attachment: &Attachment) -> Result<Snapshot, Error> {
        let taken_ns = now_ns();
        let image = attachment.image()?;
        let spill = attachment.map(names::SPILL)?;
        let capacity = match spill {
            Map::HashMap(data) => data.info().map_err(Error::table)?.max_entries() as usize,
            _ => 0,
        };
        let spill: HashMap<_, u64, Record> = HashMap::try_from(spill).map_err(Error::table)?;
        // Blocks first: whatever is live has then been counted for its stack. What an image before the last exec had
        // allocated went with its memory.
        let records = live::records(&self.live, &spill, capacity)?;
        let mut stacks = stacks::read(&self.stacks, image);
        for (_, record) in records.into_iter().filter(|(key, _)| key.image() == image) {
            stacks.entry(record.stack).or_default().live.add(&record);
        }
        Ok(Snapshot { taken_ns, image, stacks, counters: counters(attachment)? })
    }

    /// The addresses of the stack in a row of the kernel's table; `None` when they were not kept or are just
    /// being written.
    #[must_use]
    pub fn stack(&self, row: u32) -> Option<RawStack> {
        stacks::addresses(&self.stacks, &self.frames, row)
    }
}

/// Now, on the clock of the kernel side.
#[must_use]
pub fn now_ns() -> u64 {
    // CLOCK_MONOTONIC exists on every Linux; its time is never negative.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Every counter of the kernel side.
pub fn counters(attachment: &Attachment) -> Result<BTreeMap<Counter, u64>, Error> {
    let map: PerCpuArray<_, u64> =
        PerCpuArray::try_from(attachment.map(names::COUNTERS)?).map_err(Error::table)?;
    Counter::ALL
        .iter()
        .map(|counter| {
            let values = map.get(&counter.index(), 0).map_err(Error::table)?;
            Ok((*counter, values.iter().sum()))
        })
        .collect()
}
