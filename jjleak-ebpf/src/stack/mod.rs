//! Takes the stack of an allocation call and finds its row in the stack table.
//!
//! - `walk`: from frame to frame.
//! - `rows`: the rule for a frame.
//! - `generated`: the rule for code that a JVM generates.
//! - `leave`: frames of signals and interpreters.
//! - `go`: stacks that Go's runtime switches between.
//! - `heap`: frames of virtual threads that are in the Java heap.
//! - `code`: what is mapped where the user side knows of nothing.
//! - `window`: the words of the target's stack.
//! - `trampoline`: return addresses that return probes have replaced.
//! - `replay`: stacks that are the same again.
//! - `intern`: the row of a finished stack.

mod code;
mod generated;
mod go;
mod heap;
mod intern;
mod leave;
mod replay;
mod rows;
mod trampoline;
mod walk;
mod window;

use core::{
    ffi::c_void,
    ptr::{addr_of_mut, write_volatile},
};

use aya_ebpf::{EbpfContext, bindings::BPF_F_USER_STACK, helpers::generated::bpf_get_stack};
use jjleak_common::{
    counter::Counter,
    jvm::HEADER_WORDS,
    live::RESIZING,
    process::{ImageId, ProcessRow, ProcessSlot},
    sampling::weighted,
    stack::{MAX_FRAMES, StackHash, StackRecord, StackTotals, lost_row},
    unwind::{Hint, MAX_FOUND, Mapping},
};

pub(crate) use code::tell_program;
pub(crate) use generated::BlobCache;
pub(crate) use rows::{RowCache, mapping_at, seen};
pub(crate) use walk::hint;

use crate::{
    maps::{SCRATCH, STACKS, TOTALS, combined, count},
    memory::{add, swap},
    registers::{Hit, Registers},
    sampling,
};

/// Words of the stack that are copied at a time: 2 KiB hold a typical stack of 20 frames.
const WINDOW_WORDS: usize = 256;

/// Working memory of one stack walk. Too large for the BPF stack, and needed at entry only, so it is per CPU and
/// not per task. A walk can be preempted by another task's walk: each claims a buffer of its own.
#[repr(C)]
pub(crate) struct Scratch {
    /// 1 while a walk uses this buffer.
    claimed: u64,
    walk: Walk,
    window: [u64; WINDOW_WORDS],
    replays: replay::Replays,
    extents: replay::Extents,
    /// The header of the generated code that is being looked at.
    header: [u32; HEADER_WORDS],
    /// What the user side is told of code that is not known.
    hint: Hint,
    /// The frames, with room before them for what the user side is told of a new stack.
    record: StackRecord,
}

impl Scratch {
    /// Buffers per CPU. Preemption nests as deep as there are runnable tasks inside a walk of a microsecond;
    /// four at once on one CPU has not been seen.
    pub(crate) const PER_CPU: u32 = 4;
}

/// State of one stack walk.
#[repr(C)]
struct Walk {
    /// Whose stack it is.
    image: ImageId,
    /// Of which thread; 0 when threads are not told apart.
    thread: u64,
    /// The frame's registers.
    instruction_pointer: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    /// 1 when the instruction pointer is after a call, 0 when it was interrupted there.
    after_call: u64,
    /// 1 once a frame was unwound by a rule that is no proof: by its frame pointer.
    unproven: u64,
    /// How many bytes below the stack pointer the frame that was called has saved the base register; 0 when that is not
    /// known.
    base_saved: u64,
    /// Mappings that the kernel has told of, and how many.
    found: [Mapping; MAX_FOUND],
    found_count: u64,
    /// The mapping that the stack is in; the end is 0 before it was asked for.
    stack_begin: u64,
    stack_end: u64,
    /// Address of the copied part of the stack, and its valid bytes.
    window_at: u64,
    window_bytes: u64,
    /// 1 when there is more for the window that was not copied.
    is_part: u64,
    /// Where an earlier walk has found that memory ends.
    end_of_memory: u64,
    /// Where in `replays` this walk is noted, and how many words it has read.
    replay: u64,
    reads: u64,
    /// The next of the kernel's return instances to look at; 0 before the first.
    return_instance: u64,
    /// 1 when the current frame was found by a frame pointer.
    by_frame_pointer: u64,
    /// The stack pointer of the thread's Go scheduler while the frames further out were called; 0 before it was asked for.
    scheduler: u64,
    hash: StackHash,
    frame_count: u64,
    heap: heap::Place,
    /// 1 once a frame was one of a JVM's: its name is known for a short time only.
    is_java: u64,
    status: u64,
}

/// What a walk has come to.
enum Walked {
    /// The stack of an earlier walk, in this row.
    Again(u32),
    /// A stack to find the row of, walked by mappings of this scope.
    New(u64),
}

/// Walks the stack of the call `hit` is the entry of, and returns the index of its row. The row is
/// the process's [`lost_row`] when it could not be kept; the reason is counted.
#[inline(always)]
pub(crate) fn capture(image: ImageId, process: *const ProcessRow, hit: &Hit) -> u32 {
    let Some(scratch) = claim() else {
        count(image.slot(), Counter::ScratchBusy);
        return lost_row(image.slot());
    };
    let row = match walk::from_call(scratch, image, process, hit) {
        Walked::Again(row) => row,
        Walked::New(scope) => {
            let row = intern::intern(scratch, image);
            if row != lost_row(image.slot()) {
                replay::keep(scratch, scope, row);
            }
            row
        }
    };
    release(scratch);
    row
}

