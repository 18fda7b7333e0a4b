//! Verdicts on call sites. Pure data; [`crate::analyze`] computes them.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Frames, Totals};

/// Minimum time for which a call site is watched, in multiples of the age at which allocations are judged.
/// Less leaves too little time between young and old.
pub const JUDGED_SPANS: u32 = 4;

/// Minimum number of snapshots of a call site: nothing between two snapshots can be resolved.
pub const JUDGED_SNAPSHOTS: u32 = 6;

/// Label of call sites that have not been watched for long enough.
pub const TOO_EARLY: &str = "too early to say";

/// Label of call sites without any claim.
pub const NOT_JUDGED: &str = "not judged";

/// Stack IDs. Most call sites have one, and each snapshot has thousands of sites: a single ID is stored
/// inline.
pub type StackIds = SmallVec<[u64; 2]>;

/// A verdict on the allocations of a call site, with its evidence.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The verdict.
    pub kind: VerdictKind,
    /// Basis of the verdict.
    pub basis: Basis,
    /// Confidence, from 0 to 1.
    pub confidence: f64,
    /// Identity of the call site, stable across profiles of the process.
    pub site: u64,
    /// IDs of the call site's stacks.
    pub stacks: StackIds,
    /// Number of the call site's stacks that are not shown. Survival and rates include them.
    pub hidden_stacks: u64,
    /// Frames of its largest stack, leaf first.
    pub frames: Frames,
    /// Index of the caller's frame: the first that is neither an allocator's nor a helper's that returns what
    /// it has allocated.
    pub caller: usize,
    /// Live totals.
    pub live: Totals,
    /// Totals allocated since accounting began.
    pub allocated: Totals,
    /// Watched time: since accounting began, or since the judged behaviour began.
    pub watched: Duration,
    /// First allocation, since accounting began.
    pub first_seen: Duration,
    /// Growth rate; `None` without growth, or if too little is known.
    pub rate: Option<Rate>,
    /// Survival of allocations old enough to be judged; `None` without ages or without such allocations.
    pub survival: Option<Survival>,
    /// Bytes allocated per second while watched.
    pub allocation_rate: f64,
    /// Bytes freed per second while watched.
    pub free_rate: f64,
    /// Share of previously old bytes that has been freed since.
    pub freed_when_old: Option<f64>,
    /// Frees of blocks from before accounting began, per block that seems to be kept, in the whole process.
    /// Set if there are enough that kept blocks may merely replace freed ones.
    pub freed_from_before: Option<f64>,
    /// Kept blocks may replace freed ones from before accounting began, whose number is unknown, and resident memory does
    /// not grow as fast as what is kept.
    pub not_resident: bool,
    /// Time without growth, after growth.
    pub flat_for: Option<Duration>,
    /// Live bytes over time, oldest first; evenly thinned out.
    pub series: Arc<[Point]>,
}

/// Basis of a verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Basis {
    /// The call site has been watched for long enough.
    #[default]
    LongHistory,
    /// The call site has been watched too briefly for more than growth.
    ShortHistory,
    /// Not judged: the figures do not cover all of the call site.
    Nothing,
}

/// Verdict on a call site, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerdictKind {
    /// It constantly keeps a share of its allocations forever.
    Leaking,
    /// It grows, and whether that ends is not known yet.
    Growing,
    /// It grew, then stopped.
    CacheLike,
    /// It holds allocations that were made at once and not repeated.
    StartUp,
    /// It frees what it allocates.
    SteadyChurn,
}

impl Verdict {
    /// Label in reports.
    #[must_use]
    pub const fn words(&self) -> &'static str {
        match (self.basis, self.kind) {
            (Basis::LongHistory, kind) | (Basis::ShortHistory, kind @ VerdictKind::Growing) => kind.words(),
            (Basis::ShortHistory, _) => TOO_EARLY,
            (Basis::Nothing, _) => NOT_JUDGED,
        }
    }

    /// Orders verdicts, worst first: by kind, then growth rate, then live bytes.
    #[must_use]
    pub fn worst_first(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }

    /// Sort key.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank::of(self.kind, self.rate, self.live, self.site)
    }
}

/// Sort key of a verdict; the worst is the smallest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(VerdictKind, Reverse<i64>, Reverse<u64>, u64);

impl Rank {
    /// The key of a verdict of this kind on a call site with this rate and these live totals.
    #[must_use]
    pub fn of(kind: VerdictKind, rate: Option<Rate>, live: Totals, site: u64) -> Self {
        let pace = rate.filter(|_| kind <= VerdictKind::Growing).map_or(0., |rate| rate.per_second);
        Self(kind, Reverse(ordered(pace)), Reverse(live.bytes), site)
    }
}

/// Maps floats to integers in the same order.
const fn ordered(number: f64) -> i64 {
    let bits = number.to_bits().cast_signed();
    // As `f64::total_cmp` does: larger bits of negative numbers are smaller.
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

impl VerdictKind {
    /// All kinds, worst first.
    pub const ALL: [Self; 5] =
        [Self::Leaking, Self::Growing, Self::CacheLike, Self::StartUp, Self::SteadyChurn];

    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leaking => "leaking",
            Self::Growing => "growing",
            Self::CacheLike => "cache_like",
            Self::StartUp => "start_up",
            Self::SteadyChurn => "steady_churn",
        }
    }

    /// Label in reports.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Leaking => "leaking",
            Self::Growing => "growing, too early to say",
            Self::CacheLike => "cache-like: grew, then flat",
            Self::StartUp => "start-up",
            Self::SteadyChurn => "steady churn",
        }
    }
}

/// Growth in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// The estimate.
    pub per_second: f64,
    /// Lower bound of its 95 % confidence interval.
    pub low: f64,
    /// Upper bound of its 95 % confidence interval.
    pub high: f64,
}

impl Rate {
    /// Extrapolated bytes per day.
    #[must_use]
    pub fn per_day(self) -> f64 {
        self.per_second * 86_400.
    }

    /// Extrapolated time to fill `bytes`; `None` without growth, or beyond a hundred years.
    #[must_use]
    pub fn time_to_fill(self, bytes: u64) -> Option<Duration> {
        const HUNDRED_YEARS: f64 = 100. * 365. * 86_400.;
        #[expect(clippy::cast_precision_loss, reason = "an extrapolation has no use for 53 bits")]
        let seconds = bytes as f64 / self.per_second;
        (0. ..HUNDRED_YEARS).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
    }
}

/// Survival of allocations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Survival {
    /// Minimum age.
    pub older_than: Duration,
    /// Allocated totals.
    pub allocated: Totals,
    /// Live totals.
    pub live: Totals,
}

impl Survival {
    /// Share of bytes that live.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share has no use for 53 bits")]
    pub fn share(&self) -> f64 {
        self.live.bytes as f64 / (self.allocated.bytes.max(self.live.bytes).max(1)) as f64
    }
}

/// Live bytes at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Time since accounting began.
    pub at: Duration,
    /// Live bytes.
    pub bytes: u64,
}

/// Memory limit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Kind of the limit.
    pub kind: MemoryKind,
    /// The limit, in bytes.
    pub limit: u64,
    /// Bytes left.
    pub available: u64,
}

/// Kind of memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// The process's control group, or an ancestor.
    Cgroup,
    /// The machine's memory.
    Ram,
}

impl MemoryKind {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ram => "ram",
        }
    }
}
