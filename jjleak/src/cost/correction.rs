//! What hits really take, for what they are priced at. Pure.
//!
//! Prices are of breakpoints that are hit again and again. In a program that does other things between, or sleeps, neither its own code
//! nor the kernel's is in the caches when it gets to one, and what both do afterwards is slower, too. What that comes to is
//! in the CPU time of the process, which is less while nothing is counted.

use super::Stretch;
use super::course::Measured;

/// What is taken for true before it is known, and always at least: what was measured of a program that makes some calls and sleeps.
const LEAST: f64 = 1.3;
/// More is not believed. While everything is counted nothing is learned: the bound is kept if they take as much.
const MOST: f64 = 3.;
/// What a stretch counts for, beside all before it, if hits took so much of it and the process nothing else.
const NEWEST: f64 = 0.3;
const TELLING_S: f64 = 0.002;

/// By how much more hits take than their prices.
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
    /// The most that hits can take.
    pub(super) const AT_MOST: Self = Self { factor: MOST };

    /// A stretch of time, as it is booked.
    pub(super) fn stretch(self, measured: Measured) -> Stretch {
        let spent_s = self.of(measured);
        Stretch { over_s: measured.over_s, own_s: (measured.cpu_s - spent_s).max(0.), spent_s }
    }

    /// What a stretch has taken of the process.
    pub(super) fn of(self, measured: Measured) -> f64 {
        self.factor * measured.priced_s()
    }

    pub(super) const fn factor(self) -> f64 {
        self.factor
    }

    /// Learns from a stretch of a process that takes `own` of a core while nothing is counted. Where it takes much, how that changes is
    /// more than what hits take, and the stretch counts for less. Of a process that always computes, nothing is learned: it
    /// then does less itself.
    pub(super) fn learn(&mut self, measured: Measured, own: f64) {
        let priced_s = measured.priced_s();
        let own_s = own * measured.over_s;
        if priced_s <= 0. {
            return;
        }
        let seen = ((measured.cpu_s - own_s) / priced_s).clamp(0., MOST);
        let telling = priced_s / (priced_s + own_s) * (priced_s / TELLING_S).min(1.);
        self.factor = (self.factor + NEWEST * telling * (seen - self.factor)).max(LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second, of which the process takes so much, and hits that are priced at so much.
    fn second(cpu_s: f64, priced_s: f64) -> Measured {
        Measured { over_s: 1., cpu_s, allocations_s: priced_s, ..Measured::default() }
    }

    #[test]
    fn what_hits_really_take_is_learned_from_what_the_process_takes_more() {
        let mut correction = Correction::default();
        (0..30).for_each(|_| correction.learn(second(0.03 + 2. * 0.1, 0.1), 0.03));
        assert!((correction.factor() - 2.).abs() < 0.05, "{correction:?}");
        assert!((correction.of(second(1., 0.1)) - 0.2).abs() < 0.005);
    }

    #[test]
    fn hits_are_never_taken_to_cost_less_than_is_usual() {
        let mut correction = Correction::default();
        // One thread, which computes all the time.
        (0..30).for_each(|_| correction.learn(second(1., 0.5), 1.));
        assert_eq!(correction, Correction::default());
    }

    #[test]
    fn a_process_that_does_much_else_teaches_little() {
        let mut correction = Correction::default();
        correction.learn(second(1.5, 0.01), 1.);
        assert!(correction.factor() < 1.4, "{correction:?}");
    }
}
