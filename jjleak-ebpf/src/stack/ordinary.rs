//! The step from most frames to their callers: the frame's row is in the cache, its CFA is an offset from a register, and its saved
//! registers are in the window. It does the same as the general step, with a tenth of the code.

use jjleak_common::{
    stack::{MAX_FRAMES, StackFrame},
    unwind::{
        Row, RowKind, SavedFp,
        step::{LAST_ADDRESS, WORD, is_possible_cfa},
    },
};

use crate::memory::opaque;

use super::{Claimed, WINDOW_WORDS, Walk, replay, rows, walk::push};

/// Frames at a time: it saves the kernel's part of a step for most of them.
const AT_A_TIME: u64 = 8;

/// Adds frames as long as they are ordinary, but at most [`AT_A_TIME`]. Returns false, without effect, if the current frame needs the
/// general step. A function of its own, so that its part of the BPF stack is free again for that step.
#[inline(never)]
pub(super) fn advance_some(scratch: Claimed) -> bool {
    let mut frames = 0;
    while frames < AT_A_TIME && advance(scratch) {
        frames = opaque(frames + 1);
    }
    frames != 0
}

/// Adds the current frame and continues with its caller. Returns false, without effect, if this frame needs the general step.
#[inline(always)]
fn advance(scratch: Claimed) -> bool {
    let walk = scratch.walk();
    if walk.heap.is_entered() || walk.frame_count >= MAX_FRAMES as u64 {
        return false;
    }
    let Some(cache) = rows::ROW_CACHE.get_ptr(0) else { return false };
    let address = walk.instruction_pointer.wrapping_sub(walk.after_call);
    // SAFETY: a map value.
    let Some(row) = (unsafe { rows::cached(cache, walk.scope, address) }) else { return false };
    let Some(cfa) = canonical_frame_address(walk, row) else { return false };
    let Some(returns_at) = place(walk, cfa.wrapping_sub(WORD)) else { return false };
    let return_address = word(scratch, returns_at);
    if return_address == 0 {
        return false;
    }
    let mut saved_at = None;
    if row.saved() == SavedFp::AtCfa as u64 {
        let Some(place) = place(walk, cfa.wrapping_add(row.fp_offset_bytes())) else { return false };
        saved_at = Some(place);
    } else if row.saved() != SavedFp::Register as u64 {
        return false;
    }
    if row.kind() == RowKind::Fp as u64 {
        replay::note_frame_pointer(scratch);
    }
    replay::note(scratch, returns_at);
    if let Some(place) = saved_at {
        walk.frame_pointer = word(scratch, place);
        walk.frame_pointer_at = replay::in_buffer(place as u64);
    }
    let frame = StackFrame::new(walk.instruction_pointer, row.address() as u16);
    push(scratch, frame.found_by_frame_pointer(walk.by_frame_pointer));
    walk.stack_pointer = cfa;
    walk.instruction_pointer = return_address;
    walk.after_call = 1;
    walk.by_frame_pointer = 0;
    walk.base_saved = row.base_saved_bytes();
    true
}

#[inline(always)]
fn canonical_frame_address(walk: &Walk, row: Row) -> Option<u64> {
    let register = match row.kind() {
        kind if kind == RowKind::Sp as u64 => walk.stack_pointer,
        kind if kind == RowKind::Fp as u64 => walk.frame_pointer,
        _ => return None,
    };
    let cfa = register.wrapping_add(row.offset_bytes());
    is_possible_cfa(cfa, walk.stack_pointer).then_some(cfa)
}

/// Index of a word in the window; `None` if it is not there. The address must be a multiple of the size of words.
#[inline(always)]
fn place(walk: &Walk, at: u64) -> Option<usize> {
    let offset = at.wrapping_sub(walk.window_at);
    let is_there = offset < walk.window_bytes && at <= LAST_ADDRESS && at & (WORD - 1) == 0;
    is_there.then_some((offset >> 3) as usize & (WINDOW_WORDS - 1))
}

#[inline(always)]
fn word(scratch: Claimed, place: usize) -> u64 {
    // SAFETY: the mask keeps the index in bounds.
    unsafe { *scratch.window().add(place & (WINDOW_WORDS - 1)) }
}
