//! Reads the kernel side's tables.
//!
//! In: an [`Attachment`]. Out: a [`Snapshot`](crate::snapshot::Snapshot) per process: live blocks summed by stack, cumulative counters,
//! losses. The tables are read through `mmap`, without a system call per entry and without stopping anything.

mod counted;
mod counters;
mod eviction;
mod frames;
mod freed;
mod live;
mod mappings;
mod snapshots;
mod spill;
mod stack_table;
mod stacks;
mod threads;
mod timelines;
mod unfinished;
mod usage;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::HashMap as BpfHashMap;
use jjleak_common::counter::{Counter, CounterRow};
use jjleak_common::freed::FreedLog;
use jjleak_common::live::{LiveSet, Record};
use jjleak_common::names;
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::sampling::Sampling;
use jjleak_common::stack::{StackFrame, StackTotals, StackUsage, lost_row};

use crate::attach::{Attachment, Error, Mapped, Programs, Settings, now_ns};
use crate::fast_map::{FastMap, fast_map};
use crate::sample_windows::{Pace, Windows};
use crate::snapshot::{Allocated, RawStack, Thread};
use crate::unwind::StackCopy;
use eviction::EvictionSchedule;
use frames::Frames;
use stack_table::StackTable;
use timelines::Timelines;
use unfinished::UnfinishedStacks;
use windows::WindowSums;

pub(crate) use counted::CountedStack;
pub use eviction::EvictedRow;

/// Reads the tables of an attachment.
pub struct Collector {
    live: Mapped<LiveSet>,
    freed: Mapped<FreedLog>,
    totals: Mapped<StackTotals>,
    stacks: Arc<StackTable>,
    usage: Mapped<StackUsage>,
    counters: Mapped<CounterRow>,
    frames: Frames,
    unfinished: UnfinishedStacks,
    /// Hashes of the stacks that were finished on the user side, by row.
    finished: FastMap<u32, u64>,
    sampling: Sampling,
    combined: bool,
    /// True if threads are distinguished.
    threads: bool,
    timelines: Timelines,
    windows: Option<WindowSums>,
    schedule: EvictionSchedule,
    /// True if rows from which nothing was allocated are kept: stacks of mappings, of page faults and of Java objects are counted on the user side only.
    keeps_uncounted: bool,
    /// Time of the last snapshot.
    live_read_at: Option<Instant>,
    /// Number of rows of the stack table that had blocks at the last snapshot.
    rows_with_blocks: usize,
    /// Number of stacks that the last snapshot had.
    stacks_read: usize,
    /// Time of creation, before which nothing was counted.
    since_ns: u64,
}

impl Collector {
    /// Maps the tables, except that of live blocks, which is mapped while it is read. Must be called once.
    pub fn new(attachment: &mut Attachment) -> Result<Self, Error> {
        let Settings { sampling, combined, threads, mappings, faults, programs, .. } = *attachment.settings();
        let mut live = Mapped::writable(attachment.map(names::LIVE)?)?;
        live.release();
        let stacks = Arc::new(StackTable::new(attachment)?);
        Ok(Self {
            freed: Mapped::writable(attachment.map(names::FREED)?)?,
            totals: Mapped::writable(attachment.map(names::TOTALS)?)?,
            sampling,
            combined,
            threads,
            timelines: Timelines::default(),
            windows: None,
            live_read_at: None,
            rows_with_blocks: 0,
            stacks_read: 0,
            since_ns: now_ns(),
            live,
            usage: Mapped::writable(attachment.map(names::STACK_USAGE)?)?,
            schedule: EvictionSchedule::default(),
            keeps_uncounted: mappings.is_some() || faults || programs == Programs::JavaHeap,
            counters: Mapped::writable(attachment.map(names::COUNTERS)?)?,
            frames: Frames::new(
                attachment.ring(names::FRAMES)?,
                Mapped::writable(attachment.map(names::STACK_USAGE)?)?,
                Arc::clone(&stacks),
            )?,
            stacks,
            unfinished: UnfinishedStacks::receive(attachment.ring(names::UNFINISHED)?)?,
            finished: fast_map(0),
        })
    }

    /// Divides the blocks of these images into cohorts at the last snapshot's instant, from now on. Their
    /// histories build on these cohorts; snapshots without this call leave no trace.
    pub fn divide_at(&mut self, images: &[ImageId], taken_ns: u64) {
        self.timelines.cut(images, taken_ns);
    }

