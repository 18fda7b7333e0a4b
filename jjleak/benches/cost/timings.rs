//! Repeated timings, and their summary.

use serde::Serialize;

/// Spread above which a figure is noisy ([`Figure::spread_percent`]).
pub(crate) const NOISY_PERCENT: f64 = 10.0;

#[derive(Debug, Default, Clone)]
pub(crate) struct Timings(pub(crate) Vec<f64>);

/// Summary of timings.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    /// Interquartile range, in per cent of the median.
    pub(crate) spread_percent: f64,
    pub(crate) timings: usize,
}

impl Timings {
    /// The value below which `share` of the timings lie.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index into a few timings"
        )]
        let index = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
        sorted.get(index).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Summary; `None` without timings.
    pub(crate) fn figure(&self) -> Option<Figure> {
        let median = self.median();
        let spread_percent = (self.quantile(0.75) - self.quantile(0.25)) / median * 100.0;
        (!self.0.is_empty()).then_some(Figure { median, spread_percent, timings: self.0.len() })
    }
}

impl Figure {
    /// Figure of a single timing.
    pub(crate) const fn of(value: f64) -> Self {
        Self { median: value, spread_percent: 0., timings: 1 }
    }

    pub(crate) fn is_noisy(&self) -> bool {
        self.spread_percent > NOISY_PERCENT
    }
}
