//! The stages in which an allocation is accounted, for the benchmark: it measures what each takes by having programs end with
//! it.

/// The last stage of an allocation that is seen by one probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Stage {
    /// Nothing is left out: always, but for the benchmark.
    #[default]
    All = 0,
    /// What the cookie says, and whose books it is for.
    Process = 1,
    /// Whether the call is a part of another one.
    Calls = 2,
    /// The words of the stack are copied, as many as earlier walks have needed: the first one is walked whole.
    Words = 3,
    /// The row of the stack is found.
    Stack = 4,
    /// The time is taken, and the allocation is counted for its stack.
    Counted = 5,
}

/// How often a [`Step`] is done in one run, so that what the kernel takes to measure a run is little beside it.
pub const STEPS: u32 = 32;

/// A single step of what is done for an allocation, for the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Step {
    /// None.
    #[default]
    Nothing = 0,
    /// A word of the process's memory is read.
    Word = 1,
    /// A buffer is claimed, as many words as a stack of some ten frames has are copied there, and it is given back.
    Copy = 2,
    /// It is claimed and given back.
    Claim = 3,
    /// What is kept of the thread is looked up.
    Storage = 4,
    /// The time is taken.
    Time = 5,
    /// Two sums of a row of a table are added to.
    Add = 6,
}
