//! Reads the kernel side's tables.
//!
//! In: an [`Attachment`]. Out: a [`Snapshot`] for each process: live blocks summed by stack, cumulative counters, losses.
//! The tables are read through `mmap`, without a system call an entry and without stopping anything.

mod counters;
mod frames;
mod freed;
mod live;
mod mappings;
mod spill;
mod stacks;
mod sums;
mod threads;
mod timeline;
mod timelines;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use aya::maps::HashMap as BpfHashMap;
use jjleak_common::counter::{Counter, CounterRow};
use jjleak_common::freed::FreedLog;
use jjleak_common::live::{LiveSet, Record};
use jjleak_common::names;
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::sampling::Sampling;
use jjleak_common::stack::{StackFrame, StackRow, StackStatus, StackTotals, lost_row};
use jjleak_common::unwind::MAX_FOUND;

use crate::attach::{Attachment, Error, Mapped, Settings, now_ns};
use crate::quick_map::quick_map;
use crate::sample_windows::Windows;
use frames::Frames;
use live::Blocks;
use sums::{Draw, Sum};
use timelines::{Places, Timelines};
use windows::WindowSums;

pub use sums::{Block, Cohort, LiveBlocks};
pub use threads::Thread;
pub use timeline::{MAX_INSTANTS, Timeline};

/// The state of a process's books at one instant.
///
/// The tables are read while the target runs, but what comes after the instant is left out, and what goes after it is kept
/// until it has been read: a block is in the snapshot if its allocation had returned by then and its free had not begun. A
/// call that runs at that very instant counts as done or as not done. While a `realloc` runs, the old block is there; in
/// the fraction of a microsecond in which its outcome is booked, a snapshot can show both blocks, or for one that keeps
/// its address neither.
///
/// Cumulative sums are read one by one as soon as the instant has come, before the blocks: they can be ahead by what was
/// allocated in these microseconds. Counters are read last. The sums of a [`Settings::combined`] run have no instant in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The instant, in nanoseconds of `CLOCK_MONOTONIC`.
    pub taken_ns: u64,
    /// Instants that divide the blocks into cohorts, the image's own; the last is this one's. See [`Collector::divide_at`]. None
    /// where they are not divided.
    pub instants_ns: Arc<[u64]>,
    /// Blocks allocated after this are not shown.
    pub youngest_ns: u64,
    /// Most blocks of each stack that are listed one by one.
    pub blocks_per_stack: usize,
    /// Estimated variances of all blocks that live and of their bytes, if they were counted in windows; of all images of the
    /// snapshot together.
    pub live_variance: Option<(f64, f64)>,
    /// The program image it is of.
    pub image: ImageId,
    /// Every stack of the image that allocated since the start, by its row in the kernel's table.
    pub stacks: BTreeMap<u32, StackUse>,
    /// Every counter of the kernel side.
    pub counters: BTreeMap<Counter, u64>,
}

/// What one stack allocated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StackUse {
    /// Identity: a hash over its addresses; 0 for what is allocated without a stack.
    pub hash: u64,
    /// Its blocks that live.
    pub live: LiveBlocks,
    /// The same by when they were allocated, cohort by cohort; empty when none lives, or ages are not known.
    pub cohorts: Vec<Cohort>,
    /// Blocks allocated since the start.
    pub allocated_objects: u64,
    /// Bytes requested by them.
    pub allocated_bytes: u64,
    /// The largest of its blocks that live, as many as the [`View`] asks for.
    pub blocks: Vec<Block>,
}

/// What of the blocks a snapshot shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct View {
    /// Only blocks at least this old, in nanoseconds.
    pub older_ns: u64,
    /// Most blocks of each stack that are listed one by one.
    pub blocks_per_stack: usize,
}

/// Addresses of one stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawStack {
    /// How the walk ended.
    pub status: StackStatus,
    /// What the mappings are that the kernel side found by itself; frames refer to them by their layer.
    pub found: [u64; MAX_FOUND],
    /// [Identity](jjleak_common::stack::thread_identity) of the thread; 0 when threads are not told apart.
    pub thread: u64,
    /// Leaf first: the probe site, then return addresses, or
    /// [`jjleak_common::stack::InterpretedFrame`]s.
    pub frames: Vec<StackFrame>,
}

