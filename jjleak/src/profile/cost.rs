//! Cost of being profiled: estimates.

use std::time::Duration;

/// Estimated cost of profiling to a process in a period. Calls are those accounted for; the time per call is
/// measured on functions of jjleak's own, and by the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// The period: since the previous report.
    pub over: Duration,
    /// Allocations and frees.
    pub calls: u64,
    /// CPU time of the process spent in probes; `None` if the time per call is unknown.
    pub spent: Option<Duration>,
    /// CPU time of the process, probes included; `None` if unknown.
    pub cpu: Option<Duration>,
}

impl Cost {
    /// Allocations and frees per second.
    #[must_use]
    pub fn calls_per_second(&self) -> f64 {
        share(self.calls_f64(), self.over.as_secs_f64()).unwrap_or_default()
    }

    /// Average time per call.
    #[must_use]
    pub fn ns_per_call(&self) -> Option<f64> {
        share(self.spent?.as_secs_f64() * 1e9, self.calls_f64())
    }

    /// Share of the process's CPU time, at most 1.
    #[must_use]
    pub fn of_cpu(&self) -> Option<f64> {
        Some(share(self.spent?.as_secs_f64(), self.cpu?.as_secs_f64())?.min(1.))
    }

    /// Share of a core.
    #[must_use]
    pub fn of_core(&self) -> Option<f64> {
        share(self.spent?.as_secs_f64(), self.over.as_secs_f64())
    }

    /// Combines the costs of several processes over the longest of their periods.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            over: self.over.max(other.over),
            calls: self.calls.saturating_add(other.calls),
            spent: self.spent.zip(other.spent).map(|(one, other)| one.saturating_add(other)),
            cpu: self.cpu.zip(other.cpu).map(|(one, other)| one.saturating_add(other)),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an average has no use for more than 53 bits")]
    const fn calls_f64(&self) -> f64 {
        self.calls as f64
    }
}

fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.).then(|| part / whole)
}
