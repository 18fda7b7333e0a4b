//! Stages of accounting an allocation, for the benchmark, which measures them by stopping the programs after
//! each. Only the object with the feature `measuring` can do that.

/// Constants of that object.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measurement {
    /// Number of the [`Stage`] after which programs end.
    pub last_stage: u32,
    /// Number of the [`Step`] that programs repeat.
    pub step: u32,
}

impl Measurement {
    /// Nothing ends early or is repeated.
    pub const NONE: Self = Self { last_stage: Stage::All as u32, step: Step::Nothing as u32 };
}

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

const _: () = assert!(size_of::<Measurement>() == 2 * 4);

// SAFETY: `repr(C)`, integers only, without padding, as asserted above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Measurement {}