/// The stack of a system call.
pub(crate) struct SyscallStack {
    /// Index of its row.
    pub(crate) row: u32,
    /// Return address of the function that made the system call; where that is not known, as in code without call frame
    /// information, the address in the function itself.
    pub(crate) caller: u64,
}

/// Walks the stack of the system call that the current thread is in.
#[inline(always)]
pub(crate) fn capture_syscall(image: ImageId, process: *const ProcessRow, at: &Registers) -> SyscallStack {
    let Some(scratch) = claim() else {
        count(image.slot(), Counter::ScratchBusy);
        return SyscallStack { row: lost_row(image.slot()), caller: at.instruction_pointer };
    };
    walk::from_syscall(scratch, image, process, at);
    let row = intern::intern(scratch, image);
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let caller = unsafe {
        if (*scratch).walk.frame_count > 1 { (*scratch).record.frames[1] } else { at.instruction_pointer }
    };
    release(scratch);
    SyscallStack { row, caller }
}

/// Claims a buffer as a walk does, and gives it back: what it is used for is given a place, and bytes that it has room for. For the
/// benchmark.
#[inline(always)]
pub(crate) fn copy_some(use_it: impl Fn(*mut c_void, u32)) {
    const BYTES: u32 = 384;
    let Some(scratch) = claim() else { return };
    // SAFETY: `scratch` is a map value that is ours while claimed.
    use_it(unsafe { addr_of_mut!((*scratch).window) }.cast(), BYTES);
    release(scratch);
}

/// Has the kernel walk the current thread's stack, into the same memory.
#[inline(always)]
pub(crate) fn by_kernel<C: EbpfContext>(ctx: &C) {
    let Some(scratch) = claim() else {
        count(ProcessSlot(0), Counter::ScratchBusy);
        return;
    };
    // SAFETY: `scratch` is a map value that is ours while claimed, and the size is that of its frames.
    unsafe {
        let frames = addr_of_mut!((*scratch).record.frames);
        bpf_get_stack(ctx.as_ptr(), frames.cast(), (MAX_FRAMES * 8) as u32, BPF_F_USER_STACK as u64);
    }
    release(scratch);
}

#[inline(always)]
fn release(scratch: *mut Scratch) {
    // SAFETY: points into a map value.
    unsafe { write_volatile(addr_of_mut!((*scratch).claimed), 0) };
}

#[inline(always)]
fn claim() -> Option<*mut Scratch> {
    let mut slot = 0;
    while slot < Scratch::PER_CPU {
        let scratch = SCRATCH.get_ptr_mut(slot)?;
        // SAFETY: points into a map value.
        if unsafe { swap(addr_of_mut!((*scratch).claimed), 1) } == 0 {
            return Some(scratch);
        }
        slot += 1;
    }
    None
}

/// A new image has allocated nothing without a stack yet.
#[inline(always)]
pub(crate) fn begin_lost(slot: ProcessSlot) {
    if let Some(row) = STACKS.get_ptr_mut(lost_row(slot)) {
        // SAFETY: points into a map value.
        unsafe {
            write_volatile(addr_of_mut!((*row).allocated_objects), 0);
            write_volatile(addr_of_mut!((*row).allocated_bytes), 0);
        }
    }
    if combined()
        && let Some(totals) = TOTALS.get_ptr_mut(lost_row(slot))
    {
        // SAFETY: points into a map value.
        unsafe { write_volatile(totals, StackTotals { objects: 0, bytes: 0 }) };
    }
}

/// Counts an allocation for its stack; when sampling, as many as it stands for.
#[inline(always)]
pub(crate) fn count_allocation(row: u32, size: u64) {
    if let Some(row) = STACKS.get_ptr_mut(row) {
        let (objects, bytes) = amounts(size);
        // SAFETY: both point into a map value.
        unsafe {
            add(addr_of_mut!((*row).allocated_objects), objects);
            add(addr_of_mut!((*row).allocated_bytes), bytes);
        }
    }
}

/// A block of this stack has come into the table of live blocks.
#[inline(always)]
pub(crate) fn count_live(row: u32, size: u64) {
    if combined() {
        let (objects, bytes) = amounts(size);
        add_live(row, objects, bytes);
    }
}

/// A block of this stack has left the table of live blocks.
#[inline(always)]
pub(crate) fn discount_live(row: u32, size: u64) {
    if combined() {
        let (objects, bytes) = amounts(size);
        add_live(row, objects.wrapping_neg(), bytes.wrapping_neg());
    }
}

#[inline(always)]
fn add_live(row: u32, objects: u64, bytes: u64) {
    if let Some(totals) = TOTALS.get_ptr_mut(row & !RESIZING) {
        // SAFETY: both point into a map value.
        unsafe {
            add(addr_of_mut!((*totals).objects), objects);
            add(addr_of_mut!((*totals).bytes), bytes);
        }
    }
}

/// Objects, in the unit of `StackRow::allocated_objects`, and bytes that a block stands for.
#[inline(always)]
fn amounts(size: u64) -> (u64, u64) {
    if !sampling::is_on() {
        return (1, size);
    }
    let weight = sampling::weight(size);
    (weight, weighted(size, weight))
}
