//! Cost of profiling, as JSON.

use serde::{Deserialize, Serialize};

use crate::profile::Cost;

/// Cost of profiling to the process since the previous report, an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostDocument {
    /// Always true: the cost of individual calls is not measured.
    pub estimate: bool,
    /// Length of the interval in seconds.
    pub over_s: f64,
    /// Allocations and frees per second.
    pub calls_per_s: f64,
    /// Nanoseconds per call on this machine; null if unknown.
    pub ns_per_call: Option<f64>,
    /// Share of the process's CPU time; null if unknown.
    pub of_cpu: Option<f64>,
    /// Share of a core; null if unknown.
    pub of_core: Option<f64>,
}

impl From<Cost> for CostDocument {
    fn from(cost: Cost) -> Self {
        Self {
            estimate: true,
            over_s: rounded(cost.over.as_secs_f64()),
            calls_per_s: rounded(cost.calls_per_second()),
            ns_per_call: cost.ns_per_call().map(rounded),
            of_cpu: cost.of_cpu().map(rounded),
            of_core: cost.of_core().map(rounded),
        }
    }
}

/// Rounds to six decimals, sufficient for an estimate; the result reads back unchanged.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