    /// Leaves the blocks of these images undivided in snapshots, which is faster, until the next call. Their
    /// instants stay.
    pub fn leave_undivided(&mut self, images: BTreeSet<ImageId>) {
        self.timelines.leave_undivided(images);
    }

    /// Drops the instants of all other images.
    pub fn keep_timelines(&mut self, images: &[ImageId]) {
        self.timelines.keep(images);
    }

    /// Returns whether dividing an image's blocks now would refine its history. The distance between instants
    /// grows with the time watched.
    #[must_use]
    pub fn is_due(&self, image: ImageId, now_ns: u64) -> bool {
        self.timelines.is_due(image, now_ns)
    }

    /// Last instant at which an image's blocks were divided, in nanoseconds of `CLOCK_MONOTONIC`; `None`
    /// before the first.
    #[must_use]
    pub fn last_divided_ns(&self, image: ImageId) -> Option<u64> {
        self.timelines.last_ns(image)
    }

    /// Switches to counting in windows, each of which stands for the time around it. The first window
    /// continues, and includes what has been counted before.
    pub fn count_in_windows(&mut self) {
        // The first window's length determines what it stands for until there is another.
        let has_counted =
            stacks::allocated(&self.stacks, self.sampling).iter().any(|(objects, _)| *objects > 0);
        self.windows = Some(WindowSums::new(if has_counted { self.since_ns } else { now_ns() }));
    }

    /// The windows, if counting is limited to them.
    #[must_use]
    pub fn windows(&self) -> Option<&Windows> {
        self.windows.as_ref().map(WindowSums::windows)
    }

