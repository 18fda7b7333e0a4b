//! Kinds of resident memory, and claims on address ranges.

use std::ops::Range;

/// Use of resident memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Heap of a JVM.
    JavaHeap,
    /// Metadata of classes of a JVM.
    Metaspace,
    /// Compressed class pointers of a JVM.
    ClassSpace,
    /// Generated code.
    Code,
    /// Bookkeeping of a garbage collector.
    Gc,
    /// Class data that JVMs share.
    Cds,
    /// Stacks of threads.
    ThreadStacks,
    /// Chunks of malloc that the program uses.
    MallocLive,
    /// Chunks of malloc that are free.
    MallocFree,
    /// Chunks in the thread caches of malloc.
    MallocCache,
    /// The area that brk(2) extends.
    Brk,
    /// Private memory without a file.
    Anonymous,
    /// Mapped files.
    File,
    /// Shared memory without a file on a disk.
    Shared,
    /// Areas that the kernel maps.
    Other,
    /// Memory that cannot be classified.
    Unknown,
}

/// Use of an address range, as the owner of the memory describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Addresses; whole pages.
    pub range: Range<u64>,
    /// Use.
    pub kind: Kind,
    /// Name of the row that counts the range.
    pub name: String,
}
