//! Every way to lose or distort data, each with a name that reaches the user.

use crate::process::MAX_PROCESSES;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $kind:ident;)+) => {
        /// Something that went wrong, or is worth knowing, in the kernel side.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Counter { $($(#[doc = $doc])+ $variant,)+ }

        impl Counter {
            /// All counters, in the order of their index.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in reports, JSON and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// One sentence for the user: what happened and what it does to the figures.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }

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
    /// An allocation was recorded without its stack because the stack table was full; its bytes stand under no stack.
    StackTableFull = "stack_table_full", Loss;
    /// A new stack was recorded without its frames because the frame storage was full; its bytes stand under a stack without frames.
    FrameStorageFull = "frame_storage_full", Loss;
    /// An allocation was recorded without its stack because all scratch buffers of the CPU were in use.
    ScratchBusy = "scratch_busy", Loss;
    /// An allocation call was not followed because the kernel gave no memory for its pending record.
    PendingFull = "pending_full", Loss;
    /// An allocation was recorded without its thread because the kernel gave no memory for what is known of it; its bytes stand under no thread.
    UnknownThread = "unknown_thread", Loss;
    /// An allocation call never returned (longjmp, exception, or a return the kernel missed); its pending record was dropped.
    StalePending = "stale_pending", Loss;
    /// An allocation call was taken for a part of another one that then never returned; its block is missing.
    MutedCall = "muted_call", Loss;
    /// The thread that the probes were bound to was gone (the main thread ended, or another one called exec); what was allocated until jjleak bound them to another one is missing.
    ProbesUnbound = "probes_unbound", Loss;
    /// An allocation returned without a pending record: the call was already running when jjleak attached, or its entry was missed.
    ReturnWithoutEntry = "return_without_entry", Note;
    /// A block was recorded at an address already recorded as live: the free between was missed, and the older record was replaced.
    MissedFree = "missed_free", Loss;
    /// The result of a successful allocation could not be read from the target's memory; its bytes are missing.
    ResultUnreadable = "result_unreadable", Loss;
    /// A block was freed that is not in the table: it was allocated before jjleak attached, filtered by size, or counted among the losses; or a thread ended, and glibc freed what it had kept for it, though that was free already.
    UnknownFree = "unknown_free", Note;
    /// A thread ended, and the last that it had freed were blocks that are not in the table, by the C library itself: what the library had kept for it. They count among the others, too.
    FreedByCLibrary = "freed_by_c_library", Note;
    /// An allocation by a function that does not call malloc was not followed: an operator new whose code jjleak does not understand, or the strdup of a sanitizer; its bytes are missing.
    UnseenAllocation = "unseen_allocation", Loss;
    /// A block was freed that the process was born with: its memory is a copy of its parent's.
    InheritedFree = "inherited_free", Note;
    /// A process ran so many programs one after the other that what an earlier one had left could be taken for a later one's; its figures can be wrong.
    ImageReused = "image_reused", Loss;
    /// An allocator's probes were put into a process that had it loaded already: what it gave before is missing.
    LateProbes = "late_probes", Loss;
    /// A program that the process ran was over before jjleak had put probes into its allocator, or had read its file; what it allocated is missing.
    UnseenProgram = "unseen_program", Loss;
    /// A process was over before jjleak could open a file that it had mapped, or records of mapped files were lost; allocations by an allocator in that file are missing.
    UnseenFile = "unseen_file", Loss;
    /// A file that the process maps has an allocator, or a function of one, that jjleak cannot follow; what it gives is missing.
    UnfollowedAllocator = "unfollowed_allocator", Loss;
    /// A process that should be profiled was not, because the process table was full.
    ProcessTableFull = "process_table_full", Loss;
    /// Since jjleak began, the kernel has left out a run of one of its programs, as it does when that is running on the same processor already; whichever process of the host it was for, and jjleak's programs look at many that are not profiled.
    MissedRun = "missed_run", Note;
    /// All blocks of a heap of mimalloc's were freed at once, which is not followed; they stand as live.
    UnseenFree = "unseen_free", Loss;
    /// An operator new ended without returning, as it does when it throws an exception, or a signal handler jumped out of a malloc: it allocated nothing.
    Thrown = "thrown", Note;
    /// A system call that maps or unmaps memory was not followed because the ring buffer to jjleak was full; mappings are missing, or stand although they are gone.
    MappingEventLost = "mapping_event_lost", Loss;
    /// A mapping was not recorded because jjleak keeps no more of them; its bytes are missing.
    MappingTableFull = "mapping_table_full", Loss;
    /// A mapping was made inside an allocator and is not counted as such: what is allocated from it is.
    MappingOfAllocator = "mapping_of_allocator", Note;
    /// A frame of Java code has no name because the code, or its class, was gone before it could be looked up; the figures are not concerned.
    UnnamedCode = "unnamed_code", Note;
    /// The process replaced its program (exec); the books began anew, and what the old program had allocated is gone.
    Exec = "exec", Note;
    /// The process forked; its child is not followed, and the probes are soon taken out of the child's memory.
    Fork = "fork", Note;
    /// A child shared the process's memory until it ran another program (vfork and its like); what it allocated or freed in the meantime, as no well-behaved program does, is not followed.
    SharedMemoryChild = "shared_memory_child", Note;
    /// An allocation was left out by the size filters.
    Filtered = "filtered", Note;
    /// An allocation was left out by sampling; the figures are estimates of all, this one included.
    Unsampled = "unsampled", Note;
    /// A line of the trace was not shown because the program allocates faster than they are written; the figures are not concerned.
    TraceLost = "trace_lost", Loss;
    /// A block was freed while a snapshot was being taken, and could not be kept for it: that report may lack the block, which then lived.
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
