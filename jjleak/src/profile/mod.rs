//! What was found: a symbolized, aggregated profile of one process at one instant. Pure data.
//!
//! In: live blocks by stack from [`crate::collect`], frames from [`crate::symbolize`]. Out: what
//! [`crate::analyze`] ranks and [`crate::render`] writes. Knows nothing of BPF, /proc or clocks.

mod build;
mod cost;
mod history;
mod merge;
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
use smallvec::SmallVec;

pub use crate::collect::Thread;
pub use crate::symbolize::{Frame, FrameKind};
pub use cost::Cost;
pub use history::{Moment, remember};
pub(crate) use merge::add_count;
pub use view::{Amount, Kinds, Shown, UnknownKinds, View};

/// Stands for the frames of a stack that was not kept, where people read it.
pub const NO_STACK: &str = "[no stack]";
pub use verdict::{
    Basis, JUDGED_SNAPSHOTS, JUDGED_SPANS, Memory, MemoryKind, NOT_JUDGED, Point, Rank, Rate, StackIds,
    Survival, TOO_EARLY, Verdict, VerdictKind,
};

/// A profile of one process.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// When accounting began.
    pub started_at: Timestamp,
    /// The instant the profile describes.
    pub taken_at: Timestamp,
    /// Whose profile it is.
    pub process: ProcessInfo,
    /// How the process ended, if it has; for a command its own exit status.
    pub ended: Option<String>,
    /// What the figures cover.
    pub coverage: Coverage,
    /// Every loss counter by name, also those that are 0.
    pub lost: BTreeMap<String, u64>,
    /// Every other counter by name: harmless, but part of the picture.
    pub notes: BTreeMap<String, u64>,
    /// Frees of blocks that are not in the books: allocated before accounting began, or filtered.
    pub unknown_frees: u64,
    /// Every stack that allocated since accounting began, in no particular order.
    pub stacks: Vec<StackProfile>,
    /// What lived at the reports up to this one, the oldest first; see [`crate::analyze::Growth`].
    pub history: Vec<Moment>,
    /// The instants that the cohorts of stacks are divided by, in nanoseconds of `CLOCK_MONOTONIC`; the last is the one that
    /// the profile describes. Empty when no ages are known.
    pub instants_ns: Arc<[u64]>,
    /// How much memory the process can have, if that is known.
    pub memory: Option<Memory>,
    /// What is to be thought of each call site, what is worst first; see [`crate::analyze::History`].
    pub verdicts: Vec<Verdict>,
    /// How many looks at the process the verdicts are drawn from, this one among them; those that tell nothing more than
    /// others do not count.
    pub snapshots: u32,
    /// Call sites that hold something and are not judged: there are more than are remembered.
    pub unjudged_sites: u64,
    /// What being profiled has cost the process lately, if that is known; see [`crate::cost`].
    pub cost: Option<Cost>,
}

impl Profile {
    /// Live bytes and objects of all stacks.
    #[must_use]
    pub fn live(&self) -> Totals {
        self.stacks.iter().map(|stack| stack.live).sum()
    }

