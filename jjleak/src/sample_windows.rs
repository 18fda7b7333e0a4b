//! Windows of time in which allocations are counted, and estimates of the totals over all time.
//!
//! Time is divided into consecutive *strata*. Allocations are counted in one window of each stratum, placed in it at
//! random; a counted block then stands for stratum length / window length blocks. The length of a stratum is fixed before
//! its window begins, so that what a window sees cannot influence its own weight.
//!
//! The sampling unit is the window, not the block, so the error follows from how much neighbouring windows differ. The
//! variance of a total is the sum of the strata's variances; the variance of a stratum is estimated from the difference to
//! the next one (collapsed strata; Wolter, "Introduction to Variance Estimation", 2.5). This overestimates where a program
//! changes slowly and where there are few windows.
//!
//! Probes slow a program down in windows. Weights are higher by that factor, as its own use of CPUs shows ([`Pace`]).
//!
//! Frees are followed between windows, too, or live blocks are not known: a block freed unseen looks live for ever, and no
//! weight makes up for it.

mod slowdown;

use jjleak_common::sampling::WEIGHT_ONE;

pub use slowdown::Pace;
use slowdown::Slowdown;

/// Maximum number of windows kept; beyond it, neighbours are merged in pairs. Enough for a day and a half of windows every
/// two seconds, and for nearly two hours of the shortest strata that are planned.
const MAX_WINDOWS: usize = 1 << 16;

/// A window, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Window {
    begin_ns: u64,
    end_ns: u64,
    /// End of its stratum.
    stratum_end_ns: u64,
    /// Time in which allocations were counted: shorter than the span from begin to end in merged windows.
    counted_ns: u64,
    pace: Pace,
    /// Allocations of all call sites in it.
    seen: Seen,
}

/// The counting windows of a process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Windows {
    begin_ns: u64,
    past: Vec<Window>,
    /// Start of uninterrupted counting, while everything is counted.
    whole_since_ns: Option<u64>,
    /// Blocks may have been freed unseen.
    misses_frees: bool,
}

/// Allocations counted in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// Blocks.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Seen {
    const fn with(self, other: Self) -> Self {
        Self { objects: self.objects + other.objects, bytes: self.bytes + other.bytes }
    }
}

impl Windows {
    /// Counts everything from this instant on.
    #[must_use]
    pub const fn whole_from(begin_ns: u64) -> Self {
        Self { begin_ns, past: Vec::new(), whole_since_ns: Some(begin_ns), misses_frees: false }
    }

    /// Counts in windows from this instant on.
    #[must_use]
    pub const fn from(begin_ns: u64) -> Self {
        Self { begin_ns, past: Vec::new(), whole_since_ns: None, misses_frees: false }
    }

    /// Records that blocks may be freed unseen from now on.
    pub const fn lose_frees(&mut self) {
        self.misses_frees = true;
    }

    /// Returns true if each free since the start was seen: live blocks are known.
    #[must_use]
    pub const fn follows_frees(&self) -> bool {
        !self.misses_frees
    }

    /// Ends uninterrupted counting.
    pub fn end_whole(&mut self, now_ns: u64) {
        if let Some(begin_ns) = self.whole_since_ns.take() {
            self.push(begin_ns, now_ns, now_ns, Pace::default());
        }
    }

    /// Records a finished window, the end of its stratum, and the program's use of CPUs.
    pub fn push(&mut self, begin_ns: u64, end_ns: u64, stratum_end_ns: u64, pace: Pace) {
        let counted_ns = end_ns.saturating_sub(begin_ns);
        if counted_ns == 0 {
            return;
        }
        if self.past.len() == MAX_WINDOWS {
            let pairs = self.past.chunks(2).map(|pair| {
                let (first, last) = (pair[0], pair[pair.len() - 1]);
                let counted_ns = pair.iter().map(|window| window.counted_ns).sum();
                let pace = pair[1..].iter().fold(first.pace, |pace, window| pace.with(window.pace));
                let seen = pair[1..].iter().fold(first.seen, |seen, window| seen.with(window.seen));
                Window { begin_ns: first.begin_ns, counted_ns, pace, seen, ..last }
            });
            self.past = pairs.collect();
        }
        let stratum_end_ns = stratum_end_ns.max(end_ns);
        let seen = Seen::default();
        self.past.push(Window { begin_ns, end_ns, stratum_end_ns, counted_ns, pace, seen });
    }

