//! Ratio of the real cost of hits to their prices. Pure.
//!
//! Prices come from breakpoints hit in a tight loop. In a program that does other work or sleeps between hits, neither its
//! code nor the kernel's is in the caches at a hit, and both run slower afterwards as well. The difference shows in the CPU
//! time of the process, which is lower while nothing is counted.

use super::Stretch;
use super::schedule::Measured;

/// Initial factor and lower bound, measured on a program that makes a few calls and sleeps.
const LEAST: f64 = 1.3;
/// Upper bound. While everything is counted, nothing can be learned, so the bound is kept for this factor.
const MOST: f64 = 3.;
/// Weight of a new observation if hits took at least [`FULL_WEIGHT_S`] and the process itself nothing.
const NEWEST: f64 = 0.3;
const FULL_WEIGHT_S: f64 = 0.002;

/// Estimated ratio of the real cost of hits to their prices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Correction {
    factor: f64,
}

impl Default for Correction {
    fn default() -> Self {
        Self { factor: LEAST }
    }
}

impl Correction {
    /// The most that hits can cost.
    pub(super) const AT_MOST: Self = Self { factor: MOST };

    /// Splits a measurement into what probes spent and what the process used itself.
    pub(super) fn stretch(self, measured: Measured) -> Stretch {
        let spent_s = self.spent_s(measured);
        Stretch { over_s: measured.over_s, own_s: (measured.cpu_s - spent_s).max(0.), spent_s }
    }

    /// CPU time that hits have taken of the process.
    pub(super) fn spent_s(self, measured: Measured) -> f64 {
        self.factor * measured.priced_s()
    }

    pub(super) const fn factor(self) -> f64 {
        self.factor
    }

    /// Learns from a measurement of a process that uses `own` cores while nothing is counted. If the process uses much itself,
    /// its own variation exceeds the cost of hits, so the measurement weighs less. A process that always computes teaches
    /// nothing: hits only displace its own work.
    pub(super) fn learn(&mut self, measured: Measured, own: f64) {
        let priced_s = measured.priced_s();
        let own_s = own * measured.over_s;
        if priced_s <= 0. {
            return;
        }
        let seen = ((measured.cpu_s - own_s) / priced_s).clamp(0., MOST);
        let weight = priced_s / (priced_s + own_s) * (priced_s / FULL_WEIGHT_S).min(1.);
        self.factor = (self.factor + NEWEST * weight * (seen - self.factor)).max(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One second in which the process used `cpu_s` and hits were priced at `priced_s`.
    fn second(cpu_s: f64, priced_s: f64) -> Measured {
        Measured { over_s: 1., cpu_s, allocations_s: priced_s, ..Measured::default() }
    }

    #[test]
    fn the_factor_is_learned_from_the_extra_cpu_time_of_the_process() {
        let mut correction = Correction::default();
        (0..30).for_each(|_| correction.learn(second(0.03 + 2. * 0.1, 0.1), 0.03));
        assert!((correction.factor() - 2.).abs() < 0.05, "{correction:?}");
        assert!((correction.spent_s(second(1., 0.1)) - 0.2).abs() < 0.005);
    }

    #[test]
    fn the_factor_never_falls_below_its_initial_value() {
        let mut correction = Correction::default();
        // One thread that computes all the time.
        (0..30).for_each(|_| correction.learn(second(1., 0.5), 1.));
        assert_eq!(correction, Correction::default());
    }

    #[test]
    fn a_process_that_does_much_else_hardly_changes_the_factor() {
        let mut correction = Correction::default();
        correction.learn(second(1.5, 0.01), 1.);
        assert!(correction.factor() < 1.4, "{correction:?}");
    }
}