/// Reads the tables of an attachment.
pub struct Collector {
    live: Mapped<LiveSet>,
    freed: Mapped<FreedLog>,
    totals: Mapped<StackTotals>,
    stacks: Mapped<StackRow>,
    counters: Mapped<CounterRow>,
    frames: Frames,
    sampling: Sampling,
    combined: bool,
    timelines: Timelines,
    windows: Option<WindowSums>,
    /// When it was made: nothing was counted before.
    since_ns: u64,
}

impl Collector {
    /// Maps the tables; once.
    pub fn new(attachment: &mut Attachment) -> Result<Self, Error> {
        let Settings { sampling, combined, .. } = *attachment.settings();
        Ok(Self {
            freed: Mapped::writable(attachment.map(names::FREED)?)?,
            totals: Mapped::writable(attachment.map(names::TOTALS)?)?,
            sampling,
            combined,
            timelines: Timelines::default(),
            windows: None,
            since_ns: now_ns(),
            live: Mapped::writable(attachment.map(names::LIVE)?)?,
            stacks: Mapped::writable(attachment.map(names::STACKS)?)?,
            counters: Mapped::writable(attachment.map(names::COUNTERS)?)?,
            frames: Frames::new(attachment.ring(names::FRAMES)?),
        })
    }

    /// Has snapshots of these images from now on divide blocks at the instant of the one that was taken last: what their pasts
    /// are told by. Snapshots after which this is not called leave no trace.
    pub fn divide_at(&mut self, images: &[ImageId], taken_ns: u64) {
        self.timelines.cut(images, taken_ns);
    }

    /// Has snapshots leave blocks of these images undivided, which is quicker, until this is called again: their instants stay
    /// what they are.
    pub fn leave_undivided(&mut self, images: BTreeSet<ImageId>) {
        self.timelines.leave_undivided(images);
    }

    /// Forgets at which instants blocks of other images are divided.
    pub fn keep_timelines(&mut self, images: &[ImageId]) {
        self.timelines.keep(images);
    }

    /// Whether it would tell more of an image's past to divide its blocks now. Instants are the farther apart the longer it has
    /// been looked at.
    #[must_use]
    pub fn is_due(&self, image: ImageId, now_ns: u64) -> bool {
        self.timelines.is_due(image, now_ns)
    }

    /// From now on, only what is allocated in windows counts, and stands for the time around it. The first one goes on, and
    /// what has been counted before is in it.
    pub fn count_in_windows(&mut self) {
        // How long the first one is says what it stands for until there is another.
        let has_counted =
            stacks::allocated(&self.stacks, self.sampling).iter().any(|(objects, _)| *objects > 0);
        self.windows = Some(WindowSums::new(if has_counted { self.since_ns } else { now_ns() }));
    }

