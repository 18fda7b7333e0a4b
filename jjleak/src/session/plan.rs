//! Complete, typed description of a run, the same for the command line and the daemon.

use std::ffi::OsString;
use std::time::Duration;

use regex::Regex;

use super::{AllocatorChoice, Probed};
use crate::analyze::Baseline;
use crate::attach::{Programs, Settings};
use crate::jcmd::Agent;
use crate::processes::{Pid, Streams};
use crate::profile::{Coverage, SourceKind};

/// Number of snapshots within the settle time, after which allocations are judged.
const SNAPSHOTS_IN_SETTLE: u32 = 2;
/// Minimum time between snapshots for the history: more frequent ones cost more than they are worth.
const SHORTEST_BETWEEN_SNAPSHOTS: Duration = Duration::from_millis(500);

/// A run.
#[derive(Debug)]
pub struct Plan {
    /// The processes to profile.
    pub target: Target,
    /// Settings of the kernel side: blocks to count, capacities, and processes to follow.
    pub settings: Settings,
    /// Blocks and processes that the figures cover.
    pub coverage: Coverage,
    /// The allocators to profile.
    pub allocators: AllocatorChoice,
    /// Bound of the cost of profiling, for a single process.
    pub cost_bound: Option<CostBound>,
    /// Library that running processes, which have to be JVMs, load first.
    pub agent: Option<Agent>,
    /// True if JVMs are asked for perf maps.
    pub asks_for_perf_maps: bool,
    /// Profile that reports subtract.
    pub baseline: Option<Baseline>,
    /// Profiles that list each stack without live blocks, however many there are.
    pub listing: Listing,
    /// Times of snapshots.
    pub schedule: Schedule,
}

/// Profiles that list each stack that has left the kernel side's table. Others sum them up by call site once there are many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// All profiles.
    Always,
    /// The last profile of each process.
    AtEnd,
    /// None: only stacks with live blocks and totals are shown.
    Never,
}

/// The processes to profile.
#[derive(Debug)]
pub enum Target {
    /// Running processes.
    Pids(Vec<Pid>),
    /// Processes whose name, or executable's path, matches, including later ones.
    Named(Regex),
    /// All processes, including later ones.
    Everything,
    /// A command to start.
    Command {
        /// The program and its arguments.
        words: Vec<OsString>,
        /// Its standard streams.
        streams: Streams,
        /// Environment variables that it has besides jjleak's own.
        variables: Vec<(&'static str, OsString)>,
    },
}

/// Bound of the cost of profiling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostBound {
    /// Share of the process's own CPU time.
    pub share: f64,
    /// True if short bursts may exceed it for the sake of a verdict, and the observer checks each profile if the kernel cannot
    /// enforce a bound.
    pub is_patient: bool,
}

/// Times of snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Time between two reports.
    pub interval: Duration,
    /// Number of reports; `None` until the run ends.
    pub reports: Option<u64>,
    /// True if any observer shows verdicts, which may take more snapshots than reports.
    pub has_verdicts: bool,
    /// Time in which verdicts need two snapshots.
    pub settle: Duration,
    /// True if the observer gets individual allocations and frees, and profiles only at the end.
    pub only_events: bool,
    /// True if the first interval is divided, for an observer that checks the cost in each profile.
    pub begins_early: bool,
}

impl Plan {
    /// A plan that counts all allocations of a running process.
    #[must_use]
    pub fn of_process(pid: Pid, interval: Duration, settle: Duration) -> Self {
        Self {
            target: Target::Pids(vec![pid]),
            settings: Settings::new(Programs::Accounting),
            coverage: Coverage { settle, ..Coverage::default() },
            allocators: AllocatorChoice::default(),
            cost_bound: None,
            agent: None,
            asks_for_perf_maps: false,
            baseline: None,
            listing: Listing::AtEnd,
            schedule: Schedule {
                interval,
                reports: None,
                has_verdicts: true,
                settle,
                only_events: false,
                begins_early: false,
            },
        }
    }

    /// A plan that follows the objects in the Java heap of a running process.
    #[must_use]
    pub fn of_java_heap(pid: Pid, interval: Duration) -> Self {
        let settings = Settings::new(Programs::JavaHeap);
        Self::of_source(pid, interval, SourceKind::JavaHeap, Probed::JavaHeap, settings)
    }

    /// A plan that follows the pages of a running process that become resident.
    #[must_use]
    pub fn of_pages(pid: Pid, interval: Duration) -> Self {
        let mut settings = Settings::new(Programs::Accounting);
        settings.faults = true;
        Self::of_source(pid, interval, SourceKind::Growth, Probed::Nothing, settings)
    }

    /// A plan for a source whose call sites are not judged, and which needs no table of blocks.
    fn of_source(
        pid: Pid,
        interval: Duration,
        source: SourceKind,
        probed: Probed,
        mut settings: Settings,
    ) -> Self {
        let plan = Self::of_process(pid, interval, Duration::ZERO);
        settings.capacity.blocks = 1;
        Self {
            settings,
            coverage: Coverage { source, ..plan.coverage },
            allocators: AllocatorChoice { probed, ..plan.allocators },
            schedule: Schedule { has_verdicts: false, ..plan.schedule },
            ..plan
        }
    }

    /// Time between snapshots for the history, if long report intervals give too few of them for verdicts.
    pub(super) fn between_snapshots(&self) -> Option<Duration> {
        let between = (self.schedule.settle / SNAPSHOTS_IN_SETTLE).max(SHORTEST_BETWEEN_SNAPSHOTS);
        (self.schedule.has_verdicts && self.schedule.interval > between).then_some(between)
    }
}
