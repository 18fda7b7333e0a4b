//! A symbolized, aggregated profile of one process at one instant. Pure data.
//!
//! In: live blocks by stack from [`crate::collect`], frames from [`crate::symbolize`]. Out: what
//! [`crate::analyze`] ranks and [`crate::render`] writes. It does not depend on BPF, /proc or clocks.

mod added;
mod block_details;
mod build;
mod callers;
mod cost;
mod distinct_ids;
mod frame_numbers;
mod granularity;
mod growth_lines;
mod history;
mod merge;
mod source_kind;
mod standard_errors;
mod threads;
mod unwinding;
mod verdict;
mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
pub use jjleak_common::sampling::Sampling;
use jjleak_common::stack::StackStatus;

pub use block_details::{BlockDetails, Details};
pub use frame_numbers::FrameNumbers;
pub use growth_lines::{CAUSE_LINE, TO_DO_LINE};

pub use crate::snapshot::{Frame, FrameKind, Frames, SharedFrame, Thread};
pub(crate) use build::standard_error;
pub use callers::{is_allocation_function, is_of_allocator};
pub use cost::Cost;
pub use distinct_ids::DistinctIds;
pub use granularity::Granularity;
pub(crate) use history::growth_of_later_half;
pub use history::{Moment, remember, resident_growth};
pub(crate) use merge::add_count;
pub use source_kind::SourceKind;
pub use standard_errors::StandardErrors;
pub use view::{Amount, FrameKinds, Shown, StackFilter, UnknownFrameKinds};

/// Placeholder shown for the frames of a stack that was not kept.
pub const NO_STACK: &str = "[no stack]";
pub use verdict::{
    Basis, JUDGED_SNAPSHOTS, JUDGED_SPANS, Memory, MemoryKind, NOT_JUDGED, Point, Rank, Rate, StackIds,
    Survival, TOO_EARLY, Verdict, VerdictKind,
};

/// A profile of one process.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Start of accounting.
    pub started_at: Timestamp,
    /// The instant that the profile describes.
    pub taken_at: Timestamp,
    /// The process.
    pub process: ProcessInfo,
    /// Description of the process's end, if it has ended; for a command its exit status.
    pub ended: Option<String>,
    /// Blocks and processes that the figures cover.
    pub coverage: Coverage,
    /// Loss counters by name, including zeros.
    pub lost: BTreeMap<String, u64>,
    /// Other counters by name: harmless, but part of the picture.
    pub notes: BTreeMap<String, u64>,
    /// Frees of unknown blocks: allocated before accounting began, or filtered.
    pub unknown_frees: u64,
    /// All stacks that have allocated since accounting began, in no particular order.
    pub stacks: Vec<StackProfile>,
    /// Live totals at the reports up to this one, oldest first; see [`crate::analyze::Growth`].
    pub history: Vec<Moment>,
    /// Instants between cohorts, in nanoseconds of `CLOCK_MONOTONIC`; the last is the profile's own. Empty if
    /// ages are unknown.
    pub instants_ns: Arc<[u64]>,
    /// Resident memory of the process, if known.
    pub resident: Option<u64>,
    /// Memory limit of the process, if known.
    pub memory: Option<Memory>,
    /// Verdicts on all call sites, worst first; see [`crate::analyze::History`].
    pub verdicts: Vec<Verdict>,
    /// Number of snapshots behind the verdicts, including this one. Snapshots that add nothing to the history
    /// do not count.
    pub snapshots: u32,
    /// Call sites that hold memory and are not judged, because there are more than are remembered.
    pub unjudged_sites: u64,
    /// Recent cost of profiling, if known; see [`crate::cost`].
    pub cost: Option<Cost>,
    /// Lines for reports on the growth of resident memory, allocated by the process or not; empty if unknown. See
    /// [`crate::diagnosis`].
    pub growth: Vec<String>,
    /// Objects of each class that a JVM keeps, those that have grown most first; empty unless it was asked.
    pub kept: Vec<KeptClass>,
}

/// Objects of a class that a JVM keeps after a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptClass {
    /// Name in source notation.
    pub class: String,
    /// Objects now.
    pub now: Totals,
    /// Change of bytes since the first time that it was asked.
    pub grown_bytes: i64,
    /// Change of the number of objects.
    pub grown_objects: i64,
}