    /// Adds allocations to the last window.
    pub fn add_seen(&mut self, seen: Seen) {
        if let Some(last) = self.past.last_mut() {
            last.seen = last.seen.with(seen);
        }
    }

    /// Estimated variances of the number of blocks and bytes that were allocated, as of this instant.
    #[must_use]
    pub fn allocated_variances(&self, now_ns: u64) -> (f64, f64) {
        let seen: Vec<_> = self.past.iter().map(|window| window.seen).enumerate().collect();
        self.at(now_ns).variances(&seen)
    }

    /// Factor by which the program is slower in windows than between them.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.measured_slowdown().factor
    }

    fn measured_slowdown(&self) -> Slowdown {
        let paces: Vec<_> = self.past.iter().map(|window| window.pace).collect();
        Slowdown::of(&paces)
    }

    /// Returns true if everything is being counted and has been since the start.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.whole_since_ns.is_some()
    }

    /// Weight that the last window will have once its stratum has ended and the next one has begun, without the slow-down.
    #[must_use]
    pub fn settled_weight(&self) -> f64 {
        self.past.last().map_or(1., |last| self.spans_at(last.stratum_end_ns).last_weight())
    }

    /// Weight of the last window as of this instant, without the slow-down.
    #[must_use]
    pub fn last_weight(&self, now_ns: u64) -> f64 {
        self.spans_at(now_ns).last_weight()
    }

    /// Number of blocks that a counted block stands for at this instant, on average.
    #[must_use]
    pub fn mean_weight(&self, now_ns: u64) -> u32 {
        let counted_ns: u64 = self.past.iter().map(|window| window.counted_ns).sum();
        if self.is_whole() || counted_ns == 0 {
            return 1;
        }
        let weight = now_ns.saturating_sub(self.begin_ns).div_ceil(counted_ns);
        u32::try_from(weight).unwrap_or(u32::MAX).max(1)
    }

    /// Number of finished windows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.past.len()
    }

    /// Returns true if no window has finished.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.past.is_empty()
    }

    /// Windows and their weights as of this instant.
    #[must_use]
    pub fn at(&self, now_ns: u64) -> Weighted {
        let mut weighted = self.spans_at(now_ns);
        let slowdown = self.measured_slowdown();
        weighted.slower_error = slowdown.error;
        for weight in weighted.weights.iter_mut().filter(|weight| **weight > 1.) {
            *weight *= slowdown.factor;
        }
        weighted
    }

    /// Windows, each with the time that it stands for.
    fn spans_at(&self, now_ns: u64) -> Weighted {
        let mut weighted = Weighted::default();
        let mut stratum_begin_ns = self.begin_ns;
        for (index, window) in self.past.iter().enumerate() {
            let is_last = index + 1 == self.past.len() && self.whole_since_ns.is_none();
            // Until there is another window, the last one also stands for the time since.
            let end_ns = if is_last { now_ns } else { window.stratum_end_ns.min(now_ns) }.max(window.end_ns);
            let stratum_ns = end_ns.saturating_sub(stratum_begin_ns).max(window.counted_ns);
            weighted.add(window.begin_ns, window.end_ns, stratum_ns, window.counted_ns);
            stratum_begin_ns = end_ns;
        }
        if let Some(begin_ns) = self.whole_since_ns {
            weighted.add(begin_ns, u64::MAX, 1, 1);
        }
        weighted
    }
}

/// Windows with their weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Weighted {
    begins_ns: Vec<u64>,
    ends_ns: Vec<u64>,
    /// Length of each stratum over that of its window, at least 1, times the slow-down.
    weights: Vec<f64>,
    /// Standard error of the slow-down, relative to it.
    slower_error: f64,
    /// Length of each stratum in nanoseconds.
    strata_ns: Vec<f64>,
}

impl Weighted {
    #[expect(clippy::cast_precision_loss, reason = "weights are estimates")]
    fn add(&mut self, begin_ns: u64, end_ns: u64, stratum_ns: u64, counted_ns: u64) {
        self.begins_ns.push(begin_ns);
        self.ends_ns.push(end_ns);
        self.weights.push(stratum_ns as f64 / counted_ns as f64);
        self.strata_ns.push(stratum_ns as f64);
    }

    /// Index of the window that contains an instant; `None` outside of all windows, where nothing is counted.
    #[must_use]
    pub fn of(&self, time_ns: u64) -> Option<usize> {
        let window = self.begins_ns.partition_point(|begin_ns| *begin_ns <= time_ns).checked_sub(1)?;
        (time_ns <= self.ends_ns[window]).then_some(window)
    }

