//! A probe site: where to put a breakpoint, and what to read there.

use jjleak_common::cookie::{Inside, Signature};

/// What an allocator function does to the books. Each role has one BPF program for its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Gives a new block (`malloc`, `calloc`, `posix_memalign`).
    Allocate,
    /// Gives a new block or throws an exception (`operator new`), so that its exits are probed and not its return.
    AllocateOrThrow,
    /// No function, but an instruction of one that gives a new block, at which both the block and the requested size are
    /// known.
    Given,
    /// No function, but an instruction of one that gives a new block, at which the requested size is known; an [`Self::Exit`]
    /// follows.
    Noted,
    /// No function, but an instruction by which functions that may throw return, or at which the block is known that a
    /// [`Self::Noted`] call gives.
    Exit,
    /// Turns a block into another one (`realloc`).
    Resize,
    /// Resizes a block where it is, and returns its real size (jemalloc's `xallocx`).
    ResizeInPlace,
    /// Takes a block back (`free`).
    Free,
    /// Gives a new block or throws, and its exits are not known: its calls are counted, its blocks are not.
    UnseenAllocation,
    /// Takes back blocks that it does not name (`mi_heap_destroy`): its calls are counted.
    UnseenFree,
}

impl Role {
    /// Whether the call's result matters, so that its return carries a probe too, armed at the same site.
    #[must_use]
    pub const fn probes_return(self) -> bool {
        matches!(self, Self::Allocate | Self::Resize | Self::ResizeInPlace)
    }

    /// Whether a call that comes here in tail position from another allocation function is accounted by itself.
    pub(super) const fn accounts_allocation(self) -> bool {
        self.probes_return() || matches!(self, Self::AllocateOrThrow)
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
        self.function_offset.wrapping_add(self.placement.delta)
    }

    /// Offset in the file of the instruction that stands for the function on stacks.
    #[must_use]
    pub const fn frame_offset(&self) -> u64 {
        if self.placement.inside.is_some() { self.function_offset } else { self.offset() }
    }

    /// The names by which people know the function.
    #[must_use]
    pub fn label(&self) -> String {
        let mut names: Vec<_> = self.names.iter().map(|name| plain(name)).collect();
        names.dedup();
        names.join("/")
    }
}

/// What C++ calls the function (Itanium C++ ABI, "Operator Encodings").
fn plain(name: &str) -> &str {
    match name.get(..4) {
        Some("_Znw") => "operator new",
        Some("_Zna") => "operator new[]",
        Some("_Zdl") => "operator delete",
        Some("_Zda") => "operator delete[]",
        _ => name,
    }
}

/// The instruction of a function that carries the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Distance in bytes from the function's first instruction; wraps around for code that lies before it.
    pub delta: u64,
    /// Distance in 8-byte words from the stack pointer up to the canonical frame address there.
    pub cfa_words: u16,
    /// What the kernel does to get past the breakpoint.
    pub stepping: Stepping,
    /// What can be read there, where that is not what the function was called with.
    pub inside: Option<Inside>,
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