    /// The windows, if there are some.
    #[must_use]
    pub fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref().map(WindowSums::windows)
    }

    /// A window begins; probes are in place.
    pub fn begin_window(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.begin(now_ns(), stacks::allocated(&self.stacks, self.sampling));
        }
    }

    /// A window is over at an instant; its stratum ends then. What is counted after it is left out.
    pub fn end_window_at(&mut self, end_ns: u64, stratum_end_ns: u64) {
        if let Some(windows) = &mut self.windows {
            windows.end(end_ns, stratum_end_ns, &stacks::allocated(&self.stacks, self.sampling));
        }
    }

    /// Takes a snapshot of each of these images, all of the same instant.
    pub fn snapshots(
        &mut self,
        attachment: &Attachment,
        images: &[ImageId],
        view: View,
    ) -> Result<BTreeMap<ImageId, Snapshot>, Error> {
        let AtInstant { taken_ns, timelines, allocated, sums } = if self.combined {
            let taken_ns = now_ns();
            let timelines = self.timelines.up_to(images, taken_ns);
            AtInstant { taken_ns, timelines, ..AtInstant::default() }
        } else {
            self.at_instant(attachment, images, view)?
        };
        let weighted = self.windows.as_ref().map(|windows| windows.at(taken_ns));
        let allocated = match &self.windows {
            Some(windows) => windows.allocated(allocated, taken_ns),
            None => allocated,
        };
        let live_variance = weighted.as_ref().map(|weighted| {
            let sums = sums.iter().flatten().flat_map(|(_, sum)| sum.seen());
            let seen = sums.collect::<Vec<_>>();
            windows::tell(weighted, &seen);
            weighted.variances(&seen)
        });
        // Blocks first: whatever is live has then been counted for its stack.
        let mut stacks = stacks::read(&self.stacks, images, self.sampling);
        if self.combined {
            for (row, used) in stacks.values_mut().flatten() {
                used.live = stacks::totals(&self.totals, *row, self.sampling);
            }
        }
        for (image, sums) in images.iter().zip(sums) {
            let Some(stacks) = stacks.get_mut(image) else { continue };
            for (row, sum) in sums {
                let used = stacks.entry(row).or_default();
                (used.live, used.cohorts, used.blocks) = sum.finish(view.blocks_per_stack, weighted.as_ref());
            }
        }
        for (row, used) in stacks.values_mut().flatten() {
            if let Some((objects, bytes)) = allocated.get(*row as usize) {
                // A call that was just booking its block when the instant came can have been counted after.
                used.allocated_objects = used.live.objects.max(*objects);
                used.allocated_bytes = used.live.bytes.max(*bytes);
            }
        }
        // Those that first allocated after the instant.
        for stacks in stacks.values_mut() {
            stacks.retain(|_, used| used.allocated_objects > 0);
        }
        self.receive_frames();
        let missed_runs = attachment.missed_runs();
        let snapshot = |(image, timeline): (&ImageId, &Timeline)| {
            let (image, stacks) = stacks.remove_entry(image)?;
            let mut counters = counters::read(&self.counters, image);
            counters.insert(Counter::MissedRun, missed_runs);
            let stacks = merge_rows(stacks, view.blocks_per_stack);
            let youngest_ns = taken_ns.saturating_sub(view.older_ns);
            let blocks_per_stack = view.blocks_per_stack;
            let instants_ns = timeline.instants_ns().into();
            Some((
                image,
                Snapshot {
                    taken_ns,
                    instants_ns,
                    youngest_ns,
                    blocks_per_stack,
                    live_variance,
                    image,
                    stacks,
                    counters,
                },
            ))
        };
        Ok(images.iter().zip(&timelines).filter_map(snapshot).collect())
    }

    /// The blocks of these images at one instant, summed for each row of the stack table.
    fn at_instant(
        &mut self,
        attachment: &Attachment,
        images: &[ImageId],
        view: View,
    ) -> Result<AtInstant, Error> {
        let spill = attachment.map(names::SPILL)?;
        // A row is of one image: by row, a sum is found without searching. Most rows have none.
        let mut places_of_rows = vec![u32::MAX; self.stacks.len()];
        let mut sums: Vec<(u32, Sum)> = Vec::new();
        let instant_ns = freed::begin(&self.freed);
        let allocated = stacks::allocated(&self.stacks, self.sampling);
        let timelines = self.timelines.up_to(images, instant_ns);
        let places = Places::new(images, &timelines);
        let youngest_ns = instant_ns.saturating_sub(view.older_ns);
        let weighted = self.windows.as_ref().map(|windows| windows.at(instant_ns));
        let blocks = Blocks::of_table(&self.live, instant_ns, |key, record| {
            let Some(intervals) = places.intervals(key.image()) else { return };
            let Some(place) = places_of_rows.get_mut(record.stack as usize) else { return };
            if record.time_ns <= youngest_ns {
                if *place == u32::MAX {
                    *place = u32::try_from(sums.len()).unwrap_or_default();
                    sums.push((record.stack, Sum::default()));
                }
                let (_, sum) = &mut sums[*place as usize];
                let draw = Draw { sampling: self.sampling, windows: weighted.as_ref() };
                sum.add(key, record, intervals, draw, view.blocks_per_stack);
            }
        });
        // The kernel walks all of its buckets, which takes milliseconds also when nothing is in them.
        let spilled = if freed::has_spilled(&self.freed) { spill::read(spill) } else { Ok(Vec::new()) };
        let freed = freed::end(&self.freed, instant_ns);
        blocks.add(&spilled?, &freed);
        let mut of_images = vec![Vec::new(); images.len()];
        for (row, sum) in sums {
            if let Some(place) = sum.image().and_then(|image| places.of(image)) {
                of_images[place].push((row, sum));
            }
        }
        Ok(AtInstant { taken_ns: instant_ns, timelines, allocated, sums: of_images })
    }

    /// The addresses of the stack in a row of the kernel's table; `None` when they were not kept or are just
    /// being written.
    #[must_use]
    pub fn stack(&self, row: u32) -> Option<&RawStack> {
        self.frames.of_row(row)
    }

    /// The thread that the stack in a row of the kernel's table is of; `None` when threads are not told apart.
    #[must_use]
    pub fn thread(&self, image: ImageId, row: u32) -> Option<&Thread> {
        self.frames.threads().get(image, self.stack(row)?.thread)
    }

    /// Names the threads of an image anew: `name` tells what the thread of a number is called now; nothing if it has ended.
    pub fn rename_threads(&mut self, image: ImageId, name: impl Fn(u32) -> Option<String>) {
        self.frames.threads_mut().rename(image, name);
    }

    /// Takes in the frames of stacks that are new.
    pub fn receive_frames(&mut self) {
        self.frames.receive();
    }

    /// The rows of an image's stacks whose frames have been taken in since this was last asked for.
    pub fn take_new(&mut self, image: ImageId) -> Vec<u32> {
        self.frames.take_new(image)
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
    pub fn forget(&mut self, attachment: &mut Attachment) -> Result<BTreeSet<u32>, Error> {
        self.receive_frames();
        let images = attachment.processes().images();
        images.mark_swept();
        let spill = attachment.map_mut(names::SPILL)?;
        let spilled = spill::read(spill)?;
        let spill: BpfHashMap<_, u64, Record> = BpfHashMap::try_from(spill).map_err(Error::table)?;
        live::remove(&self.live, spill, &spilled, &images)?;
        let rows = stacks::remove(&self.stacks, &images);
        if self.combined {
            stacks::reset_totals(&self.totals, rows.iter().copied());
        }
        self.frames.forget(&rows);
        if let Some(windows) = &mut self.windows {
            windows.forget(&rows);
        }
        self.frames.threads_mut().forget(|image| !images.is_current(image));
        Ok(rows)
    }

    /// Sets what a slot has counted to 0, for the next process in it.
    pub fn reset(&mut self, slot: ProcessSlot) {
        counters::reset(&self.counters, slot);
        stacks::reset_lost(&self.stacks, slot);
        if self.combined {
            stacks::reset_totals(&self.totals, [lost_row(slot)]);
        }
    }
}

