//! The cost of profiling.

mod max_overhead;
mod reported_cost;
