//! The cost of profiling.

mod bounded_verdicts;
mod max_overhead;
mod reported_cost;
