//! What an allocation and a free take, from what their parts take.

use super::float;
use crate::allocators::Stepping;
use crate::attach::{RunsByPart, Steppings, Traps};

/// What the programs take of an allocation and a free, for what breakpoints at emulated instructions take of them, where the
/// kernel has not measured it: as much as on the machine of `docs/benchmarks/cost.md`.
const PROGRAMS_SHARE: f64 = 0.3;

/// Nanoseconds that an allocation and a free take more than without probes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// An allocation, with the return.
    pub allocation_ns: f64,
    /// A free.
    pub free_ns: f64,
    /// A return whose entry runs no program: what is left of an allocation while its probes are put in or taken out.
    pub return_ns: f64,
}

impl Prices {
    /// From what breakpoints take, where they are, and what was measured of the programs.
    #[must_use]
    pub fn of(traps: Traps, steppings: Steppings, runs: RunsByPart) -> Self {
        let Traps { emulated_ns, stepped_ns, returning_ns } = traps;
        let trap = |stepping| if stepping == Stepping::SingleStep { stepped_ns } else { emulated_ns };
        let assumed = |hits: f64| PROGRAMS_SHARE * hits;
        let entry = runs.entries.mean_ns().unwrap_or_else(|| assumed(emulated_ns));
        let leave = runs.returns.mean_ns().unwrap_or_else(|| assumed(returning_ns));
        // Where a probe inside of a function knows all, its return has none.
        let returns = match runs.entries.count {
            0 => f64::from(u8::from(steppings.returns)),
            entries => (float(runs.returns.count) / float(entries)).min(1.),
        };
        let free = runs.frees.mean_ns().unwrap_or_else(|| assumed(emulated_ns));
        Self {
            allocation_ns: trap(steppings.allocation) + entry + returns * (returning_ns + leave),
            free_ns: trap(steppings.free) + free,
            return_ns: trap(steppings.allocation) + returning_ns + leave,
        }
    }

    /// What the programs that have run stand for, in nanoseconds.
    #[must_use]
    pub fn sum_of(self, runs: RunsByPart) -> f64 {
        let RunsByPart { entries, returns, frees } = runs;
        let without_entry = returns.count.saturating_sub(entries.count);
        self.sum_ns(float(entries.count), float(frees.count)) + self.return_ns * float(without_entry)
    }

    /// What so many allocations and frees take, in nanoseconds.
    #[must_use]
    pub fn sum_ns(self, allocations: f64, frees: f64) -> f64 {
        self.allocation_ns * allocations + self.free_ns * frees
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::Runs;

    const TRAPS: Traps = Traps { emulated_ns: 600., stepped_ns: 9_000., returning_ns: 500. };
    const EMULATED: Steppings =
        Steppings { allocation: Stepping::EmulatedPush, returns: true, free: Stepping::EmulatedBranch };

    #[test]
    #[expect(clippy::float_cmp, reason = "small whole numbers are exact")]
    fn a_call_takes_its_breakpoints_and_what_runs_at_them() {
        let runs = |count, time_ns| Runs { count, time_ns };
        let measured = RunsByPart { entries: runs(10, 3_000), returns: runs(10, 1_000), frees: runs(2, 200) };
        let prices = Prices::of(TRAPS, EMULATED, measured);
        assert_eq!(
            prices,
            Prices { allocation_ns: 600. + 300. + 500. + 100., free_ns: 700., return_ns: 600. + 500. + 100. }
        );
        assert_eq!(prices.sum_ns(2., 1.), 3_700.);
    }

    #[test]
    fn returns_that_have_no_entries_any_more_still_cost() {
        let prices = Prices { allocation_ns: 1_500., free_ns: 700., return_ns: 1_200. };
        let runs = |count| Runs { count, time_ns: 0 };
        let counted =
            |entries, returns| RunsByPart { entries: runs(entries), returns: runs(returns), frees: runs(10) };
        assert!((prices.sum_of(counted(20, 20)) - 37_000.).abs() < 1e-6);
        assert!((prices.sum_of(counted(20, 25)) - 43_000.).abs() < 1e-6);
        assert!((prices.sum_of(counted(20, 0)) - 37_000.).abs() < 1e-6);
    }

    #[test]
    fn what_was_not_measured_is_assumed_in_proportion_to_breakpoints() {
        let prices = Prices::of(TRAPS, EMULATED, RunsByPart::default());
        assert!((prices.allocation_ns - 1.3 * 1_100.).abs() < 1e-6, "{prices:?}");
    }

    #[test]
    fn a_return_that_has_no_probe_costs_nothing() {
        let inside = Steppings { returns: false, ..EMULATED };
        let prices = Prices::of(TRAPS, inside, RunsByPart::default());
        assert!((prices.allocation_ns - 1.3 * 600.).abs() < 1e-6, "{prices:?}");
        let runs = |count| Runs { count, time_ns: 300 * count };
        let half = RunsByPart { entries: runs(10), returns: runs(5), frees: runs(1) };
        assert!((Prices::of(TRAPS, inside, half).allocation_ns - (900. + 0.5 * 800.)).abs() < 1e-6);
    }

    #[test]
    fn a_site_that_has_to_be_stepped_over_costs_what_stepping_costs() {
        let stepped = Steppings { free: Stepping::SingleStep, ..EMULATED };
        assert!(Prices::of(TRAPS, stepped, RunsByPart::default()).free_ns > 9_000.);
    }
}
