//! Stages of accounting an allocation, for the benchmark, which measures them by stopping the programs after
//! each.

/// The last stage to run, for an allocation seen by one probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Stage {
    /// All stages: always, except in the benchmark.
    #[default]
    All = 0,
    /// The cookie is decoded and the process looked up.
    Process = 1,
    /// Nested calls are recognized.
    Calls = 2,
    /// The words of the stack are copied, as many as earlier walks have needed. The first walk covers the
    /// whole stack.
    Words = 3,
    /// The row of the stack is found.
    Stack = 4,
    /// The time is read, and the allocation is counted for its stack.
    Counted = 5,
}

/// Repetitions of a [`Step`] per run, so that the kernel's overhead per run is small beside it.
pub const STEPS: u32 = 32;

/// A single step of accounting an allocation, for the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Step {
    /// No step.
    #[default]
    Nothing = 0,
    /// Read a word of the process's memory.
    Word = 1,
    /// Claim a buffer, copy as many words as for a stack of some ten frames, and release it.
    Copy = 2,
    /// Claim and release a buffer.
    Claim = 3,
    /// Look up the thread's storage.
    Storage = 4,
    /// Read the time.
    Time = 5,
    /// Add to two sums in a row of a table.
    Add = 6,
}