    /// Begins a window; the probes are in place.
    pub fn begin_window(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.begin(now_ns(), stacks::allocated(&self.stacks, self.sampling));
        }
    }

    /// Ends a window and its stratum at these instants, given the program's use of CPUs. Later counts are ignored.
    pub fn end_window_at(&mut self, end_ns: u64, stratum_end_ns: u64, pace: Pace) {
        if let Some(windows) = &mut self.windows {
            windows.end(end_ns, stratum_end_ns, pace, &stacks::allocated(&self.stacks, self.sampling));
        }
    }

    /// Frees are not followed from now on: blocks may be freed unseen.
    pub fn lose_frees(&mut self) {
        if let Some(windows) = &mut self.windows {
            windows.lose_frees();
        }
    }

    /// Starts counting over at this instant, from which frees are followed again. What was allocated before does not count.
    pub fn start_over(&mut self, now_ns: u64) {
        self.windows = Some(WindowSums::from(now_ns));
        self.timelines.keep(&[]);
    }

    /// The addresses of the stack in a row of the kernel's table; `None` if they were not kept or are being
    /// written.
    #[must_use]
    pub fn stack(&self, row: u32) -> Option<&RawStack> {
        self.frames.of_row(row)
    }

    /// Takes the addresses of the stack in a row, for names. Later, [`Self::stack`] returns it without them.
    pub fn take_stack(&mut self, row: u32) -> Option<RawStack> {
        self.frames.take(row)
    }

    /// Drops the addresses of all stacks.
    pub fn forget_frames(&mut self) {
        self.frames.forget_all();
    }

    /// The thread of the stack in a row of the kernel's table; `None` if threads are not distinguished.
    #[must_use]
    pub fn thread(&self, image: ImageId, row: u32) -> Option<&Thread> {
        self.thread_of(image, self.stack(row)?.thread)
    }

    /// The thread with this [identity](jjleak_common::stack::thread_identity).
    #[must_use]
    pub fn thread_of(&self, image: ImageId, identity: u64) -> Option<&Thread> {
        self.frames.threads().get(image, identity)
    }

    /// Converts allocations from the kernel side's unit.
    #[must_use]
    pub fn rounded(&self, allocated: Allocated) -> Allocated {
        Allocated { objects: stacks::objects(allocated.objects, self.sampling), ..allocated }
    }

    /// Updates the names of an image's threads: `name` returns the current name of a thread by number, or
    /// `None` if it has ended.
    pub fn rename_threads(&mut self, image: ImageId, name: impl Fn(u32) -> Option<String>) {
        self.frames.threads_mut().rename(image, name);
    }

    /// Unmaps the table of live blocks, the largest one, until it is read again; unless snapshots are taken every few seconds, for
    /// which mapping it costs a tenth of the time, and `is_last` is false.
    pub fn release_live(&mut self, is_last: bool) {
        /// Maximum time between snapshots for which it stays mapped.
        const OFTEN: Duration = Duration::from_secs(3);
        let now = Instant::now();
        let before = self.live_read_at.replace(now);
        if is_last || before.is_none_or(|before| now - before > OFTEN) {
            self.live.release();
        }
    }

    /// Receives the frames of new stacks.
    pub fn receive_frames(&mut self) {
        self.frames.receive(&self.stacks);
    }

    /// Takes the copies of an image's unfinished stacks that were made before `until_ns`.
    #[must_use]
    pub fn take_unfinished(&mut self, image: ImageId, until_ns: u64) -> Vec<StackCopy> {
        self.unfinished.take(image, until_ns)
    }

    /// Number of copies of an image's unfinished stacks that were dropped since the last call, for lack of room.
    #[must_use]
    pub fn take_lost_copies(&self, image: ImageId) -> u64 {
        self.unfinished.take_lost(image)
    }

    /// Returns true if there is not much room for more copies of unfinished stacks.
    #[must_use]
    pub fn has_many_unfinished(&self) -> bool {
        self.unfinished.are_many()
    }

    /// Gives back copies of stacks that cannot be finished yet.
    pub fn keep_unfinished(&mut self, copies: Vec<StackCopy>) {
        self.unfinished.keep(copies);
    }

    /// The frames of an unfinished stack, without the one at which its walk stopped; `None` if they were not kept or are of another
    /// stack.
    #[must_use]
    pub fn unfinished_stack(&self, copy: &StackCopy) -> Option<RawStack> {
        let mut stack = self.frames.of_row(copy.walk.row)?.clone();
        if stacks::hash(&self.stacks, copy.walk.row) != copy.walk.hash {
            return None;
        }
        // The kernel side adds the address at which it stops to stacks of one frame.
        let stopped_at = StackFrame::new(copy.walk.instruction_pointer, 0).address();
        if stack.frames.len() <= 2 && stack.frames.last().is_some_and(|last| last.address() == stopped_at) {
            stack.frames.pop();
        }
        Some(stack)
    }

    /// Replaces an unfinished stack. From now on, it has the identity that its frames have.
    pub fn finish(&mut self, image: ImageId, row: u32, stack: RawStack) {
        self.finished.insert(row, stacks::identity(image, &stack, self.threads));
        self.frames.replace(image, row, stack);
    }

    /// Identity of the stack in a row; 0 if there is none.
    fn hash(&self, row: u32) -> u64 {
        self.finished.get(&row).copied().unwrap_or_else(|| stacks::hash(&self.stacks, row))
    }

    /// Returns the rows of an image whose frames have been received since the last call.
    pub fn take_new(&mut self, image: ImageId) -> Vec<u32> {
        self.frames.take_new(image)
    }

    /// A descriptor that becomes readable when many or urgent frames have arrived.
    #[must_use]
    pub fn frames_waiting(&self) -> RawFd {
        self.frames.as_raw_fd()
    }

    /// Counters of a process.
    #[must_use]
    pub fn counters(&self, slot: ProcessSlot) -> BTreeMap<Counter, u64> {
        counters::of_slot(&self.counters, slot)
    }

    /// Clears the table entries of images that have ended, and returns the rows of their stacks.
    pub fn forget(&mut self, attachment: &mut Attachment) -> Result<BTreeSet<u32>, Error> {
        self.receive_frames();
        let images = attachment.processes().images();
        images.mark_swept();
        let spill = attachment.map_mut(names::SPILL)?;
        let spilled = spill::read(spill)?;
        let spill: BpfHashMap<_, u64, Record> = BpfHashMap::try_from(spill).map_err(Error::table)?;
        self.live.hold()?;
        live::remove(&self.live, spill, &spilled, &images)?;
        self.live.release();
        let rows = stacks::remove(&self.stacks, &self.usage, &images);
        if self.combined {
            stacks::reset_totals(&self.totals, rows.iter().copied());
        }
        self.frames.forget(&rows);
        self.unfinished.retain(|image| images.is_current(image));
        self.finished.retain(|row, _| !rows.contains(row));
        if let Some(windows) = &mut self.windows {
            windows.forget(&rows);
        }
        self.frames.threads_mut().forget(|image| !images.is_current(image));
        Ok(rows)
    }

    /// Resets the counters of a slot for its next process.
    pub fn reset(&mut self, slot: ProcessSlot) {
        counters::reset(&self.counters, slot);
        stacks::reset_lost(&self.stacks, slot);
        if self.combined {
            stacks::reset_totals(&self.totals, [lost_row(slot)]);
        }
    }
}
