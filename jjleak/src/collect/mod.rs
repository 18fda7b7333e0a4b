//! Reads the kernel side's tables.
//!
//! In: an [`Attachment`]. Out: a [`Snapshot`] for each process: live blocks summed by stack, cumulative counters, losses.
//! The tables are read through `mmap`, without a system call an entry and without stopping anything.

mod counters;
mod frames;
mod live;
mod mappings;
mod stacks;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsRawFd, RawFd};

use aya::maps::{HashMap as BpfHashMap, Map};
use jjleak_common::counter::{Counter, CounterRow};
use jjleak_common::live::{LiveSet, Record};
use jjleak_common::names;
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::stack::{StackRow, StackStatus};
use nix::time::{ClockId, clock_gettime};

use crate::attach::{Attachment, Error, Mapped};
use frames::Frames;

pub use live::LiveBlocks;

/// The state of a process's books at one instant.
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
    /// Identity: a hash over its addresses; 0 for what is allocated without a stack.
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
    counters: Mapped<CounterRow>,
    frames: Frames,
}

impl Collector {
    /// Maps the tables; once.
    pub fn new(attachment: &mut Attachment) -> Result<Self, Error> {
        Ok(Self {
            live: Mapped::writable(attachment.map(names::LIVE)?)?,
            stacks: Mapped::writable(attachment.map(names::STACKS)?)?,
            counters: Mapped::writable(attachment.map(names::COUNTERS)?)?,
            frames: Frames::new(attachment.ring(names::FRAMES)?),
        })
    }

    /// Takes a snapshot of each of these images.
    pub fn snapshots(
        &mut self,
        attachment: &Attachment,
        images: &[ImageId],
    ) -> Result<BTreeMap<ImageId, Snapshot>, Error> {
        let taken_ns = now_ns();
        let (spill, capacity) = spill(attachment)?;
        // Blocks first: whatever is live has then been counted for its stack.
        let records = live::records(&self.live, &spill, capacity)?;
        let mut stacks = stacks::read(&self.stacks, images);
        for (key, record) in records {
            if let Some(stacks) = stacks.get_mut(&key.image()) {
                stacks.entry(record.stack).or_default().live.add(&record);
            }
        }
        self.receive_frames();
        let snapshot = |(image, stacks)| {
            let counters = counters::read(&self.counters, image);
            (image, Snapshot { taken_ns, image, stacks: merge_rows(stacks), counters })
        };
        Ok(stacks.into_iter().map(snapshot).collect())
    }

    /// The addresses of the stack in a row of the kernel's table; `None` when they were not kept or are just
    /// being written.
    #[must_use]
    pub fn stack(&self, row: u32) -> Option<&RawStack> {
        self.frames.of_row(row)
    }

    /// Takes in the frames of stacks that are new.
    pub fn receive_frames(&mut self) {
        self.frames.receive();
    }

    /// A descriptor that is readable when many frames are waiting to be received.
    #[must_use]
    pub fn frames_waiting(&self) -> RawFd {
        self.frames.as_raw_fd()
    }

    /// Counters of a process.
    #[must_use]
    pub fn counters(&self, slot: ProcessSlot) -> BTreeMap<Counter, u64> {
        counters::of_slot(&self.counters, slot)
    }

    /// Throws away what images that run no more have left in the tables, and returns the rows of their stacks.
    pub fn forget(
        &mut self,
        attachment: &mut Attachment,
        dead: &BTreeSet<ImageId>,
    ) -> Result<BTreeSet<u32>, Error> {
        self.receive_frames();
        let spill = attachment.map_mut(names::SPILL)?;
        let spill: BpfHashMap<_, u64, Record> = BpfHashMap::try_from(spill).map_err(Error::table)?;
        live::remove(&self.live, spill, dead)?;
        let rows = stacks::remove(&self.stacks, dead);
        self.frames.forget(&rows);
        Ok(rows)
    }

    /// Sets what a slot has counted to 0, for the next process in it.
    pub fn reset(&mut self, slot: ProcessSlot) {
        counters::reset(&self.counters, slot);
        stacks::reset_lost(&self.stacks, slot);
    }
}

/// What did not fit the table of live blocks, and how many blocks it can hold.
fn spill(attachment: &Attachment) -> Result<(BpfHashMap<&aya::maps::MapData, u64, Record>, usize), Error> {
    let spill = attachment.map(names::SPILL)?;
    let capacity = match spill {
        Map::HashMap(data) => data.info().map_err(Error::table)?.max_entries() as usize,
        _ => 0,
    };
    Ok((BpfHashMap::try_from(spill).map_err(Error::table)?, capacity))
}

/// Adds a stack's later rows to its first one.
fn merge_rows(mut stacks: BTreeMap<u32, StackUse>) -> BTreeMap<u32, StackUse> {
    let mut first_rows = HashMap::new();
    let mut later_rows = Vec::new();
    for (row, used) in stacks.iter().filter(|(_, used)| used.hash != 0) {
        let first = *first_rows.entry(used.hash).or_insert(*row);
        if first != *row {
            later_rows.push((*row, first));
        }
    }
    for (row, first) in later_rows {
        if let (Some(later), Some(first)) = (stacks.remove(&row), stacks.get_mut(&first)) {
            first.live.merge(&later.live);
            first.allocated_objects += later.allocated_objects;
            first.allocated_bytes += later.allocated_bytes;
        }
    }
    stacks
}

/// Now, on the clock of the kernel side.
#[must_use]
pub fn now_ns() -> u64 {
    // CLOCK_MONOTONIC exists on every Linux; its time is never negative.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_with_two_rows_is_one_stack_and_what_has_no_stack_is_not_merged() {
        let used = |hash, allocated_objects| StackUse {
            hash,
            live: LiveBlocks { objects: 1, bytes: 10, oldest_ns: hash + 1, newest_ns: hash + 1 },
            allocated_objects,
            allocated_bytes: 10 * allocated_objects,
        };
        let stacks = BTreeMap::from([(1, used(0, 9)), (2, used(7, 1)), (5, used(0, 3)), (6, used(7, 2))]);
        let merged = merge_rows(stacks);
        assert_eq!(merged.keys().copied().collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!((merged[&2].allocated_objects, merged[&2].live.objects), (3, 2));
    }
}
