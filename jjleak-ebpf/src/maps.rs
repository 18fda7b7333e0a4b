//! BPF maps, and globals set by the loader.

use core::{
    ffi::c_void,
    ptr::{self, read_volatile},
};

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_LOCAL_STORAGE_GET_F_CREATE, bpf_map_type},
    btf_maps::{self, ArrayOfMaps},
    helpers::generated::{bpf_get_current_task_btf, bpf_task_storage_get},
    macros::{btf_map, map},
    maps::{Array, HashMap, Queue, RingBuf},
};
use jjleak_common::{
    counter::{COMMON_COUNTERS, Counter, CounterRow},
    freed::FreedLog,
    java_heap::{FollowedHeap, ThreadHeap},
    jvm::CodeCache,
    live::{self, DEFAULT_BLOCKS, LiveSet, Record},
    mapping::UNUSED_RING_BYTES,
    pending::Calls,
    process::{MAX_PROCESSES, ProcessRow, ProcessSlot},
    samples::Site,
    stack::{self, DEFAULT_FRAME_BYTES, DEFAULT_STACKS, FIRST_ROW, StackRow, StackTotals, StackUsage},
    unfinished::{self, UnfinishedUse},
    unwind::{self, CodeFile, CodeRows, MappingTable},
};

use crate::{constants::setting, memory};

#[map]
pub(crate) static PROCESSES: Array<ProcessRow> = Array::with_max_entries(MAX_PROCESSES, BPF_F_MMAPABLE);
#[map]
pub(crate) static TRACKED: HashMap<u32, u32> =
    HashMap::with_max_entries(2 * MAX_PROCESSES, BPF_F_NO_PREALLOC);
#[map]
pub(crate) static FREE_SLOTS: Queue<u32> = Queue::with_max_entries(MAX_PROCESSES, 0);
#[map]
pub(crate) static LIVE: Array<LiveSet> =
    Array::with_max_entries(1 << live::sets_log2(DEFAULT_BLOCKS), BPF_F_MMAPABLE);
#[map]
pub(crate) static SPILL: HashMap<u64, Record> =
    HashMap::with_max_entries(live::spill_entries(DEFAULT_BLOCKS), BPF_F_NO_PREALLOC);
#[map]
pub(crate) static STACKS: Array<StackRow> =
    Array::with_max_entries(FIRST_ROW + (1 << stack::rows_log2(DEFAULT_STACKS)), BPF_F_MMAPABLE);
/// Written by the user side.
#[map]
static STACK_DOUBLINGS: Array<u32> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub(crate) static STACK_USAGE: Array<StackUsage> = Array::with_max_entries(MAX_PROCESSES, BPF_F_MMAPABLE);
/// Set by the loader to the number of stack rows if totals are requested.
#[map]
pub(crate) static TOTALS: Array<StackTotals> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub(crate) static FREED: Array<FreedLog> = Array::with_max_entries(1, BPF_F_MMAPABLE);
/// One page, unless the loader makes it larger.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);
#[map]
pub(crate) static FRAMES: RingBuf = RingBuf::with_byte_size(DEFAULT_FRAME_BYTES, 0);
/// A chunk of unwind rows. All have one size, so that the kernel inlines lookups in them.
type Chunk = btf_maps::Array<[u64; unwind::CHUNK_WORDS], 1, { BPF_F_MMAPABLE as usize }>;
#[btf_map]
pub(crate) static ROWS: ArrayOfMaps<Chunk, { unwind::CHUNKS }> = ArrayOfMaps::new();
#[map]
pub(crate) static GROUPS: Array<[u32; unwind::GROUPS]> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
pub(crate) static UNFINISHED: RingBuf = RingBuf::with_byte_size(unfinished::RING_BYTES, 0);
/// By slot of the process.
#[map]
pub(crate) static UNFINISHED_USE: Array<UnfinishedUse> = Array::with_max_entries(MAX_PROCESSES, 0);
#[map]
pub(crate) static MAPPINGS: Array<MappingTable> =
    Array::with_max_entries(1 + unwind::TABLES_PER_PROCESS, BPF_F_MMAPABLE);
#[map]
pub(crate) static JVMS: Array<CodeCache> = Array::with_max_entries(MAX_PROCESSES, BPF_F_MMAPABLE);
#[map]
pub(crate) static CODE: HashMap<CodeFile, CodeRows> =
    HashMap::with_max_entries(unwind::MAX_CODE_FILES, BPF_F_NO_PREALLOC);
/// Hints may be lost: a thousand are ample, and the next scan finds whatever was missed.
#[map]
pub(crate) static HINTS: RingBuf = RingBuf::with_byte_size(64 << 10, 0);
/// Separate from the hints, whose number is unbounded: the start of a program that is not reported counts as lost. Space for 800
/// starts before the user side reads them.
#[map]
pub(crate) static PROGRAMS: RingBuf = RingBuf::with_byte_size(256 << 10, 0);
#[map]
pub(crate) static MAPPING_EVENTS: RingBuf = RingBuf::with_byte_size(UNUSED_RING_BYTES, 0);
#[map]
pub(crate) static PAGE_FAULTS: RingBuf = RingBuf::with_byte_size(UNUSED_RING_BYTES, 0);