/// What was there at an instant.
#[derive(Default)]
struct AtInstant {
    taken_ns: u64,
    /// Of each image.
    timelines: Vec<Timeline>,
    /// Objects and bytes allocated, by row of the stack table.
    allocated: Vec<(u64, u64)>,
    /// The blocks of each image, by row.
    sums: Vec<Vec<(u32, Sum)>>,
}

/// Adds a stack's later rows to its first one.
fn merge_rows(mut stacks: BTreeMap<u32, StackUse>, blocks_per_stack: usize) -> BTreeMap<u32, StackUse> {
    let mut first_rows = quick_map(stacks.len());
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
            sums::merge_cohorts(&mut first.cohorts, &later.cohorts);
            first.blocks.extend(later.blocks);
            sums::largest_first(&mut first.blocks, blocks_per_stack);
            first.allocated_objects += later.allocated_objects;
            first.allocated_bytes += later.allocated_bytes;
        }
    }
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_with_two_rows_is_one_stack_and_what_has_no_stack_is_not_merged() {
        let used = |hash, allocated_objects| StackUse {
            hash,
            live: LiveBlocks {
                objects: 1,
                bytes: 10,
                oldest_ns: hash + 1,
                newest_ns: hash + 1,
                ..LiveBlocks::default()
            },
            cohorts: Vec::new(),
            blocks: Vec::new(),
            allocated_objects,
            allocated_bytes: 10 * allocated_objects,
        };
        let stacks = BTreeMap::from([(1, used(0, 9)), (2, used(7, 1)), (5, used(0, 3)), (6, used(7, 2))]);
        let merged = merge_rows(stacks, 0);
        assert_eq!(merged.keys().copied().collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!((merged[&2].allocated_objects, merged[&2].live.objects), (3, 2));
    }
}