    /// Standard errors of [`Self::live`]; `None` when it is exact. Those of the stacks are independent.
    #[must_use]
    pub fn live_error(&self) -> Option<Totals> {
        if let Some(windows) = self.coverage.windows {
            // The same windows tell of all stacks.
            return Some(windows.live_error);
        }
        let errors = || self.stacks.iter().filter_map(|stack| stack.live_error);
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

    /// For how much longer the process has to be watched before its call sites are judged; until then, they only grow or do
    /// not. Nothing when they are.
    #[must_use]
    pub fn judged_in(&self) -> Duration {
        if self.coverage.settle.is_zero() {
            return Duration::ZERO;
        }
        let missing_time = (self.coverage.settle * JUDGED_SPANS).saturating_sub(self.elapsed());
        let missing_snapshots = JUDGED_SNAPSHOTS.saturating_sub(self.snapshots);
        missing_time.max(self.elapsed() / self.snapshots.max(1) * missing_snapshots)
    }

    /// Whether the process has been watched for long enough to judge its call sites: without verdicts, none then leaks. A
    /// profile that nothing was judged in is not ([`Self::unjudge`]).
    #[must_use]
    pub fn is_judged(&self) -> bool {
        !self.coverage.settle.is_zero() && self.judged_in().is_zero()
    }

    /// Claims nothing of call sites any more, neither that they leak nor that they do not.
    pub fn unjudge(&mut self) {
        self.verdicts.clear();
        self.coverage.settle = Duration::ZERO;
    }

    /// How long accounting has run.
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

/// What of a process's allocations the figures cover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Live figures are of blocks at least this old.
    pub older: Duration,
    /// Which allocations were taken; cumulative and live figures are estimates of all unless it is off.
    pub sampling: Sampling,
    /// Allocations were counted in windows of time; cumulative and live figures are estimates of all. Nothing when they were
    /// counted all the time.
    pub windows: Option<InWindows>,
    /// Live figures are the kernel side's sums: there are no ages.
    pub combined: bool,
    /// The blocks of each stack are listed, the largest first, so many at most.
    pub blocks_per_stack: usize,
    /// Younger allocations are not judged.
    pub settle: Duration,
    /// Blocks of some sizes are left out: freeing them counts among [`Profile::unknown_frees`].
    pub some_sizes: bool,
    /// Threads are told apart: the root frame of each stack is the thread's ([`Frame::of_thread`]).
    pub threads: bool,
}

impl Coverage {
    /// Whether figures are estimates.
    #[must_use]
    pub const fn is_estimate(&self) -> bool {
        self.sampling.is_estimate() || self.windows.is_some()
    }
}

/// Allocations were counted in windows of time (see [`crate::sample_windows`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InWindows {
    /// How many there were.
    pub windows: u32,
    /// Standard errors of what lives.
    pub live_error: Totals,
}

/// Who a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process ID in the host's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22); with the PID it identifies a process.
    pub start_time: u64,
    /// Name of the main thread (`/proc/PID/comm`).
    pub comm: String,
    /// Path of the executable, as the process sees it.
    pub exe: String,
    /// What kind of program it runs.
    pub kind: ProcessKind,
    /// PID of the process whose memory its own began as a copy of (`fork`): blocks from before are the other's, and in
    /// no book of this one.
    pub forked_from: Option<u32>,
    /// Its PID as it sees it itself, where that is another.
    pub container_pid: Option<u32>,
}

impl fmt::Display for ProcessInfo {
    /// `name (pid 42)`; without a PID for several processes together, and where another tool's profile tells of none.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.comm)?;
        if self.pid == 0 { Ok(()) } else { write!(formatter, " (pid {})", self.pid) }
    }
}

/// What kind of program a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessKind {
    /// Native code.
    Native,
    /// A HotSpot Java virtual machine.
    Jvm,
}

impl ProcessKind {
    /// The name in JSON.
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
    /// Blocks.
    pub objects: u64,
}

impl Totals {
    /// Whether there is neither a byte nor an object. Blocks of no bytes are objects; and other tools' profiles can have
    /// bytes without telling of objects.
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

/// What one stack allocated.
#[derive(Debug, Clone, PartialEq)]
pub struct StackProfile {
    /// Identity of the stack: a hash over its addresses.
    pub id: u64,
    /// What lives.
    pub live: Totals,
    /// What was allocated since accounting began.
    pub allocated: Totals,
    /// Standard errors of `live`; `None` when it is exact.
    pub live_error: Option<Totals>,
    /// Live bytes more than at the report before, or less; see [`crate::analyze::Growth`].
    pub growth: i64,
    /// What lives by when it was allocated, without cohorts of which nothing lives; empty when ages are not known.
    pub cohorts: SmallVec<[Cohort; 4]>,
    /// Ages of the live blocks; `None` when none lives, or they are not known.
    pub ages: Option<Ages>,
    /// The largest of the live blocks, if the [`Coverage`] asks for them.
    pub blocks: Vec<Block>,
    /// How the stack walk ended.
    pub status: StackStatus,
    /// Frames, leaf first; the first is the allocation function. Shared between snapshots.
    pub frames: Arc<[Frame]>,
}

/// A live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it is.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// How long it has lived.
    pub age: Duration,
}

/// Live blocks that were allocated between the same two instants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cohort {
    /// Index into [`Profile::instants_ns`] of the instant at or before which they were allocated, and after the one before it.
    pub interval: u16,
    /// What lives of them.
    pub live: Totals,
}

/// Ages of the live blocks of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ages {
    /// Of the oldest.
    pub oldest: Duration,
    /// Of the newest.
    pub newest: Duration,
}
