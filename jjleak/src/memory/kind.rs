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
    /// Direct buffers of Java code; their pages are malloc's.
    DirectBuffers,
    /// Tables of names and of interned strings of a JVM; their pages are malloc's.
    SymbolTables,
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

impl Kind {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::JavaHeap => "java_heap",
            Self::Metaspace => "metaspace",
            Self::ClassSpace => "class_space",
            Self::Code => "code",
            Self::Gc => "gc",
            Self::Cds => "cds",
            Self::ThreadStacks => "thread_stacks",
            Self::DirectBuffers => "direct_buffers",
            Self::SymbolTables => "symbol_tables",
            Self::MallocLive => "malloc_live",
            Self::MallocFree => "malloc_free",
            Self::MallocCache => "malloc_cache",
            Self::Brk => "brk",
            Self::Anonymous => "anonymous",
            Self::File => "file",
            Self::Shared => "shared",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }

    /// Words for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::JavaHeap => "Java heap",
            Self::Metaspace => "metaspace",
            Self::ClassSpace => "class space",
            Self::Code => "JIT code",
            Self::Gc => "garbage collector",
            Self::Cds => "class data archive",
            Self::ThreadStacks => "thread stacks",
            Self::DirectBuffers => "direct buffers",
            Self::SymbolTables => "symbol and string tables",
            Self::MallocLive => "malloc, in use",
            Self::MallocFree => "malloc, free",
            Self::MallocCache => "malloc, cached",
            Self::Brk => "brk",
            Self::Anonymous => "anonymous",
            Self::File => "file",
            Self::Shared => "shared memory",
            Self::Other => "kernel",
            Self::Unknown => "unknown",
        }
    }
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
