//! Run times of the programs at probe sites, as measured by the kernel, and properties of the sites.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::multi::Place;
use super::{NOTHING, Probes, Programs, bpf, multi};
use crate::allocators::{ProbePoint, ProbeSite, Role, Stepping};
use crate::attach::calibration::{Calibration, OWN_PROGRAM};

/// Runs of a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Runs {
    /// Number of runs.
    pub count: u64,
    /// Total duration in nanoseconds.
    pub time_ns: u64,
}

impl Runs {
    /// Difference to an earlier measurement.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            time_ns: self.time_ns.saturating_sub(earlier.time_ns),
        }
    }

    /// Sum of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, time_ns: self.time_ns + other.time_ns }
    }

    /// Mean nanoseconds per run; `None` without runs or measurement.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an average has no use for more than 53 bits")]
    pub fn mean_ns(self) -> Option<f64> {
        (self.count > 0 && self.time_ns > 0).then(|| self.time_ns as f64 / self.count as f64)
    }
}

/// Runs of the programs by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunsByPart {
    /// Calls detected by one hit within the function.
    pub given: Runs,
    /// Entries of functions that return a block or resize one, with a hit at return as well.
    pub entries: Runs,
    /// Returns of these functions.
    pub returns: Runs,
    /// Calls recorded until a hit at their end.
    pub noted: Runs,
    /// Ends of such calls, recorded or not.
    pub exits: Runs,
    /// Entries of functions that free a block.
    pub frees: Runs,
}

impl RunsByPart {
    /// Difference to an earlier measurement.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            given: self.given.since(earlier.given),
            entries: self.entries.since(earlier.entries),
            returns: self.returns.since(earlier.returns),
            noted: self.noted.since(earlier.noted),
            exits: self.exits.since(earlier.exits),
            frees: self.frees.since(earlier.frees),
        }
    }

    /// Number of hits at the beginning of allocating calls. A nested call (a `realloc` of nothing, `reallocarray`) has its own
    /// hit but is not counted as a call, so the mean per hit is slightly below the cost of a counted call.
    #[must_use]
    pub const fn allocations(self) -> u64 {
        self.given.count + self.entries.count + self.noted.count
    }

    /// Estimate for these calls if they were fully traced rather than counted at entry: their returns are added, and the run
    /// times are removed because they were not measured.
    #[must_use]
    pub fn as_if_followed(self) -> Self {
        let untimed = |runs: Runs| Runs { time_ns: 0, ..runs };
        Self {
            given: untimed(self.given),
            entries: untimed(self.entries),
            returns: untimed(self.entries),
            noted: untimed(self.noted),
            exits: untimed(self.exits),
            frees: untimed(self.frees),
        }
    }

    /// Total number of hits.
    #[must_use]
    pub const fn hits(self) -> u64 {
        self.allocations() + self.returns.count + self.exits.count + self.frees.count
    }
}

/// Execution of the probed instructions by the kernel: emulated, or single-stepped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steppings {
    /// Within functions, where the block is known.
    pub given: Stepping,
    /// At entries.
    pub entry: Stepping,
    /// At the beginning of calls that end at another probe.
    pub noted: Stepping,
    /// Ends of such calls, in several places.
    pub exits: ExitCounts,
    /// At entries of functions that free blocks.
    pub free: Stepping,
    /// True if most allocations are detected by one hit within the function, not at entry and return.
    pub sees_inside: bool,
}

/// Number of places where recorded calls end, by how the kernel executes the instruction there. All share one program, so runs
/// per place are unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExitCounts {
    /// Instructions that the kernel emulates.
    pub emulated: u32,
    /// Instructions that the kernel single-steps out of line.
    pub stepped: u32,
}

/// Guard: while held, the kernel measures BPF programs.
pub struct Measuring(#[expect(dead_code, reason = "held to be closed")] OwnedFd);

impl Measuring {
    /// Begins to measure. Costs every run of a BPF program on the host some ten nanoseconds.
    pub fn begin() -> io::Result<Self> {
        bpf::measure_runs().map(Self)
    }
}

impl Probes {
    /// Measurements up to now; none if probes are perf events.
    pub(in crate::attach) fn runs(&self) -> RunsByPart {
        let runs: BTreeMap<_, _> = self.multi.iter().flat_map(multi::MultiPrograms::runs).collect();
        let sum = |names: &[&str]| {
            names.iter().filter_map(|name| runs.get(name)).fold(Runs::default(), |sum, runs| sum.and(*runs))
        };
        // The accounting uses bare programs only elsewhere, to calibrate and to spare children; other modes attach them to be counted.
        let bare: &[&str] = if self.programs == Programs::Accounting { &[] } else { &[NOTHING] };
        let entries = [
            "allocate_enter",
            "resize_enter",
            "resize_in_place_enter",
            "unseen_allocate_enter",
            "java_object",
        ];
        RunsByPart {
            given: sum(&["block_given", "bare_given", "step_given"]),
            entries: sum(&[&entries, bare].concat()),
            returns: sum(&["allocate_return"]),
            noted: sum(&["noted_enter", "bare_noted"]),
            exits: sum(&["noted_exit", "bare_exit"]),
            frees: sum(&["free_enter", "unseen_free_enter", "bare_free"]),
        }
    }

    /// Properties of the first probed function of each kind: the tables of allocator families list the most frequently called
    /// functions first.
    pub(in crate::attach) fn steppings(&self) -> Steppings {
        let sites = || self.placed.iter().flat_map(|placed| &placed.group.sites);
        let first = |is_of: fn(ProbePoint) -> bool| sites().find(|site| is_of(site.point));
        let stepping =
            |site: Option<&ProbeSite>| site.map_or(Stepping::EmulatedBranch, |site| site.placement.stepping);
        let mut exits = ExitCounts::default();
        for site in sites().filter(|site| site.point == ProbePoint::Exit) {
            let number = match site.placement.stepping {
                Stepping::SingleStep => &mut exits.stepped,
                Stepping::EmulatedBranch | Stepping::EmulatedPush => &mut exits.emulated,
            };
            *number += 1;
        }
        // The function probed within is malloc, which is called far more often than others of its family.
        let given = first(|point| point == ProbePoint::Block);
        Steppings {
            given: stepping(given),
            entry: stepping(first(|point| {
                point.probes_return() || point == ProbePoint::Entry(Role::JavaObject)
            })),
            noted: stepping(first(|point| {
                matches!(point, ProbePoint::Size | ProbePoint::Entry(Role::AllocateOrThrow))
            })),
            exits,
            free: stepping(first(|point| point == ProbePoint::Entry(Role::Free))),
            sees_inside: given.is_some(),
        }
    }

    /// Begins to measure the cost of a breakpoint on this machine, on jjleak's own functions; `None` if that is slow.
    pub(in crate::attach) fn calibrate(&self) -> Option<Calibration> {
        let multi = self.multi.as_ref()?;
        let copy = |name| multi.get(name).ok()?.try_clone_to_owned().ok();
        let (nothing, returning) = (copy(NOTHING)?, copy("bare_return")?);
        Calibration::begin(move |sites, at_return| {
            let program = if at_return { &returning } else { &nothing };
            let places: Vec<_> = sites.iter().copied().map(Place::at).collect();
            multi::attach(program.as_fd(), OWN_PROGRAM.as_ref(), std::process::id(), at_return, &places)
        })
    }
}
