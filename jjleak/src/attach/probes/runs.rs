//! What the programs at probe sites take, as the kernel measures it, and the sites that they are at.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{NOTHING, Probes, Programs, bpf, multi};
use crate::allocators::{ProbeSite, Role, Stepping};
use crate::attach::calibration::{Calibration, OWN_PROGRAM};

/// How often a program has run, and for how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Runs {
    /// How often.
    pub count: u64,
    /// Nanoseconds, of all runs.
    pub time_ns: u64,
}

impl Runs {
    /// What has come since.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            time_ns: self.time_ns.saturating_sub(earlier.time_ns),
        }
    }

    /// Of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, time_ns: self.time_ns + other.time_ns }
    }

    /// Nanoseconds of one; `None` when there was none, or nobody has measured them.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an average has no use for more than 53 bits")]
    pub fn mean_ns(self) -> Option<f64> {
        (self.count > 0 && self.time_ns > 0).then(|| self.time_ns as f64 / self.count as f64)
    }
}

/// Runs of the programs by what they are hit for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunsByPart {
    /// Calls that are seen by one hit, inside of the function.
    pub given: Runs,
    /// Entries of functions that give a block or another one, whose returns are hits, too.
    pub entries: Runs,
    /// Those returns.
    pub returns: Runs,
    /// Calls that are noted until another hit tells how they end.
    pub noted: Runs,
    /// Where these end; or would, if they had been noted.
    pub exits: Runs,
    /// Entries of functions that take a block back.
    pub frees: Runs,
}

impl RunsByPart {
    /// What has come since.
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

    /// Hits that calls which allocate begin with. A call within another one (a `realloc` of nothing, `reallocarray`) has one of its
    /// own, though it is no call in the books: what one takes on average is then a little less than what a booked call takes.
    #[must_use]
    pub const fn allocations(self) -> u64 {
        self.given.count + self.entries.count + self.noted.count
    }

    /// What these calls would be if they were followed, and not just counted where they begin: those that have returns would have
    /// them, and how long the programs would take nobody has measured.
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

    /// How often a program has run, whatever for.
    #[must_use]
    pub const fn hits(self) -> u64 {
        self.allocations() + self.returns.count + self.exits.count + self.frees.count
    }
}

/// How the kernel gets past the probed instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steppings {
    /// Inside of functions, where they have their block.
    pub given: Stepping,
    /// At entries.
    pub entry: Stepping,
    /// Where calls are noted that end at another probe.
    pub noted: Stepping,
    /// Where these end, which is in several places.
    pub exits: Exits,
    /// At entries of functions that take blocks back.
    pub free: Stepping,
    /// Whether most allocations are seen by a hit inside of the function, and have none at entry and return.
    pub sees_inside: bool,
}

/// In how many places calls end that were noted, by how the kernel gets past the instruction there. One program is at all of them,
/// so that nobody knows how often which is passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exits {
    /// At instructions that it emulates.
    pub emulated: u32,
    /// At instructions that it has the processor execute elsewhere.
    pub stepped: u32,
}

/// The kernel measures what BPF programs take while this is held.
pub struct Measuring(#[expect(dead_code, reason = "held to be closed")] OwnedFd);

impl Measuring {
    /// Begins. Costs every run of a BPF program on the host some ten nanoseconds meanwhile.
    pub fn begin() -> io::Result<Self> {
        bpf::measure_runs().map(Self)
    }
}

impl Probes {
    /// What was measured so far; nothing where probes are perf events.
    pub(in crate::attach) fn runs(&self) -> RunsByPart {
        let runs: BTreeMap<_, _> = self.multi.iter().flat_map(multi::MultiPrograms::runs).collect();
        let sum = |names: &[&str]| {
            names.iter().filter_map(|name| runs.get(name)).fold(Runs::default(), |sum, runs| sum.and(*runs))
        };
        // What was attached to have something to count: others' programs that do nothing are hit elsewhere.
        let bare: &[&str] = if self.programs == Programs::Accounting { &[] } else { &[NOTHING] };
        let entries = ["allocate_enter", "resize_enter", "resize_in_place_enter", "unseen_allocate_enter"];
        RunsByPart {
            given: sum(&["block_given", "bare_given", "step_given"]),
            entries: sum(&[&entries, bare].concat()),
            returns: sum(&["allocate_return"]),
            noted: sum(&["throwing_enter", "bare_noted"]),
            exits: sum(&["throwing_exit", "bare_exit"]),
            frees: sum(&["free_enter", "unseen_free_enter", "bare_free"]),
        }
    }

    /// Of each kind's first function that is probed: those that are called most come first in the tables of families.
    pub(in crate::attach) fn steppings(&self) -> Steppings {
        let sites = || self.placed.iter().flat_map(|placed| &placed.group.sites);
        let first = |is_of: fn(Role) -> bool| sites().find(|site| is_of(site.role));
        let stepping =
            |site: Option<&ProbeSite>| site.map_or(Stepping::EmulatedBranch, |site| site.placement.stepping);
        let mut exits = Exits::default();
        for site in sites().filter(|site| site.role == Role::Exit) {
            let number = match site.placement.stepping {
                Stepping::SingleStep => &mut exits.stepped,
                Stepping::EmulatedBranch | Stepping::EmulatedPush => &mut exits.emulated,
            };
            *number += 1;
        }
        // What is probed inside is malloc, which is called far more often than the others of its family.
        let given = first(|role| role == Role::Given);
        Steppings {
            given: stepping(given),
            entry: stepping(first(Role::probes_return)),
            noted: stepping(first(|role| matches!(role, Role::Noted | Role::AllocateOrThrow))),
            exits,
            free: stepping(first(|role| role == Role::Free)),
            sees_inside: given.is_some(),
        }
    }

    /// Begins to measure what a breakpoint costs on this machine, on functions of our own; `None` where that cannot be done in
    /// a moment.
    pub(in crate::attach) fn calibrate(&self) -> Option<Calibration> {
        let multi = self.multi.as_ref()?;
        let copy = |name| multi.get(name).ok()?.try_clone_to_owned().ok();
        let (nothing, returning) = (copy(NOTHING)?, copy("bare_return")?);
        Calibration::begin(move |sites, at_return| {
            let program = if at_return { &returning } else { &nothing };
            let sites: Vec<_> = sites.iter().map(|offset| (*offset, 0)).collect();
            multi::attach(program.as_fd(), OWN_PROGRAM.as_ref(), std::process::id(), at_return, &sites)
        })
    }
}
