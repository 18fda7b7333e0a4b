//! The names that JIT compilers write down for profilers: perf maps, `/tmp/perf-PID.map` in the files of the process
//! (`tools/perf/Documentation/jit-interface.txt` in the kernel's sources).
//!
//! In: a process. Out: a [`PerfMap`], which names addresses and follows the file as it grows. What is in the file, and what
//! is in its place, is the process's choice: nothing but a regular file of the process's own user is read, up to a limit,
//! and lines that make no sense are passed over and counted.

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
