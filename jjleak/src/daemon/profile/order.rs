//! A profile that is to be taken.

use std::time::Duration;

use crate::processes::Pid;
use crate::profile::{JUDGED_SPANS, SourceKind};

/// Profiles of everything take this many times the minimum age of judged allocations: twice what a verdict needs.
const SETTLES_IN_EXACT: u32 = 2 * JUDGED_SPANS;

/// Kind of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Allocations, within the bound of the cost.
    Allocations,
    /// Allocations, each of which is counted, whatever that costs.
    Exact,
    /// Allocations, and mappings of files.
    MappedFiles,
    /// Pages that become resident.
    Pages,
    /// Objects in the Java heap.
    JavaHeap,
}

impl Kind {
    /// The source of its figures.
    #[must_use]
    pub const fn source(self) -> SourceKind {
        match self {
            Self::Allocations | Self::Exact | Self::MappedFiles => SourceKind::Malloc,
            Self::Pages => SourceKind::Growth,
            Self::JavaHeap => SourceKind::JavaHeap,
        }
    }
}

/// Process to profile, and settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Order {
    /// The process.
    pub pid: Pid,
    /// Start time of the process, to tell it from another one that reuses its PID.
    pub start_time: u64,
    /// Kind of the profile.
    pub kind: Kind,
    /// Maximum time, and as long again if there is no verdict by then and `may_extend`.
    pub duration: Duration,
    /// See `duration`.
    pub may_extend: bool,
    /// Minimum age of allocations that are judged.
    pub settle: Duration,
    /// Interval between profiles.
    pub snapshot: Duration,
    /// Mean number of bytes per sampled allocation; 0 counts all.
    pub sample_bytes: u64,
    /// Overhead limit in per cent of the process's own CPU time; `None` for no limit. If counting everything exceeds it,
    /// allocations are counted in windows of time.
    pub max_overhead: Option<f64>,
}

impl Order {
    /// Counts everything, for a short time.
    #[must_use]
    pub fn exact(self, time: Duration) -> Self {
        let settle = self.settle.min(time / SETTLES_IN_EXACT);
        let snapshot = self.snapshot.min(time);
        Self {
            kind: Kind::Exact,
            duration: time,
            may_extend: false,
            settle,
            snapshot,
            sample_bytes: 0,
            max_overhead: None,
            ..self
        }
    }
}