    /// Number of windows.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.weights.len()
    }

    /// Returns true if there are no windows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// First and last instant of a window.
    #[must_use]
    pub fn bounds_ns(&self, window: usize) -> (u64, u64) {
        (self.begins_ns[window], self.ends_ns[window])
    }

    /// Number of blocks that a block of this window stands for.
    #[must_use]
    pub fn weight(&self, window: usize) -> f64 {
        self.weights[window]
    }

    /// [`Self::weight`] as a fixed-point number with [`jjleak_common::sampling::WEIGHT_BITS`] fractional bits.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "weights are at least 1 and far from overflowing"
    )]
    pub fn fixed_weight(&self, window: usize) -> u64 {
        (self.weights[window] * WEIGHT_ONE as f64).round() as u64
    }

    /// Number of blocks that a block of the last window stands for.
    #[must_use]
    pub fn last_weight(&self) -> f64 {
        self.weights.last().copied().unwrap_or(1.)
    }

    /// Estimated variances of the weighted sums of blocks and of bytes, from the counts by window index. Windows without
    /// counts may be omitted.
    #[must_use]
    pub fn variances(&self, seen: &[(usize, Seen)]) -> (f64, f64) {
        let totals = |part: fn(&Seen) -> u64| {
            let mut totals = vec![0.; self.weights.len()];
            for (window, seen) in seen {
                #[expect(clippy::cast_precision_loss, reason = "a variance is an estimate")]
                let seen = part(seen) as f64;
                totals[*window] += seen * self.weights[*window];
            }
            let estimated: f64 = totals
                .iter()
                .zip(&self.weights)
                .filter(|(_, weight)| **weight > 1.)
                .map(|(total, _)| total)
                .sum();
            self.variance(&totals) + (SLOWER.hypot(self.slower_error) * estimated).powi(2)
        };
        (totals(|seen| seen.objects), totals(|seen| seen.bytes))
    }

    /// Variance of the sum of the strata's estimated totals.
    fn variance(&self, totals: &[f64]) -> f64 {
        let sampled: Vec<usize> = (0..totals.len()).filter(|window| self.weights[*window] > 1.).collect();
        #[expect(clippy::cast_precision_loss, reason = "a few thousand windows")]
        let count = sampled.len() as f64;
        if count < 1. {
            return 0.;
        }
        // Variance if windows were independent draws: the only estimate for a single window, and an upper bound otherwise.
        let independent =
            sampled.iter().map(|&window| totals[window].powi(2) * (1. - 1. / self.weights[window]));
        let independent: f64 = independent.sum();
        if count < FEW {
            return independent;
        }
        // Compares rates, scaled to the mean length: strata of different lengths would otherwise differ by that alone.
        let differences = sampled.windows(2).map(|pair| {
            let rate = |window: usize| totals[window] / self.strata_ns[window];
            let mean_ns = f64::midpoint(self.strata_ns[pair[0]], self.strata_ns[pair[1]]);
            let left_out = 1. - f64::midpoint(1. / self.weights[pair[0]], 1. / self.weights[pair[1]]);
            ((rate(pair[0]) - rate(pair[1])) * mean_ns).powi(2) * left_out
        });
        let neighbours = differences.sum::<f64>() * count / (2. * (count - 1.));
        (neighbours * uncertain(count)).min(independent)
    }
}

/// Share by which a program may allocate less in windows than its own use of CPUs tells: it catches up between them. Measured: 0.3 to
/// 0.8 % of a program with work for each millisecond.
const SLOWER: f64 = 0.01;

/// Factor that widens a variance for being itself estimated from `count` neighbours' differences, such that three standard
/// errors cover as many estimates as with a normal distribution (Student's t).
///
/// Two thirds of overlapping differences count as independent (von Neumann 1941). The quantile is the Cornish-Fisher
/// expansion.
fn uncertain(count: f64) -> f64 {
    const NORMAL: f64 = 3.;
    let freedom = 2. * (count - 1.) / 3.;
    let student = NORMAL + 7.5 / freedom + 17.25 / freedom.powi(2) + 30.2 / freedom.powi(3);
    (student / NORMAL).powi(2)
}

/// Minimum number of windows from which differences between neighbours are a usable estimate.
const FEW: f64 = 6.;

#[cfg(test)]
mod tests;