#[map]
pub(crate) static JAVA_OBJECTS: RingBuf = RingBuf::with_byte_size(UNUSED_RING_BYTES, 0);
/// Layouts of Java heaps, indexed by process slot.
#[map]
pub(crate) static JAVA_HEAPS: Array<FollowedHeap> = Array::with_max_entries(MAX_PROCESSES, 0);
/// Arguments of probes at which programs announce samples, by the number in the cookie. Set by the loader to more entries if it is needed.
#[map]
pub(crate) static SAMPLE_SITES: Array<Site> = Array::with_max_entries(1, 0);
#[btf_map]
pub(crate) static JAVA_THREADS: TaskStorage<ThreadHeap> = TaskStorage::new();

#[map]
pub(crate) static COUNTERS: Array<CounterRow> = Array::with_max_entries(COMMON_COUNTERS + 1, BPF_F_MMAPABLE);
#[btf_map]
pub(crate) static CALLS: TaskStorage<Calls> = TaskStorage::new();

/// Returns true if the size filter excludes a block of this size.
#[inline(always)]
pub(crate) fn filters_out(size: u64) -> bool {
    size < setting!(min_size) || size > setting!(max_size)
}

#[inline(always)]
pub(crate) fn live_sets_log2() -> u32 {
    setting!(live_sets_log2)
}

/// log2 of the number of rows of the stack table that are used. It can grow between two calls.
#[inline(always)]
pub(crate) fn stack_rows_log2() -> u32 {
    // SAFETY: points into a map value.
    let doublings = STACK_DOUBLINGS.get_ptr(0).map_or(0, |doublings| unsafe { read_volatile(doublings) });
    setting!(stack_rows_log2) + doublings
}

/// Returns true if the live bytes of each stack are summed up on every allocation and free. Constant for the verifier, like all
/// globals, so it skips the code if false.
#[inline(always)]
pub(crate) fn combined() -> bool {
    setting!(combined) != 0
}

/// Counts one occurrence in a process.
#[inline(always)]
pub(crate) fn count(slot: ProcessSlot, counter: Counter) {
    count_many(slot, counter, 1);
}

/// Counts occurrences in a process.
#[inline(always)]
pub(crate) fn count_many(slot: ProcessSlot, counter: Counter, occurrences: u64) {
    add(slot.0 as u32, counter, occurrences);
}

/// Counts one occurrence that belongs to no process.
#[inline(always)]
pub(crate) fn count_common(counter: Counter) {
    add(COMMON_COUNTERS, counter, 1);
}

#[inline(always)]
fn add(row: u32, counter: Counter, occurrences: u64) {
    if let Some(row) = COUNTERS.get_ptr_mut(row) {
        // SAFETY: points into a map value; the index of a counter is in bounds.
        unsafe { memory::add(row.cast::<u64>().add(counter.index() as usize), occurrences) };
    }
}

/// A map with one value per task, freed with the task. The layout is the BTF map definition that loaders read: the type of each
/// field encodes a setting, and the fields themselves are never used.
#[repr(C)]
pub(crate) struct TaskStorage<T> {
    r#type: *const [i32; bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; BPF_F_NO_PREALLOC as usize],
}

// SAFETY: the pointers are never dereferenced; the kernel keeps one value per task.
unsafe impl<T> Sync for TaskStorage<T> {}

impl<T> TaskStorage<T> {
    pub(crate) const fn new() -> Self {
        Self {
            r#type: ptr::null(),
            key: ptr::null(),
            value: ptr::null(),
            max_entries: ptr::null(),
            map_flags: ptr::null(),
        }
    }

    /// Value of the current task, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<*mut T> {
        self.lookup(0)
    }

    /// Value of the current task, zeroed if new; `None` if there is no memory for it.
    #[inline(always)]
    pub(crate) fn get_or_create(&self) -> Option<*mut T> {
        self.lookup(BPF_LOCAL_STORAGE_GET_F_CREATE as u64)
    }

    #[inline(always)]
    fn lookup(&self, flags: u64) -> Option<*mut T> {
        let map = ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: the loader creates `map` as task storage; the current task is always valid.
        let value = unsafe {
            bpf_task_storage_get(map, bpf_get_current_task_btf(), ptr::null_mut(), flags).cast::<T>()
        };
        if value.is_null() { None } else { Some(value) }
    }
}

/// Size of the ring buffer for frames.
#[inline(always)]
pub(crate) fn frame_bytes() -> u32 {
    setting!(frame_bytes)
}
