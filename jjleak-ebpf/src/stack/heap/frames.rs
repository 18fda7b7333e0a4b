//! Frames in a chunk. They have the layout of frames on a stack, but pointers into the frames are stored as distances.

use jjleak_common::{
    stack::{InterpretedFrame, StackFrame, StackStatus},
    unwind::{Row, RowKind, step::interpreter},
};

use super::{
    super::{Claimed, walk::push, window::word},
    task,
};

/// Adds the current frame, whose code has this row, and continues with its caller.
#[inline(always)]
pub(in super::super) fn leave_frame(scratch: Claimed, row: Row) -> Result<(), StackStatus> {
    let walk = scratch.walk();
    if row.kind() == RowKind::Interpreter as u64 {
        return leave_interpreted_frame(scratch);
    }
    // All other kinds of frames have returned before the frames are moved to the heap.
    if row.kind() != RowKind::Sp as u64 {
        return Err(StackStatus::InHeap);
    }
    push(scratch, StackFrame::new(walk.instruction_pointer, row.address() as u16));
    let caller = walk.stack_pointer.wrapping_add(row.offset_bytes());
    if caller == walk.heap.end {
        walk.heap.task = task::NEXT;
        return Ok(());
    }
    if caller > walk.heap.end || caller <= walk.stack_pointer {
        return Err(StackStatus::InHeap);
    }
    arrive(scratch, caller)
}

/// Continues with the frame at this stack pointer, to which the previous frame returns. An interpreted frame's frame pointer is
/// stored there, as a distance from its own location.
#[inline(always)]
pub(super) fn arrive(scratch: Claimed, stack_pointer: u64) -> Result<(), StackStatus> {
    let walk = scratch.walk();
    let link = stack_pointer.wrapping_sub(16);
    let distance = word(scratch, link).map_err(|_| StackStatus::InHeap)?;
    walk.frame_pointer = link.wrapping_add(distance << 3);
    walk.instruction_pointer = word(scratch, link.wrapping_add(8)).map_err(|_| StackStatus::InHeap)?;
    walk.stack_pointer = stack_pointer;
    walk.after_call = 1;
    walk.by_frame_pointer = 0;
    walk.base_saved = 0;
    Ok(())
}

/// Adds an interpreted frame and continues with its caller.
#[inline(always)]
fn leave_interpreted_frame(scratch: Claimed) -> Result<(), StackStatus> {
    let walk = scratch.walk();
    let frame = walk.frame_pointer;
    let (begin, end) = (walk.stack_pointer, walk.heap.end);
    if frame < begin || frame >= end {
        return Err(StackStatus::InHeap);
    }
    let bytecode =
        word(scratch, frame.wrapping_sub(interpreter::BYTECODE)).map_err(|_| StackStatus::InHeap)?;
    let locals = word(scratch, frame.wrapping_sub(interpreter::LOCALS)).map_err(|_| StackStatus::InHeap)?;
    let method = word(scratch, frame.wrapping_sub(interpreter::METHOD)).map_err(|_| StackStatus::InHeap)?;
    let sender = word(scratch, frame.wrapping_sub(interpreter::SENDER_STACK_POINTER));
    let sender = frame.wrapping_add(sender.map_err(|_| StackStatus::InHeap)? << 3);
    if !InterpretedFrame::can_be(method) {
        return Err(StackStatus::InHeap);
    }
    push(scratch, InterpretedFrame::pack(method, bytecode));
    // The arguments of a method are the end of its frame. In the outermost frame they lie beyond the end of the frames.
    let frame_end = frame.wrapping_add(locals << 3).wrapping_add(8);
    if frame_end >= end && frame_end <= walk.heap.limit {
        walk.heap.task = task::NEXT;
        return Ok(());
    }
    if frame_end <= frame || frame_end > end || sender <= begin || sender >= end {
        return Err(StackStatus::InHeap);
    }
    arrive(scratch, frame.wrapping_add(16))?;
    walk.stack_pointer = sender;
    Ok(())
}
