//! A probe site: where to put a breakpoint, and what to read there.

use jjleak_common::cookie::Signature;

/// What an allocator function does to the books. Each role has one BPF program for its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Gives a new block (`malloc`, `calloc`, `posix_memalign`).
    Allocate,
    /// Turns a block into another one (`realloc`).
    Resize,
    /// Takes a block back (`free`).
    Free,
    /// Gives a new block in a way that no probe can follow (`operator new` that throws): its calls are counted, its
    /// blocks are not.
    UnseenAllocation,
    /// Resizes a block in place in a way that no probe can follow (jemalloc's `xallocx`): its calls are counted.
    UnseenResize,
}

impl Role {
    /// Whether the call's result matters, so that its return carries a probe too, armed at the same site.
    #[must_use]
    pub const fn probes_return(self) -> bool {
        matches!(self, Self::Allocate | Self::Resize)
    }
}

/// An allocator function found in a file, and the instruction that was chosen for its probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSite {
    /// Names of the function: aliases share one site.
    pub names: Vec<String>,
    /// What the function does.
    pub role: Role,
    /// Which of its arguments mean what.
    pub signature: Signature,
    /// The chosen instruction.
    pub placement: Placement,
    /// Offset in the file of the function's first instruction.
    pub function_offset: u64,
    /// Bytes of it that are known: all, or the first instruction's where the symbol has no size.
    pub function_length: u64,
}

impl ProbeSite {
    /// Offset in the file of the instruction to probe.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.function_offset + self.placement.delta
    }
}

/// The instruction of a function that carries the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Distance in bytes from the function's first instruction.
    pub delta: u64,
    /// Distance in 8-byte words from the stack pointer up to the canonical frame address there.
    pub cfa_words: u16,
    /// What the kernel does to get past the breakpoint.
    pub stepping: Stepping,
}

/// How the kernel gets past a probed instruction, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stepping {
    /// It emulates a no-op or a jump.
    EmulatedBranch,
    /// It emulates a push or a call, which also writes to the stack.
    EmulatedPush,
    /// It executes the instruction out of line and single-steps it: some ten times the cost on virtual machines.
    SingleStep,
}
