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
