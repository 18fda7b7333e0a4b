//! The cost of profiling.

mod bounded_verdicts;
mod max_overhead;
mod own_samples;
mod reported_cost;
