//! Prices of an allocation and a free, from the cost of their parts.

use super::float;
use crate::attach::{Runs, RunsByPart, Steppings, Traps};

/// Cost of the BPF program at a probe relative to that of an emulated breakpoint, where the kernel has not measured it: the
/// median of eight programs that work for a few milliseconds and sleep (0.3 to 1.4).
const PROGRAMS_SHARE: f64 = 0.9;

/// Nanoseconds that probes add to allocations, frees and single hits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// An allocation with all its hits: the average of those observed.
    pub allocation_ns: f64,
    /// A free.
    pub free_ns: f64,
    hits: Hits,
}

/// Cost of each kind of hit, with the BPF program that runs at it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(clippy::struct_field_names, reason = "the unit")]
struct Hits {
    given_ns: f64,
    entry_ns: f64,
    return_ns: f64,
    noted_ns: f64,
    exit_ns: f64,
    free_ns: f64,
    /// Extra cost of a return whose entry runs no program any more: while probes are being enabled or disabled, the breakpoint
    /// at the entry is still hit.
    left_entry_ns: f64,
}

impl Prices {
    /// Computes prices from the cost of breakpoints, where they are, and the measured runs of the programs.
    #[must_use]
    pub fn of(traps: Traps, steppings: Steppings, runs: RunsByPart) -> Self {
        let Traps { emulated_ns, returning_ns, .. } = traps;
        let trap = |stepping| traps.at(stepping);
        let with = |hit_ns: f64, runs: Runs| {
            // The instruction at the probe does not change the program's own cost.
            let assumed_ns = PROGRAMS_SHARE * hit_ns.min(emulated_ns);
            hit_ns + runs.mean_ns().unwrap_or(assumed_ns)
        };
        let hits = Hits {
            given_ns: with(trap(steppings.given), runs.given),
            entry_ns: with(trap(steppings.entry), runs.entries),
            return_ns: with(returning_ns, runs.returns),
            noted_ns: with(trap(steppings.noted), runs.noted),
            exit_ns: with(traps.exit_ns(steppings.exits), runs.exits),
            free_ns: with(trap(steppings.free), runs.frees),
            left_entry_ns: trap(steppings.entry),
        };
        let allocation_ns = match runs.allocations() {
            0 if steppings.sees_inside => hits.given_ns,
            0 => hits.entry_ns + hits.return_ns,
            allocations => hits.of_allocations(runs) / float(allocations),
        };
        Self { allocation_ns, free_ns: hits.free_ns, hits }
    }

    /// Total cost of these runs, in nanoseconds.
    #[must_use]
    pub fn sum_of(self, runs: RunsByPart) -> f64 {
        let without_entry = runs.returns.count.saturating_sub(runs.entries.count);
        self.of_allocations(runs)
            + self.hits.free_ns * float(runs.frees.count)
            + self.hits.left_entry_ns * float(without_entry)
    }

    /// Cost of the allocations' share of these runs, in nanoseconds.
    #[must_use]
    pub fn of_allocations(self, runs: RunsByPart) -> f64 {
        self.hits.of_allocations(runs)
    }

    /// Cost of so many allocations and frees, in nanoseconds.
    #[must_use]
    pub fn sum_ns(self, allocations: f64, frees: f64) -> f64 {
        self.allocation_ns * allocations + self.free_ns * frees
    }

    /// Prices without those of single hits, for tests.
    #[cfg(test)]
    pub(super) fn of_calls(allocation_ns: f64, free_ns: f64) -> Self {
        Self { allocation_ns, free_ns, hits: Hits::default() }
    }
}