impl Profile {
    /// Live bytes and objects of all stacks.
    #[must_use]
    pub fn live(&self) -> Totals {
        self.stacks.iter().map(|stack| stack.live).sum()
    }

    /// Standard errors of [`Self::allocated`]; `None` if it is exact, sampled by block, or not counted yet.
    #[must_use]
    pub fn allocated_error(&self) -> Option<Totals> {
        self.coverage.windows.filter(|windows| windows.windows > 0).map(|windows| windows.allocated_error)
    }

    /// Standard errors of [`Self::live`]; `None` if it is exact or an upper bound. The errors of stacks are independent.
    #[must_use]
    pub fn live_error(&self) -> Option<Totals> {
        if !self.coverage.knows_live() {
            return None;
        }
        if let Some(windows) = self.coverage.windows {
            // All stacks share the same windows.
            return Some(windows.live_error);
        }
        let errors = || self.stacks.iter().filter_map(|stack| stack.live_error.totals());
        self.coverage.sampling.is_estimate().then(|| Totals {
            bytes: root_of_squares(errors().map(|error| error.bytes)),
            objects: root_of_squares(errors().map(|error| error.objects)),
        })
    }

    /// Cumulative bytes and objects of all stacks.
    #[must_use]
    pub fn allocated(&self) -> Totals {
        self.stacks.iter().map(|stack| stack.allocated).sum()
    }

    /// Remaining time until call sites are judged; zero if they are. Until then, verdicts only distinguish
    /// growth.
    #[must_use]
    pub fn judged_in(&self) -> Duration {
        self.site_judged_in(Duration::ZERO)
    }

    /// The same for a call site that was first seen at a time since accounting began.
    #[must_use]
    pub fn site_judged_in(&self, first_seen: Duration) -> Duration {
        if self.coverage.settle.is_zero() {
            return Duration::ZERO;
        }
        let watched = self.elapsed().saturating_sub(first_seen);
        let missing_time = (self.coverage.settle * JUDGED_SPANS).saturating_sub(watched);
        let interval = self.elapsed() / self.snapshots.max(1);
        let before = first_seen.as_nanos().checked_div(interval.as_nanos()).unwrap_or_default();
        let snapshots = self.snapshots.saturating_sub(u32::try_from(before).unwrap_or(u32::MAX));
        missing_time.max(interval * JUDGED_SNAPSHOTS.saturating_sub(snapshots))
    }

    /// Returns whether the process has been watched for long enough to judge its call sites: without
    /// verdicts, none leaks. False after [`Self::unjudge`].
    #[must_use]
    pub fn is_judged(&self) -> bool {
        !self.coverage.settle.is_zero() && self.judged_in().is_zero()
    }

    /// Removes all claims about leaks, positive and negative.
    pub fn unjudge(&mut self) {
        self.verdicts.clear();
        self.coverage.settle = Duration::ZERO;
    }

    /// Time since accounting began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::try_from(self.taken_at.duration_since(self.started_at)).unwrap_or_default()
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a standard error has no use for more than 53 bits, and is not negative"
)]
fn root_of_squares(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.map(|number| (number as f64).powi(2)).sum::<f64>().sqrt().round() as u64
}

/// Blocks and processes that the figures cover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Source of the figures.
    pub source: SourceKind,
    /// Minimum age of the blocks in live figures.
    pub older: Duration,
    /// Which allocations were sampled. Unless it is off, cumulative and live figures are estimates.
    pub sampling: Sampling,
    /// Windows of time in which allocations were counted; figures are estimates. `None` if they were counted
    /// all the time.
    pub windows: Option<InWindows>,
    /// Live figures are sums of the kernel side, without ages.
    pub combined: bool,
    /// Maximum number of blocks listed per stack, largest first.
    pub blocks_per_stack: usize,
    /// Minimum age at which allocations are judged.
    pub settle: Duration,
    /// Blocks of some sizes are filtered out: their frees count among [`Profile::unknown_frees`].
    pub some_sizes: bool,
    /// Threads are distinguished: the root frame of each stack is its thread ([`Frame::of_thread`]).
    pub threads: bool,
}

