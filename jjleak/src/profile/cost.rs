//! What being profiled costs a process: estimates.

use std::time::Duration;

/// What being profiled has cost a process in a span of time. Calls are those that the books show; what each takes is
/// measured on functions of jjleak's own, and by the kernel. It is an estimate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// The span: since the report before.
    pub over: Duration,
    /// Allocations and frees in it.
    pub calls: u64,
    /// CPU time that the probes took of the process; `None` when it cannot be told what a call takes.
    pub spent: Option<Duration>,
    /// CPU time that the process has used, that of the probes included; `None` when it is not known.
    pub cpu: Option<Duration>,
}

impl Cost {
    /// Allocations and frees in a second.
    #[must_use]
    pub fn calls_per_second(&self) -> f64 {
        share(self.calls_f64(), self.over.as_secs_f64()).unwrap_or_default()
    }

    /// What a call takes, on average.
    #[must_use]
    pub fn ns_per_call(&self) -> Option<f64> {
        share(self.spent?.as_secs_f64() * 1e9, self.calls_f64())
    }

    /// The share of the CPU time that the process uses; 1 at most.
    #[must_use]
    pub fn of_cpu(&self) -> Option<f64> {
        Some(share(self.spent?.as_secs_f64(), self.cpu?.as_secs_f64())?.min(1.))
    }

    /// The share of a core.
    #[must_use]
    pub fn of_core(&self) -> Option<f64> {
        share(self.spent?.as_secs_f64(), self.over.as_secs_f64())
    }

    /// Of several processes together, in the longest of their spans.
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
