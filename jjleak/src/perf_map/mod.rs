//! Perf maps: names that JIT compilers write for profilers, `/tmp/perf-PID.map` in the mount namespace of the
//! process (`tools/perf/Documentation/jit-interface.txt` in the kernel's sources).
//!
//! In: a process. Out: a [`PerfMap`], which names addresses and follows the file as it grows. The process
//! controls the file and its path. Only a regular file of the process's own user is read, up to a limit;
//! invalid lines are skipped and counted.

mod file;
mod follow;
mod line;
mod ranges;
#[cfg(test)]
mod tests;

pub use file::{MAX_BYTES, Refusal};
pub use follow::{Outcome, PerfMap};
pub use line::{Line, parse};
pub use ranges::{MAX_NAME, NamedRanges};
