//! Probe sites: where to put a breakpoint, and what to read there.

use jjleak_common::cookie::{Inside, Signature};
use jjleak_common::samples::Site;

/// Effect of an allocator function on the accounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Allocates a block (`malloc`, `calloc`, `posix_memalign`).
    Allocate,
    /// Allocates a block or throws an exception (`operator new`): its exits are probed instead of its return.
    AllocateOrThrow,
    /// Replaces a block by another (`realloc`).
    Resize,
    /// Resizes a block in place and returns its real size (jemalloc's `xallocx`).
    ResizeInPlace,
    /// Frees a block (`free`).
    Free,
    /// Allocates a block or throws, with unknown exits: its calls are counted, its blocks are not.
    UnseenAllocation,
    /// Announces an object in a Java heap: `pointer` is its class, `count` its thread, `extra` the size of a new buffer.
    JavaObject,
    /// Frees blocks that are not among its arguments (`mi_heap_destroy`): its calls are counted.
    UnseenFree,
}

impl Role {
    /// Returns true if the result of the call matters: a return probe is armed at the same site.
    #[must_use]
    pub const fn probes_return(self) -> bool {
        matches!(self, Self::Allocate | Self::Resize | Self::ResizeInPlace)
    }

    /// Returns true if a tail call of such a function from another allocation function is accounted by its own probes.
    pub(super) const fn accounts_allocation(self) -> bool {
        self.probes_return() || matches!(self, Self::AllocateOrThrow)
    }
}

/// Position of a probe within a call, which determines its BPF program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProbePoint {
    /// The arguments of a function: it begins.
    Entry(Role),
    /// The block and the requested size: an instruction inside an allocating function.
    Block,
    /// The requested size: an instruction inside an allocating function; an [`Self::Exit`] follows.
    Size,
    /// A program announces an allocation that it has sampled ([`ProbeSite::sample`]).
    Sampled,
    /// A program announces that it frees such a block.
    SampleFreed,
    /// The block: an instruction with which functions that may throw return, or one that follows a [`Self::Size`].
    Exit,
}

impl ProbePoint {
    /// Returns true if the result of the call matters: a return probe is armed at the same site.
    #[must_use]
    pub const fn probes_return(self) -> bool {
        matches!(self, Self::Entry(role) if role.probes_return())
    }
}

/// An allocator function in a file, with the instruction chosen for its probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSite {
    /// Names of the function: aliases share one site.
    pub names: Vec<String>,
    /// Position within the call.
    pub point: ProbePoint,
    /// Meaning of the arguments.
    pub signature: Signature,
    /// The chosen instruction.
    pub placement: Placement,
    /// File offset of the function's first instruction.
    pub function_offset: u64,
    /// Number of known bytes: the whole function, or the first instruction if the symbol has no size.
    pub function_length: u64,
    /// Arguments of a probe at which a program announces samples.
    pub sample: Option<SampleProbe>,
}

/// Arguments and state of a probe at which a program announces samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleProbe {
    /// The arguments.
    pub site: Site,
    /// File offset of the counter of consumers, which the kernel keeps: programs announce nothing while it is 0.
    pub semaphore: Option<u64>,
    /// Number of the arguments in the kernel side's table, once attached.
    pub number: u16,
}

impl ProbeSite {
    /// File offset of the instruction to probe.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.function_offset.wrapping_add(self.placement.delta)
    }

    /// File offset of the instruction that represents the function in stacks.
    #[must_use]
    pub const fn frame_offset(&self) -> u64 {
        if self.placement.inside.is_some() { self.function_offset } else { self.offset() }
    }

    /// The names that users know the function by.
    #[must_use]
    pub fn label(&self) -> String {
        let mut names: Vec<_> = self.names.iter().map(|name| plain(name)).collect();
        names.dedup();
        names.join("/")
    }
}

/// C++ spelling of a mangled name (Itanium C++ ABI, "Operator Encodings").
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
    /// Distance in bytes from the function's first instruction; wraps around for code that precedes it.
    pub delta: u64,
    /// Distance in 8-byte words from the stack pointer up to the canonical frame address (CFA) at the instruction.
    pub cfa_words: u16,
    /// The kernel's method of stepping over the breakpoint.
    pub stepping: Stepping,
    /// Registers that hold the arguments at the instruction, if it is not the function's first.
    pub inside: Option<Inside>,
}

/// The kernel's method of stepping over a probed instruction, cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stepping {
    /// The kernel emulates a no-op or a jump.
    EmulatedBranch,
    /// The kernel emulates a push or a call, which also writes to the stack.
    EmulatedPush,
    /// The kernel executes the instruction out of line and single-steps it: about ten times the cost on virtual machines.
    SingleStep,
}
