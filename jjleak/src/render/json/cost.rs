//! What being profiled costs, in JSON.

use serde::{Deserialize, Serialize};

use crate::profile::Cost;

/// What being profiled has cost the process since the report before: an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostDocument {
    /// Always true: nobody measures what each single call takes.
    pub estimate: bool,
    /// The span that it is of, in seconds.
    pub over_s: f64,
    /// Allocations and frees in a second.
    pub calls_per_s: f64,
    /// What each takes on this machine; null when it cannot be told.
    pub ns_per_call: Option<f64>,
    /// The share of the CPU time that the process uses; null when it cannot be told.
    pub of_cpu: Option<f64>,
    /// The share of a core; null when it cannot be told.
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

/// An estimate has no use for more than six digits behind the point; what is left is read back as it was.
fn rounded(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
