//! What is to be thought of a call site. Pure data; [`crate::analyze`] comes to it.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::{Frame, Totals};

/// A call site must have been watched for so many times the age at which allocations are judged: less leaves too little time
/// between what is young and what is old.
pub const JUDGED_SPANS: u32 = 4;

/// A call site must have been looked at so many times: what is between two looks cannot be told apart.
pub const JUDGED_SNAPSHOTS: u32 = 6;

/// What is said of a call site that has not been watched for long enough.
pub const TOO_EARLY: &str = "too early to say";

/// What is said of one of which nothing is claimed.
pub const NOT_JUDGED: &str = "not judged";

/// IDs of stacks. Most call sites have one, and thousands are told of at every look: those of one take no memory of their own.
pub type StackIds = SmallVec<[u64; 2]>;

/// What is to be thought of the allocations of a call site, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// What it is taken for.
    pub kind: VerdictKind,
    /// On what that rests.
    pub basis: Basis,
    /// How sure that is, from 0 to 1.
    pub confidence: f64,
    /// Identity of the call site, the same in later profiles of the process.
    pub site: u64,
    /// The stacks that are this call site: their IDs.
    pub stacks: StackIds,
    /// How many more stacks are this call site, and left out of what is shown: what became of allocations, and how fast, is told
    /// of all.
    pub hidden_stacks: u64,
    /// Frames of the stack among them that holds the most, leaf first.
    pub frames: Arc<[Frame]>,
    /// Index of the frame that it is called by: the first that is not an allocator's, or a helper's that only passes on what
    /// it has allocated.
    pub caller: usize,
    /// What lives.
    pub live: Totals,
    /// What was allocated since accounting began.
    pub allocated: Totals,
    /// For how long it has been watched: since accounting began, or since what is judged began.
    pub watched: Duration,
    /// When it first allocated, since accounting began.
    pub first_seen: Duration,
    /// By how much it grows; `None` when it does not, or too little is known.
    pub rate: Option<Rate>,
    /// What became of the allocations that are old enough to be judged; `None` when no ages are known, or none is.
    pub survival: Option<Survival>,
    /// Bytes allocated and freed a second while it was watched.
    pub allocation_rate: f64,
    /// Bytes freed a second while it was watched.
    pub free_rate: f64,
    /// Of what was old already when it was looked at before, the share that has been freed since.
    pub freed_when_old: Option<f64>,
    /// How many blocks from before accounting began are freed for each that seems to be kept, in the whole process, when they
    /// are so many that this may be no leak: what is kept may only take their place.
    pub freed_from_before: Option<f64>,
    /// For how long it has not grown, when it has before.
    pub flat_for: Option<Duration>,
    /// Live bytes over time, oldest first; evenly thinned out.
    pub series: Arc<[Point]>,
}

/// On what a verdict rests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Basis {
    /// The call site has been watched for long enough.
    #[default]
    LongHistory,
    /// It has not, and only whether it grows can be told.
    ShortHistory,
    /// Nothing was judged: the figures are not of all that the call site does.
    Nothing,
}

/// What a call site is taken for, what is worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerdictKind {
    /// A share of what it allocates is never freed, all the time.
    Leaking,
    /// It holds more and more, and it cannot be told yet whether that ends.
    Growing,
    /// It grew, and then no more.
    CacheLike,
    /// It holds what was allocated at once, and not again.
    StartUp,
    /// What it allocates is freed.
    SteadyChurn,
}

impl Verdict {
    /// What is thought of it, in the words of reports.
    #[must_use]
    pub const fn words(&self) -> &'static str {
        match (self.basis, self.kind) {
            (Basis::LongHistory, kind) | (Basis::ShortHistory, kind @ VerdictKind::Growing) => kind.words(),
            (Basis::ShortHistory, _) => TOO_EARLY,
            (Basis::Nothing, _) => NOT_JUDGED,
        }
    }

    /// What is worst first: by kind, then what grows by how fast, the rest by what it holds.
    #[must_use]
    pub fn worst_first(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }

    /// Where it stands among others.
    #[must_use]
    pub fn rank(&self) -> Rank {
        Rank::of(self.kind, self.rate, self.live, self.site)
    }
}

/// Where a verdict stands among others: what is worst is least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(VerdictKind, Reverse<i64>, Reverse<u64>, u64);

impl Rank {
    /// Of the verdict of this kind on a call site that grows so fast and holds so much.
    #[must_use]
    pub fn of(kind: VerdictKind, rate: Option<Rate>, live: Totals, site: u64) -> Self {
        let pace = rate.filter(|_| kind <= VerdictKind::Growing).map_or(0., |rate| rate.per_second);
        Self(kind, Reverse(ordered(pace)), Reverse(live.bytes), site)
    }
}

/// An integer for each number, in their order.
const fn ordered(number: f64) -> i64 {
    let bits = number.to_bits().cast_signed();
    // As `f64::total_cmp` does: of negative numbers, larger bits are less.
    bits ^ ((bits >> 63).cast_unsigned() >> 1).cast_signed()
}

impl VerdictKind {
    /// All kinds, what is worst first.
    pub const ALL: [Self; 5] =
        [Self::Leaking, Self::Growing, Self::CacheLike, Self::StartUp, Self::SteadyChurn];

    /// The name in JSON.
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

    /// The words in reports.
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

/// Growth in bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// The estimate.
    pub per_second: f64,
    /// Lower bound of its 95 % confidence interval.
    pub low: f64,
    /// Upper bound likewise.
    pub high: f64,
}

impl Rate {
    /// Bytes a day, if it goes on like this.
    #[must_use]
    pub fn per_day(self) -> f64 {
        self.per_second * 86_400.
    }

    /// How long it takes to fill so many bytes, if it goes on like this; `None` when it does not grow, or takes longer than
    /// a hundred years.
    #[must_use]
    pub fn time_to_fill(self, bytes: u64) -> Option<Duration> {
        const HUNDRED_YEARS: f64 = 100. * 365. * 86_400.;
        #[expect(clippy::cast_precision_loss, reason = "an extrapolation has no use for 53 bits")]
        let seconds = bytes as f64 / self.per_second;
        (0. ..HUNDRED_YEARS).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
    }
}

/// What became of allocations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Survival {
    /// They were made at least so long ago.
    pub older_than: Duration,
    /// What was allocated.
    pub allocated: Totals,
    /// What of it lives.
    pub live: Totals,
}

impl Survival {
    /// The share of bytes that lives.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share has no use for 53 bits")]
    pub fn share(&self) -> f64 {
        self.live.bytes as f64 / (self.allocated.bytes.max(self.live.bytes).max(1)) as f64
    }
}

/// Live bytes at an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// When, since accounting began.
    pub at: Duration,
    /// Live bytes.
    pub bytes: u64,
}

/// How much memory a process can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// What sets the limit.
    pub kind: MemoryKind,
    /// The limit, in bytes.
    pub limit: u64,
    /// What is left of it.
    pub available: u64,
}

/// What sets a limit to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// The memory limit of the process's control group, or of one above it.
    Cgroup,
    /// The machine.
    Ram,
}

impl MemoryKind {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ram => "ram",
        }
    }
}
