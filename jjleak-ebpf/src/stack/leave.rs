//! Frames without a usual canonical frame address: those interrupted by signals, and those of HotSpot's interpreter.

use jjleak_common::{
    stack::{InterpretedFrame, StackStatus},
    unwind::step::{MAX_FRAME_BYTES, interpreter, is_possible_cfa, signal_frame},
};

use super::{
    Claimed, replay,
    walk::{Step, push},
    window::{self, word},
};

/// Continues with the frame interrupted by a signal.
#[inline(always)]
pub(super) fn signal_frame(scratch: Claimed) -> Step {
    let walk = scratch.walk();
    let frame = walk.stack_pointer;
    if frame & 7 != 0 {
        return Err(StackStatus::BadFrame);
    }
    walk.frame_pointer = word(scratch, frame + signal_frame::RBP)?;
    walk.frame_pointer_at = replay::NOTED;
    walk.stack_pointer = word(scratch, frame + signal_frame::RSP)?;
    walk.instruction_pointer = word(scratch, frame + signal_frame::RIP)?;
    walk.after_call = 0;
    walk.by_frame_pointer = 0;
    walk.base_saved = 0;
    Ok(())
}

/// Adds a frame of HotSpot's interpreter and continues with its caller. The frame pointer points to the caller's frame pointer
/// and the return address.
#[inline(always)]
pub(super) fn interpreted_frame(scratch: Claimed) -> Step {
    replay::note_frame_pointer(scratch);
    let walk = scratch.walk();
    let frame = walk.frame_pointer;
    if frame.wrapping_sub(walk.stack_pointer) >= MAX_FRAME_BYTES {
        return Err(StackStatus::BadFrame);
    }
    let bytecode = word(scratch, frame.wrapping_sub(interpreter::BYTECODE))?;
    let method = word(scratch, frame - interpreter::METHOD)?;
    let sender = word(scratch, frame - interpreter::SENDER_STACK_POINTER)?;
    if !InterpretedFrame::can_be(method) || !is_possible_cfa(sender, walk.stack_pointer) {
        return Err(StackStatus::BadFrame);
    }
    let interpreted = InterpretedFrame::pack(method, bytecode);
    push(scratch, interpreted.found_by_frame_pointer(walk.by_frame_pointer));
    let saved_at = window::place(scratch, frame)?;
    walk.frame_pointer = window::at(scratch, saved_at);
    walk.frame_pointer_at = replay::in_buffer(saved_at);
    walk.instruction_pointer = word(scratch, frame + 8)?;
    walk.stack_pointer = sender;
    walk.after_call = 1;
    walk.by_frame_pointer = 0;
    walk.base_saved = 0;
    Ok(())
}
