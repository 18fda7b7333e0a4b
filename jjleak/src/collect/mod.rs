//! Reads the kernel side's tables.
//!
//! In: an [`Attachment`]. Out: a [`Snapshot`] for each process: live blocks summed by stack, cumulative counters, losses.
//! The tables are read through `mmap`, without a system call an entry and without stopping anything.

mod counters;
mod frames;
mod freed;
mod live;
mod mappings;
mod snapshots;
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
use crate::sample_windows::Windows;
use frames::Frames;
use timelines::Timelines;
use windows::WindowSums;

pub use sums::{Block, Cohort, Cohorts, LiveBlocks};
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
    /// Every stack of the image that allocated since the start, with its row in the kernel's table, in their order.
    pub stacks: Vec<(u32, StackUse)>,
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
    /// The same by when they were allocated, cohort by cohort in the order of intervals, but for those of which none lives;
    /// empty when ages are not known.
    pub cohorts: Cohorts,
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
    /// Rows of the stack table that had blocks at the last snapshot.
    rows_with_blocks: usize,
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
            rows_with_blocks: 0,
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

    /// The last instant at which an image's blocks were divided, in nanoseconds of `CLOCK_MONOTONIC`; `None` before the first.
    #[must_use]
    pub fn last_divided_ns(&self, image: ImageId) -> Option<u64> {
        self.timelines.last_ns(image)
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
