//! Frames of a virtual thread in the Java heap: see `jjleak_common::jvm::Continuations`.
//!
//! The last frame on the stack returns to a barrier. From there the walk continues in the chunks of the continuation, and from
//! the end of the last chunk in the frame that entered the continuation, on its carrier's stack.
//!
//! The garbage collector may move a chunk, or objects that lead to it, while it is read. Therefore the frames count only under
//! three conditions: the walk has reached exactly the end of the frames of each chunk, the path to the chunks is the same at the
//! end as at the beginning, and no safepoint has done anything meanwhile. Memory is reused only after all references to it have
//! been updated, which requires a safepoint. Otherwise the stack ends at the barrier, as if the heap had not been read.
//!
//! - `entry`: the entry of the continuation.
//! - `frames`: frames in a chunk.
//! - `references`: references between objects; `forwarded`, `coloured`: locations of objects that are moved while threads run.
//! - `safepoints`: detection of other moves.

mod coloured;
mod entry;
mod forwarded;
mod frames;
mod references;
mod safepoints;

use core::{ffi::c_void, ptr::addr_of};

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use jjleak_common::{
    jvm::{CodeCache, Continuations, HEADER_WORDS, MAX_HEADER_BYTES},
    stack::{StackFrame, StackHash, StackStatus},
};

use super::{
    Claimed,
    generated::{address_at, int_at},
    walk::push,
};
use crate::{maps::JVMS, memory::read_user_word};
use entry::{MAX_PASSED, search};
use frames::arrive;
pub(super) use frames::leave_frame;
use references::{first_chunk, reference};

/// Maximum number of chunks of a continuation: a new one is allocated if the old one is too small or too old.
const MAX_CHUNKS: u64 = 4;

/// Maximum size of a chunk in words. The stack of a virtual thread is at most as large as that of any thread.
const MAX_WORDS: u32 = 1 << 27;

/// Position of a walk in the heap.
#[repr(C)]
pub(super) struct Place {
    /// Task of the next step, see [`task`].
    task: u64,
    /// Number of words skipped to find the entry of the continuation.
    passed: u64,
    /// The current chunk, the number of chunks up to now, and a hash of them.
    chunk: u64,
    count: u64,
    trace: u64,
    /// 1 while the path to the chunks is verified. Then, the hash of the current chunks, and the number of chunks left.
    is_again: u64,
    trace_again: u64,
    left: u64,
    /// 1 if the stack became too deep in the heap.
    is_cut: u64,
    /// End of the chunk's frames, and of its memory.
    end: u64,
    limit: u64,
    /// Start of the frame on the stack that entered the continuation.
    entry: u64,
    /// Safepoint counter at the beginning.
    safepoints: u64,
    /// State of the walk at the barrier.
    barrier: StackFrame,
    frame_count: u64,
    hash: StackHash,
    /// The collector's phase, if it has phases.
    phase: coloured::Phase,
}

/// Tasks of a walk in the heap. Each is a step of its own, so that the verifier follows it only once.
mod task {
    /// The walk is not in the heap.
    pub(super) const NONE: u64 = 0;
    /// Check for the entry of the continuation at this place.
    pub(super) const SEARCH: u64 = 1;
    /// Continue with the first chunk of the continuation.
    pub(super) const FIRST: u64 = 2;
    /// Continue with the innermost frame of the chunk.
    pub(super) const OPEN: u64 = 3;
    /// Unwind a frame.
    pub(super) const FRAME: u64 = 4;
    /// Continue with the next chunk.
    pub(super) const NEXT: u64 = 5;
}

/// Maximum number of steps of a walk that add no frame: those for each place that may be the entry, for each chunk, for the
/// verification, and one to detect excess.
pub(super) const MAX_STEPS: u32 = (3 * MAX_PASSED + 3 * MAX_CHUNKS + 2) as u32;

impl Place {
    /// Resets the state.
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.task = task::NONE;
    }

    /// Returns true if the walk is in the heap.
    #[inline(always)]
    pub(super) fn is_entered(&self) -> bool {
        self.task != task::NONE
    }

    /// Returns true if [`go_on`] must run before there is a frame again.
    #[inline(always)]
    pub(super) fn is_on_the_way(&self) -> bool {
        self.task != task::NONE && self.task != task::FRAME
    }

    /// The walk has reached the end of the frames; they count once the path to the chunks is verified.
    #[inline(always)]
    fn look_again(&mut self) {
        self.is_again = 1;
        self.trace_again = 0;
        self.left = self.count;
        self.task = task::FIRST;
    }

    /// There are too many frames.
    #[inline(always)]
    pub(super) fn cut(&mut self) {
        self.is_cut = 1;
        self.look_again();
    }
}

/// Continues with the callers of the frame that returned to the barrier.
#[inline(always)]
pub(super) fn enter(scratch: Claimed, barrier: StackFrame) -> Result<(), StackStatus> {
    let walk = scratch.walk();
    let slot = walk.image.slot().0;
    // Frames in the heap do not return to the barrier. Another barrier is no frame, and must not overwrite the state at the first
    // one.
    if walk.heap.is_entered() {
        return Err(StackStatus::InHeap);
    }
    walk.heap.task = task::SEARCH;
    walk.heap.passed = 0;
    walk.heap.count = 0;
    walk.heap.trace = 0;
    walk.heap.is_again = 0;
    walk.heap.is_cut = 0;
    walk.heap.barrier = barrier;
    walk.heap.frame_count = walk.frame_count;
    walk.heap.hash = walk.hash;
    let known = with(slot, |known| &raw const *known)?;
    // SAFETY: `known` points into a map value.
    let known = unsafe { &*known };
    walk.heap.safepoints = safepoints::count(known).ok_or(StackStatus::InHeap)?;
    let is_known = known.klass != 0 && coloured::begin(&mut walk.heap.phase, known, walk.stack_pointer);
    if is_known { Ok(()) } else { Err(StackStatus::InHeap) }
}