impl Coverage {
    /// Returns whether live figures are known, at least as estimates; otherwise they are what was allocated.
    #[must_use]
    pub fn knows_live(&self) -> bool {
        // Figures start over when all frees can be followed: until the next window, nothing has been counted.
        let has_counted = |windows: InWindows| windows.follows_frees && windows.windows > 0;
        self.source != SourceKind::JavaHeap && self.windows.is_none_or(has_counted)
    }

    /// Returns whether figures are estimates.
    #[must_use]
    pub const fn is_estimate(&self) -> bool {
        self.sampling.is_estimate() || self.windows.is_some() || matches!(self.source, SourceKind::JavaHeap)
    }
}

/// Allocations were counted in windows of time (see [`crate::sample_windows`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InWindows {
    /// Number of windows.
    pub windows: u32,
    /// Number of blocks that a counted block stands for, on average.
    pub weight: u32,
    /// Each free is seen. Otherwise live memory is unknown, and live figures are what was allocated.
    pub follows_frees: bool,
    /// Cost bound at which each free would be seen, in percent; `None` if unknown.
    pub needed_percent: Option<u32>,
    /// Standard errors of live figures.
    pub live_error: Totals,
    /// Standard errors of the figures of what was allocated.
    pub allocated_error: Totals,
}

/// Identity of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process ID in the host's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22); with the PID it identifies a
    /// process.
    pub start_time: u64,
    /// Name of the main thread (`/proc/PID/comm`).
    pub comm: String,
    /// Path of the executable, in the process's own view.
    pub exe: String,
    /// Kind of program.
    pub kind: ProcessKind,
    /// PID of the parent whose memory was copied (`fork`): earlier blocks are accounted to the parent, not to
    /// this process.
    pub forked_from: Option<u32>,
    /// PID in the process's own namespace, if different.
    pub container_pid: Option<u32>,
}

impl fmt::Display for ProcessInfo {
    /// `name (pid 42)`. Merged profiles, and some of other tools, have no PID.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.comm)?;
        if self.pid == 0 { Ok(()) } else { write!(formatter, " (pid {})", self.pid) }
    }
}

/// Kind of program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessKind {
    /// Native code.
    Native,
    /// A HotSpot Java virtual machine.
    Jvm,
}

impl ProcessKind {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Jvm => "jvm",
        }
    }
}

/// Bytes and objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requested bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub objects: u64,
}

impl Totals {
    /// Returns whether there are neither bytes nor objects. Blocks of zero bytes are objects; profiles of
    /// other tools can have bytes without object counts.
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        self.bytes == 0 && self.objects == 0
    }
}

impl std::iter::Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(totals: I) -> Self {
        totals.fold(Self::default(), |sum, totals| Self {
            bytes: sum.bytes.saturating_add(totals.bytes),
            objects: sum.objects.saturating_add(totals.objects),
        })
    }
}

/// Allocations of one stack.
#[derive(Debug, Clone, PartialEq)]
pub struct StackProfile {
    /// Hash over the stack's addresses.
    pub id: u64,
    /// Live totals.
    pub live: Totals,
    /// Totals allocated since accounting began.
    pub allocated: Totals,
    /// Standard errors of `live`, unless it is exact or an upper bound. Of `allocated` for a source that knows only that.
    pub live_error: StandardErrors,
    /// Details of the live memory.
    pub details: Details,
    /// End of the stack walk.
    pub status: StackStatus,
    /// Frames, leaf first; the first is the allocation function. Shared between snapshots.
    pub frames: Frames,
}

// Large heap profiles have a million.
const _: () = assert!(size_of::<StackProfile>() <= 80);

impl StackProfile {
    /// A stack of which another tool has recorded its memory, and no more.
    #[must_use]
    pub fn foreign(id: u64, live: Totals, allocated: Totals, frames: Frames) -> Self {
        Self {
            id,
            live,
            allocated,
            live_error: StandardErrors::default(),
            details: Details::default(),
            status: StackStatus::Foreign,
            frames,
        }
    }
}

/// A live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Address.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Age.
    pub age: Duration,
}

/// Live blocks allocated between two consecutive instants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cohort {
    /// Index into [`Profile::instants_ns`] of the later instant.
    pub interval: u16,
    /// Live totals.
    pub live: Totals,
}

/// Ages of a stack's live blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ages {
    /// Age of the oldest.
    pub oldest: Duration,
    /// Age of the newest.
    pub newest: Duration,
}
