//! The frames of a virtual thread that are in the Java heap: see `jjleak_common::jvm::Continuations`.
//!
//! The last frame on the stack returns to a barrier. From there the walk goes on in the chunks of the continuation, and from
//! the end of the last one in the frame in which the continuation was entered, on its carrier's stack.
//!
//! The garbage collector may move a chunk, or what leads to it, while it is read. So the frames count only when the walk has
//! come exactly to the end of each chunk's, when the way to the chunks is at the end what it was at the beginning, and when no safepoint
//! has done anything meanwhile: memory is given to others only after all references to it have been changed, and not without one.
//! Otherwise the stack ends at the barrier, as if nothing had been looked for.
//!
//! - `entry`: where the continuation was entered.
//! - `frames`: those in a chunk.
//! - `references`: from object to object; `forwarded`, `coloured`: where objects are if they are moved while threads run.
//! - `safepoints`: whether objects may have been moved otherwise.

mod coloured;
mod entry;
mod forwarded;
mod frames;
mod references;
mod safepoints;

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut},
};

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use jjleak_common::{
    jvm::{CodeCache, Continuations, HEADER_WORDS, MAX_HEADER_BYTES},
    stack::{StackFrame, StackHash, StackStatus},
};

use super::{
    Scratch,
    generated::{address_at, int_at},
    walk::push,
};
use crate::{maps::JVMS, memory::read_user_word};
use entry::{MAX_PASSED, search};
use frames::arrive;
pub(super) use frames::leave_frame;
use references::{first_chunk, reference};

/// Most chunks of a continuation that are followed: a new one is made when the old one is too small, or too old.
const MAX_CHUNKS: u64 = 4;

/// The largest chunk, in words. A virtual thread's stack is as large as another's at most.
const MAX_WORDS: u32 = 1 << 27;

/// Where a walk is in the heap.
#[repr(C)]
pub(super) struct Place {
    /// What is to be done in the next step: a [`task`].
    task: u64,
    /// Words that have been passed to find what is noted of the continuation.
    passed: u64,
    /// The chunk that it is in, how many there have been, and what they were.
    chunk: u64,
    count: u64,
    trace: u64,
    /// 1 once it goes the way to the chunks again, to see whether it is still the same. Then, what the chunks are now, and how many
    /// there are still to come.
    is_again: u64,
    trace_again: u64,
    left: u64,
    /// 1 when the walk has become too long in the heap.
    is_cut: u64,
    /// Where the chunk's frames end, and where its memory does.
    end: u64,
    limit: u64,
    /// Where the frame in which the continuation was entered begins on the stack.
    entry: u64,
    /// How often safepoints had begun and ended before.
    safepoints: u64,
    /// What the walk was at the barrier.
    barrier: StackFrame,
    frame_count: u64,
    hash: StackHash,
    /// The phase that the collector is in, if it has such.
    phase: coloured::Phase,
}

/// What a walk has to do in the heap. Each is a step of its own, so that the verifier follows it once.
mod task {
    /// The walk is not in the heap.
    pub(super) const NONE: u64 = 0;
    /// Find out whether the continuation is noted here.
    pub(super) const SEARCH: u64 = 1;
    /// Go to the first chunk of the continuation.
    pub(super) const FIRST: u64 = 2;
    /// Go to the innermost frame of the chunk.
    pub(super) const OPEN: u64 = 3;
    /// Leave a frame.
    pub(super) const FRAME: u64 = 4;
    /// Go to the next chunk.
    pub(super) const NEXT: u64 = 5;
}

/// Steps of a walk that add no frame: some for each place that can be what is noted of the continuation, for each chunk, to go that way
/// again, and one to find that there are too many.
pub(super) const MAX_STEPS: u32 = (3 * MAX_PASSED + 3 * MAX_CHUNKS + 2) as u32;