/// Runs the current task.
#[inline(always)]
pub(super) fn go_on(scratch: Claimed) -> Result<(), StackStatus> {
    let task = scratch.walk().heap.task;
    if task == task::SEARCH {
        search(scratch)
    } else if task == task::OPEN {
        open(scratch)
    } else {
        follow(scratch, task)
    }
}

/// Continues with a chunk, to open or to verify it. If there is none, the frames have ended, or this was not the entry of the
/// continuation.
#[inline(always)]
fn follow(scratch: Claimed, task: u64) -> Result<(), StackStatus> {
    let walk = scratch.walk();
    let slot = walk.image.slot().0;
    let chunk = if task == task::FIRST {
        first_chunk(scratch).unwrap_or(0)
    } else {
        reference(scratch, walk.heap.chunk, with(slot, |known| known.parent)?)?
    };
    walk.heap.chunk = chunk;
    if walk.heap.is_again == 0 {
        if chunk != 0 {
            walk.heap.task = task::OPEN;
        } else if task == task::FIRST {
            walk.heap.task = task::SEARCH;
        } else {
            walk.heap.look_again();
        }
        return Ok(());
    }
    walk.heap.trace_again = traced(walk.heap.trace_again, chunk);
    walk.heap.left = walk.heap.left.wrapping_sub(1);
    if walk.heap.left != 0 {
        walk.heap.task = task::NEXT;
        return Ok(());
    }
    let before = walk.heap.safepoints;
    let is_settled =
        with(slot, |known| walk.heap.phase.still_is(known) && safepoints::are_still(known, before))?;
    if walk.heap.trace_again != walk.heap.trace || !is_settled {
        return Err(StackStatus::InHeap);
    }
    leave(scratch)
}

/// The frames are verified: continues with the frame that entered the continuation.
#[inline(always)]
fn leave(scratch: Claimed) -> Result<(), StackStatus> {
    let walk = scratch.walk();
    let return_address = read_user_word(with(walk.image.slot().0, |known| known.return_address)?);
    walk.instruction_pointer = return_address.ok_or(StackStatus::InHeap)?;
    walk.stack_pointer = walk.heap.entry;
    // The frame pointer is unknown here, and 0 cannot be taken for one.
    walk.frame_pointer = 0;
    walk.after_call = 1;
    walk.heap.task = task::NONE;
    if walk.heap.is_cut == 0 { Ok(()) } else { Err(StackStatus::TooDeep) }
}

/// Passes the layout of a process's virtual threads to `what`.
#[inline(always)]
fn with<T>(slot: u16, what: impl FnOnce(&Continuations) -> T) -> Result<T, StackStatus> {
    let jvm: *const CodeCache = JVMS.get_ptr(slot as u32).ok_or(StackStatus::InHeap)?;
    // SAFETY: points into a map value.
    Ok(what(unsafe { &*addr_of!((*jvm).continuations) }))
}

/// Continues with the innermost frame of the chunk.
#[inline(always)]
fn open(scratch: Claimed) -> Result<(), StackStatus> {
    let walk = scratch.walk();
    let slot = walk.image.slot().0;
    let chunk = walk.heap.chunk;
    if walk.heap.count >= MAX_CHUNKS {
        return Err(StackStatus::InHeap);
    }
    let known: *const Continuations = with(slot, |known| &raw const *known)?;
    // SAFETY: `known` points into a map value, `scratch` into one that is ours; the size is limited to that of the buffer.
    let (size, stack_pointer, bottom, begin, is_chunk) = unsafe {
        let header = scratch.header().cast::<c_void>();
        let places = (*known).stack & (HEADER_WORDS as u32 - 1);
        let bytes = places << 2 & (MAX_HEADER_BYTES as u32 - 1);
        // A failed read leaves zeros, which are no class.
        bpf_probe_read_user(header, bytes, chunk as *const c_void);
        let klass = address_at(scratch, (*known).klass_at) & (*known).klass_mask;
        (
            int_at(scratch, (*known).size),
            int_at(scratch, (*known).stack_pointer),
            int_at(scratch, (*known).bottom),
            chunk.wrapping_add(bytes as u64),
            klass == (*known).klass,
        )
    };
    if !is_chunk && walk.heap.count == 0 {
        walk.heap.task = task::SEARCH;
        return Ok(());
    }
    walk.heap.count += 1;
    walk.heap.trace = traced(walk.heap.trace, chunk);
    if !is_chunk || size > MAX_WORDS || bottom > size || stack_pointer > bottom || begin & 7 != 0 {
        return Err(StackStatus::InHeap);
    }
    walk.heap.end = begin.wrapping_add((bottom as u64) << 3);
    walk.heap.limit = begin.wrapping_add((size as u64) << 3);
    if stack_pointer == bottom {
        walk.heap.task = task::NEXT;
        return Ok(());
    }
    walk.heap.task = task::FRAME;
    arrive(scratch, begin.wrapping_add((stack_pointer as u64) << 3))
}

/// Adds a chunk to the hash of a chain of chunks.
#[inline(always)]
fn traced(trace: u64, chunk: u64) -> u64 {
    (trace ^ chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// The walk failed in the heap: restores its state at the barrier.
#[inline(always)]
pub(super) fn end(scratch: Claimed) -> StackStatus {
    let walk = scratch.walk();
    walk.frame_count = walk.heap.frame_count;
    walk.hash = walk.heap.hash;
    push(scratch, walk.heap.barrier);
    StackStatus::InHeap
}
