//! Every way to lose or distort data, each with a name that reaches the user.

use crate::named::named_variants;
use crate::process::MAX_PROCESSES;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $kind:ident;)+) => {
        /// An event in the kernel side that affects the figures or explains them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Counter { $($(#[doc = $doc])+ $variant,)+ }

        named_variants! { Counter: $($(#[doc = $doc])+ $variant = $name;)+ }

        impl Counter {
            /// Effect of a nonzero value on the figures.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)+ }
            }
        }
    };
}

/// Significance of a counter for the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Data was lost or distorted: shown among the losses; `--strict` fails on it.
    Loss,
    /// Expected and harmless, but part of the picture.
    Note,
}

counters! {
    /// An allocation was not recorded because the live table and its spill were both full; its bytes are missing.
    LiveTableFull = "live_table_full", Loss;
    /// Bytes of the allocations that were not recorded because the live table was full.
    LiveTableFullBytes = "live_table_full_bytes", Loss;
    /// An allocation was recorded without its stack because the stack table was full, or the process's half of it; its bytes are counted under no stack.
    StackTableFull = "stack_table_full", Loss;
    /// A stack without live blocks was summed up with others of its call site, because a million others had allocated more; the totals are exact.
    StackSummedUp = "stack_summed_up", Note;
    /// A stack of a heap profile was summed up with others that hold little, because all of them take more memory than jjleak uses for a profile; the totals are exact.
    SmallStack = "small_stack", Note;
    /// A new stack was recorded without its frames because the frame storage was full; its bytes are counted under a stack without frames.
    FrameStorageFull = "frame_storage_full", Loss;
    /// An allocation was recorded without its stack because all scratch buffers of the CPU were in use.
    ScratchBusy = "scratch_busy", Loss;
    /// An allocation call was not followed because the kernel had no memory for its pending record; its block is missing.
    PendingFull = "pending_full", Loss;
    /// An allocation was recorded without its thread because the kernel had no memory for the thread's data; its bytes are counted under no thread.
    UnknownThread = "unknown_thread", Loss;
    /// An allocation call never returned (longjmp, exception, or a missed return); its pending record was dropped.
    StalePending = "stale_pending", Loss;
    /// An allocation call was taken for a part of another call that never returned; its block is missing.
    MutedCall = "muted_call", Loss;
    /// The thread that the probes were bound to ended, or another thread called exec; allocations are missing until jjleak has bound the probes to another thread.
    ProbesUnbound = "probes_unbound", Loss;
    /// An allocation returned without a pending record: the call was already running when jjleak attached, or its entry was missed.
    ReturnWithoutEntry = "return_without_entry", Note;
    /// A block was recorded at the address of a live block: the free in between was missed, and the older record was replaced.
    MissedFree = "missed_free", Loss;
    /// The result of a successful allocation could not be read from the target's memory; its bytes are missing.
    ResultUnreadable = "result_unreadable", Loss;
    /// A freed block is not in the table: it was allocated before jjleak attached, filtered by size, or lost; or glibc freed its cache of free blocks when a thread ended.
    UnknownFree = "unknown_free", Note;
    /// At the end of a thread, the C library freed blocks that are not in the table: its cache for the thread. They count as unknown frees, too.
    FreedByCLibrary = "freed_by_c_library", Note;
    /// An allocation by a function that does not call malloc was not followed: an operator new with unknown code, or a sanitizer's strdup; its bytes are missing.
    UnseenAllocation = "unseen_allocation", Loss;
    /// A freed block was inherited from the parent process at fork.
    InheritedFree = "inherited_free", Note;
    /// A process ran more programs one after the other than jjleak distinguishes; blocks of an earlier program can be counted as a later one's.
    ImageReused = "image_reused", Loss;
    /// A process had loaded an allocator before jjleak placed its probes; earlier allocations are missing.
    LateProbes = "late_probes", Loss;
    /// A program ended before jjleak had placed probes in its allocator, or had read its file; its allocations are missing.
    UnseenProgram = "unseen_program", Loss;
    /// A process ended before jjleak could open a file that it had mapped, or records of mapped files were lost; allocations by an allocator in that file are missing.
    UnseenFile = "unseen_file", Loss;
    /// A mapped file has an allocator, or a function of one, that jjleak cannot follow; its allocations are missing.
    UnfollowedAllocator = "unfollowed_allocator", Loss;
    /// The unwinder has no room for the rows of a mapped file; stacks through it are found by frame pointers, and can end early.
    UnwindTablesFull = "unwind_tables_full", Loss;
    /// Since jjleak began, the unwind rows of a file that no profiled process mapped any more were removed to make room for others.
    UnwindRowsRemoved = "unwind_rows_removed", Note;
    /// A new stack led into code that was just mapped, and there was no room for its copy, or the process had used its share: the stack ends there; the figures are exact.
    StackCopiesLost = "stack_copies_lost", Note;
    /// A process was not profiled because the process table was full.
    ProcessTableFull = "process_table_full", Loss;
    /// Since jjleak began, the kernel has skipped a run of one of its BPF programs, because the program was already running on that CPU; it may have been for a process that is not profiled.
    MissedRun = "missed_run", Note;
    /// All blocks of a mimalloc heap were freed at once, which is not followed; they still count as live.
    UnseenFree = "unseen_free", Loss;
    /// An operator new threw an exception, or a signal handler jumped out of malloc: nothing was allocated.
    Thrown = "thrown", Note;
    /// A system call that maps or unmaps memory was not followed because the ring buffer was full; mappings are missing, or unmapped ones still count.
    MappingEventLost = "mapping_event_lost", Loss;
    /// A mapping was not recorded because the table of mappings was full; its bytes are missing.
    MappingTableFull = "mapping_table_full", Loss;
    /// A page fault was not recorded because the ring buffer was full; its page is shown as one that nobody touched.
    PageFaultLost = "page_fault_lost", Loss;
    /// A touched page was not recorded because the table of pages was full; it is shown as one that nobody touched.
    PageTableFull = "page_table_full", Loss;
    /// An object in the Java heap was not recorded because the ring buffer was full, or because the JVM's structures are unknown or could not be read; what it stands for is missing.
    JavaObjectLost = "java_object_lost", Loss;
    /// An object in the Java heap was announced before the JVM's structures were known; the next object of its thread stands for it.
    JavaObjectEarly = "java_object_early", Note;
    /// A program announced a sampled allocation with arguments that cannot be read, or with a size or weight that no sampler has; it is not counted.
    SampleRefused = "sample_refused", Loss;
    /// A Java class was unloaded before its name was read; its objects are shown as those of an unknown class.
    UnnamedClass = "unnamed_class", Note;
    /// An allocator made a mapping, which is not counted: the blocks that it allocates from the mapping are.
    MappingOfAllocator = "mapping_of_allocator", Note;
    /// A Java frame has no name because its code or class was unloaded before it could be looked up; the figures are exact.
    UnnamedCode = "unnamed_code", Note;
    /// The process that reads symbols failed on a mapped file; its frames have no names, or neither lines nor inlined functions.
    SymbolsLost = "symbols_lost", Loss;
    /// The process ran another program (exec); accounting started again, without the old program's memory.
    Exec = "exec", Note;
    /// The process forked; its child is not followed, and the probes are soon removed from the child's memory.
    Fork = "fork", Note;
    /// A child shared the process's memory until it ran another program (vfork); what it allocated or freed meanwhile is not followed.
    SharedMemoryChild = "shared_memory_child", Note;
    /// An allocation was excluded by the size filters.
    Filtered = "filtered", Note;
    /// An allocation was not sampled; the figures are estimates that include it.
    Unsampled = "unsampled", Note;
    /// A line of the trace was not shown because the program allocates faster than lines are written; the figures are exact.
    TraceLost = "trace_lost", Loss;
    /// A block was freed while a snapshot was taken, and could not be kept for it: that report may lack a block that was live.
    SnapshotTorn = "snapshot_torn", Loss;
}

/// The counters of one process, by [`Counter::index`].
pub type CounterRow = [u64; Counter::COUNT];

/// Row of the counters that belong to no process. Those of processes are found by their slot.
pub const COMMON_COUNTERS: u32 = MAX_PROCESSES;

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = Self::ALL.len();

    /// Index into the counter map.
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_listed_by_index_and_named_uniquely() {
        let names: std::collections::BTreeSet<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        assert_eq!(names.len(), Counter::COUNT);
        for (index, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(counter.index() as usize, index);
            assert!(counter.meaning().ends_with('.'), "{}", counter.name());
        }
    }
}
