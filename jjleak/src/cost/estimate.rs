//! Estimated overhead of exact profiling, from a process's call rate.

use std::time::Duration;

use super::{Prices, float};
use crate::allocators::Stepping;
use crate::attach::{Runs, RunsByPart, Steppings, Traps};

/// Up to this share of CPU time, exact profiling is recommended.
const CHEAP: f64 = 0.05;
/// From this share on, even windows would be so short that estimates are poor.
const EXCESSIVE: f64 = 0.9;

/// Call rate of a process and the cost of profiling it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Length of the measurement.
    pub over: Duration,
    /// Allocations in that time.
    pub allocations: u64,
    /// Frees.
    pub frees: u64,
    /// BPF program runs that profiling would have caused in that time.
    pub hits: u64,
    /// Cost of a call.
    pub prices: Prices,
    /// CPU time that the process used in that time, less what counting took; `None` if unknown.
    pub cpu: Option<Duration>,
}

/// Recommended way to profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Count everything.
    Exact,
    /// Count within an overhead bound.
    Bounded,
    /// Calls take nearly all its time: use a bound, or a tool inside the process.
    Elsewhere,
}

impl Estimate {
    /// Computes an estimate from hits counted with empty programs.
    #[must_use]
    pub fn of(
        over: Duration,
        counted: RunsByPart,
        cpu: Option<Duration>,
        traps: Traps,
        steppings: Steppings,
    ) -> Self {
        let trap = |stepping, runs: Runs| {
            let each_ns = match stepping {
                Stepping::SingleStep => traps.stepped_ns,
                Stepping::EmulatedBranch | Stepping::EmulatedPush => traps.emulated_ns,
            };
            each_ns * float(runs.count)
        };
        let took_ns = trap(steppings.given, counted.given)
            + trap(steppings.entry, counted.entries)
            + trap(steppings.noted, counted.noted)
            + traps.exit_ns(steppings.exits) * float(counted.exits.count)
            + trap(steppings.free, counted.frees);
        let followed = counted.as_if_followed();
        Self {
            over,
            allocations: counted.allocations(),
            frees: counted.frees.count,
            hits: followed.hits(),
            prices: Prices::of(traps, steppings, followed),
            cpu: cpu.map(|cpu| cpu.saturating_sub(seconds(took_ns))),
        }
    }

    /// Allocations and frees per second.
    #[must_use]
    pub fn calls_per_second(&self) -> (f64, f64) {
        let over = self.over.as_secs_f64().max(f64::MIN_POSITIVE);
        (float(self.allocations) / over, float(self.frees) / over)
    }

    /// Runs of BPF programs per second.
    #[must_use]
    pub fn hits_per_second(&self) -> f64 {
        float(self.hits) / self.over.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Share of a core that profiling would take.
    #[must_use]
    pub fn of_core(&self) -> f64 {
        let (allocations, frees) = self.calls_per_second();
        self.prices.sum_ns(allocations, frees) / 1e9
    }

    /// Share of a core that the process takes without profiling.
    #[must_use]
    pub fn without(&self) -> Option<f64> {
        Some(self.cpu?.as_secs_f64() / self.over.as_secs_f64().max(f64::MIN_POSITIVE))
    }

    /// Share of the process's CPU time that profiling would take at the current call rate.
    #[must_use]
    pub fn of_cpu(&self) -> Option<f64> {
        let with = self.without()? + self.of_core();
        Some(if with > 0. { self.of_core() / with } else { 0. })
    }

    /// Recommendation by share of CPU time, or by share of a core if the CPU time is unknown.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self.of_cpu().unwrap_or_else(|| self.of_core()) {
            share if share <= CHEAP => Advice::Exact,
            share if share < EXCESSIVE => Advice::Bounded,
            _ => Advice::Elsewhere,
        }
    }
}

fn seconds(ns: f64) -> Duration {
    Duration::try_from_secs_f64(ns / 1e9).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::prices::tests::EMULATED;

    const TRAPS: Traps = Traps { emulated_ns: 600., stepped_ns: 9_000., returning_ns: 400. };

    fn estimate(calls_per_second: u64, cpu: Duration) -> Estimate {
        // Empty programs: their run times say nothing about real ones.
        let runs = Runs { count: 10 * calls_per_second, time_ns: 700 * calls_per_second };
        let counted = RunsByPart { entries: runs, frees: runs, ..RunsByPart::default() };
        Estimate::of(Duration::from_secs(10), counted, Some(cpu), TRAPS, EMULATED)
    }

    #[test]
    fn the_cost_of_counting_is_subtracted_from_cpu_time() {
        // A million pairs of breakpoints a second would take 12 seconds.
        let estimate = estimate(100_000, Duration::from_millis(3_200));
        assert!((estimate.without().unwrap() - 0.2).abs() < 1e-9, "{estimate:?}");
        // 1,900 ns an allocation, 1,140 a free.
        assert!((estimate.of_core() - 0.304).abs() < 1e-9, "{}", estimate.of_core());
        assert!((estimate.of_cpu().unwrap() - 0.304 / 0.504).abs() < 1e-9);
    }

    #[test]
    fn calls_that_are_noted_and_settled_cost_two_breakpoints() {
        let runs = |count| Runs { count, time_ns: 0 };
        let counted =
            RunsByPart { given: runs(50), noted: runs(50), exits: runs(50), ..RunsByPart::default() };
        let inside = Steppings { sees_inside: true, ..EMULATED };
        let estimate = Estimate::of(Duration::from_secs(1), counted, None, TRAPS, inside);
        assert_eq!((estimate.allocations, estimate.hits), (100, 150));
        assert!((estimate.prices.allocation_ns - 1.5 * 1_140.).abs() < 1e-6, "{estimate:?}");
    }

    #[test]
    fn the_advice_follows_the_share() {
        let busy = Duration::from_secs(10);
        assert_eq!(estimate(1_000, busy).advice(), Advice::Exact);
        assert_eq!(estimate(100_000, busy).advice(), Advice::Bounded);
        assert_eq!(estimate(700_000, busy).advice(), Advice::Elsewhere);
        assert_eq!(estimate(0, Duration::ZERO).advice(), Advice::Exact);
    }
}