impl Place {
    /// Nothing has been looked for in the heap.
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.task = task::NONE;
    }

    /// Whether the walk is in the heap.
    #[inline(always)]
    pub(super) fn is_entered(&self) -> bool {
        self.task != task::NONE
    }

    /// Whether there is something to do before there is a frame again: [`go_on`].
    #[inline(always)]
    pub(super) fn is_on_the_way(&self) -> bool {
        self.task != task::NONE && self.task != task::FRAME
    }

    /// The walk has come to the end of the frames: before they count, it goes the way to the chunks again.
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

/// Goes to the callers of the frame that returned to the barrier.
#[inline(always)]
pub(super) fn enter(scratch: *mut Scratch, barrier: StackFrame) -> Result<(), StackStatus> {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    let slot = walk.image.slot().0;
    // Frames in the heap have given back the way to it: what leads here again is no frame, and must not become where they are taken back to.
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

/// Does what is to be done before there is a frame again.
#[inline(always)]
pub(super) fn go_on(scratch: *mut Scratch) -> Result<(), StackStatus> {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let task = unsafe { (*scratch).walk.heap.task };
    if task == task::SEARCH {
        search(scratch)
    } else if task == task::OPEN {
        open(scratch)
    } else {
        follow(scratch, task)
    }
}

/// Goes to a chunk: to open it, or to see that it is still the same. Where there is none, the frames have ended, or the continuation
/// was not noted there.
#[inline(always)]
fn follow(scratch: *mut Scratch, task: u64) -> Result<(), StackStatus> {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
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

/// The frames count: goes to the frame in which the continuation was entered.
#[inline(always)]
fn leave(scratch: *mut Scratch) -> Result<(), StackStatus> {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    let return_address = read_user_word(with(walk.image.slot().0, |known| known.return_address)?);
    walk.instruction_pointer = return_address.ok_or(StackStatus::InHeap)?;
    walk.stack_pointer = walk.heap.entry;
    // Of no use there, and nothing that could be taken for one.
    walk.frame_pointer = 0;
    walk.after_call = 1;
    walk.heap.task = task::NONE;
    if walk.heap.is_cut == 0 { Ok(()) } else { Err(StackStatus::TooDeep) }
}

/// What is known of a process's virtual threads.
#[inline(always)]
fn with<T>(slot: u16, what: impl FnOnce(&Continuations) -> T) -> Result<T, StackStatus> {
    let jvm: *const CodeCache = JVMS.get_ptr(slot as u32).ok_or(StackStatus::InHeap)?;
    // SAFETY: points into a map value.
    Ok(what(unsafe { &*addr_of!((*jvm).continuations) }))
}

/// Goes to the innermost frame of the chunk.
#[inline(always)]
fn open(scratch: *mut Scratch) -> Result<(), StackStatus> {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    let slot = walk.image.slot().0;
    let chunk = walk.heap.chunk;
    if walk.heap.count >= MAX_CHUNKS {
        return Err(StackStatus::InHeap);
    }
    let known: *const Continuations = with(slot, |known| &raw const *known)?;
    // SAFETY: `known` points into a map value, `scratch` into one that is ours; the size is bounded by that of the buffer.
    let (size, stack_pointer, bottom, begin, is_chunk) = unsafe {
        let header = addr_of_mut!((*scratch).header).cast::<c_void>();
        let places = (*known).stack & (HEADER_WORDS as u32 - 1);
        let bytes = places << 2 & (MAX_HEADER_BYTES as u32 - 1);
        // What cannot be read leaves zeros, which are no class.
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

/// What stands for a chain of chunks.
#[inline(always)]
fn traced(trace: u64, chunk: u64) -> u64 {
    (trace ^ chunk).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// The walk has ended in the heap: as if nothing had been looked for there.
#[inline(always)]
pub(super) fn end(scratch: *mut Scratch) -> StackStatus {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    walk.frame_count = walk.heap.frame_count;
    walk.hash = walk.heap.hash;
    push(scratch, walk.heap.barrier);
    StackStatus::InHeap
}
