//! What the programs at probe sites take, as the kernel measures it, and the sites that they are at.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{NOTHING, Probes, bpf, multi};
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

    /// Nanoseconds of one; `None` when there was none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an average has no use for more than 53 bits")]
    pub fn mean_ns(self) -> Option<f64> {
        (self.count > 0).then(|| self.time_ns as f64 / self.count as f64)
    }
}

/// Runs of the programs by what calls do: entries and returns of allocation functions, and frees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunsByPart {
    /// At entries of functions that give a block or another one.
    pub entries: Runs,
    /// When they return.
    pub returns: Runs,
    /// At entries of functions that take one back.
    pub frees: Runs,
}

impl RunsByPart {
    /// What has come since.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            entries: self.entries.since(earlier.entries),
            returns: self.returns.since(earlier.returns),
            frees: self.frees.since(earlier.frees),
        }
    }
}

/// How the kernel gets past the instructions that are probed, of those functions that are called most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steppings {
    /// Of functions that give blocks.
    pub allocation: Stepping,
    /// Whether their returns are probed, too.
    pub returns: bool,
    /// Of functions that take them back.
    pub free: Stepping,
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
        RunsByPart {
            entries: sum(&[
                "allocate_enter",
                "block_given",
                "resize_enter",
                "resize_in_place_enter",
                "throwing_enter",
                "unseen_allocate_enter",
                NOTHING,
            ]),
            returns: sum(&["allocate_return", "throwing_exit"]),
            frees: sum(&["free_enter", "unseen_free_enter", "bare_free"]),
        }
    }

    /// Of the first function of a kind that is probed: those that are called most come first in the tables of families.
    pub(in crate::attach) fn steppings(&self) -> Steppings {
        let sites = || self.placed.iter().flat_map(|placed| &placed.group.sites);
        let first = |is_of: fn(Role) -> bool| sites().find(|site| is_of(site.role));
        let stepping =
            |site: Option<&ProbeSite>| site.map_or(Stepping::EmulatedBranch, |site| site.placement.stepping);
        // What is probed inside is malloc, which is called far more often than the others of its family.
        let allocation = first(|role| role == Role::Given).or_else(|| first(|role| role == Role::Allocate));
        Steppings {
            allocation: stepping(allocation),
            returns: allocation.is_none_or(|site| site.role.probes_return()),
            free: stepping(first(|role| role == Role::Free)),
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