impl Hits {
    fn of_allocations(self, runs: RunsByPart) -> f64 {
        let RunsByPart { given, entries, returns, noted, exits, frees: _ } = runs;
        self.given_ns * float(given.count)
            + self.entry_ns * float(entries.count)
            + self.return_ns * float(returns.count)
            + self.noted_ns * float(noted.count)
            + self.exit_ns * float(exits.count)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::allocators::Stepping;
    use crate::attach::ExitCounts;

    const TRAPS: Traps = Traps { emulated_ns: 600., stepped_ns: 9_000., returning_ns: 500. };
    /// All breakpoints are emulated.
    pub(in crate::cost) const EMULATED: Steppings = Steppings {
        given: Stepping::EmulatedBranch,
        entry: Stepping::EmulatedPush,
        noted: Stepping::EmulatedBranch,
        exits: ExitCounts { emulated: 1, stepped: 0 },
        free: Stepping::EmulatedBranch,
        sees_inside: false,
    };

    fn runs(count: u64, each_ns: u64) -> Runs {
        Runs { count, time_ns: each_ns * count }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "small whole numbers are exact")]
    fn a_call_costs_its_breakpoints_and_their_programs() {
        let measured = RunsByPart {
            entries: runs(10, 300),
            returns: runs(10, 100),
            frees: runs(2, 100),
            ..RunsByPart::default()
        };
        let prices = Prices::of(TRAPS, EMULATED, measured);
        assert_eq!((prices.allocation_ns, prices.free_ns), (600. + 300. + 500. + 100., 700.));
        assert_eq!(prices.sum_ns(2., 1.), 3_700.);
        assert_eq!(prices.sum_of(measured), 15_000. + 1_400.);
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "small whole numbers are exact")]
    fn a_call_that_is_noted_and_settled_costs_two_breakpoints() {
        let seen = |given, noted| RunsByPart {
            given: runs(given, 400),
            noted: runs(noted, 300),
            exits: runs(noted, 200),
            ..RunsByPart::default()
        };
        let inside = Steppings { sees_inside: true, ..EMULATED };
        let price = |runs| Prices::of(TRAPS, inside, runs).allocation_ns;
        assert_eq!(price(seen(10, 0)), 600. + 400.);
        assert_eq!(price(seen(0, 10)), 600. + 300. + 600. + 200.);
        assert_eq!(price(seen(10, 30)), 0.25 * 1_000. + 0.75 * 1_700.);
        // A throwing function is noted at its entry and settled at its return, whose instruction is single-stepped.
        let throwing = Steppings { exits: ExitCounts { emulated: 0, stepped: 1 }, ..EMULATED };
        assert_eq!(Prices::of(TRAPS, throwing, seen(0, 10)).allocation_ns, 900. + 9_200.);
        // One stepped exit among several emulated ones.
        let some = Steppings { exits: ExitCounts { emulated: 3, stepped: 1 }, ..EMULATED };
        assert_eq!(Prices::of(TRAPS, some, seen(0, 10)).allocation_ns, 900. + 200. + 2_700.);
    }

    #[test]
    fn returns_without_entries_still_cost() {
        let counted = |entries, returns| RunsByPart {
            // Hits inside of the function make no difference.
            given: runs(1_000, 0),
            entries: runs(entries, 300),
            returns: runs(returns, 100),
            ..RunsByPart::default()
        };
        let prices = Prices::of(TRAPS, EMULATED, counted(20, 20));
        let sum =
            |entries, returns| prices.sum_of(counted(entries, returns)) - prices.sum_of(counted(20, 20));
        assert!((sum(20, 25) - 5. * 1_200.).abs() < 1e-6, "{}", sum(20, 25));
        assert!((sum(20, 0) + 20. * 600.).abs() < 1e-6, "{}", sum(20, 0));
    }

    #[test]
    fn unmeasured_programs_are_assumed_in_proportion_to_breakpoints() {
        let prices = Prices::of(TRAPS, EMULATED, RunsByPart::default());
        assert!((prices.allocation_ns - (1. + PROGRAMS_SHARE) * 1_100.).abs() < 1e-6, "{prices:?}");
        let inside = Steppings { sees_inside: true, ..EMULATED };
        let prices = Prices::of(TRAPS, inside, RunsByPart::default());
        assert!((prices.allocation_ns - (1. + PROGRAMS_SHARE) * 600.).abs() < 1e-6, "{prices:?}");
    }

    #[test]
    fn a_single_stepped_site_costs_what_stepping_costs() {
        let stepped = Steppings { free: Stepping::SingleStep, ..EMULATED };
        let free_ns = Prices::of(TRAPS, stepped, RunsByPart::default()).free_ns;
        assert!((free_ns - 9_000. - PROGRAMS_SHARE * 600.).abs() < 1e-6, "{free_ns}");
    }
}
