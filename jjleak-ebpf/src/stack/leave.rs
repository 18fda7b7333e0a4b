//! Frames without a usual canonical frame address: those interrupted by signals, and those of HotSpot's interpreter.

use jjleak_common::{
    stack::{InterpretedFrame, StackStatus},
    unwind::step::{MAX_FRAME_BYTES, is_possible_cfa, signal_frame},
};

use super::{
    Claimed,
    walk::{Step, push},
    window::word,
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
    walk.stack_pointer = word(scratch, frame + signal_frame::RSP)?;
    walk.instruction_pointer = word(scratch, frame + signal_frame::RIP)?;
    walk.after_call = 0;
    walk.by_frame_pointer = 0;
    walk.base_saved = 0;
    Ok(())
}

/// Offsets below the frame pointer in a frame of HotSpot's interpreter, in bytes (src/hotspot/cpu/x86/frame_x86.hpp in the JDK).
pub(super) mod interpreter {
    /// Stack pointer of the caller: its arguments have become locals.
    pub(crate) const SENDER_STACK_POINTER: u64 = 8;
    /// The `Method`.
    pub(crate) const METHOD: u64 = 3 * 8;
    /// The first local variable, the outermost one.
    pub(crate) const LOCALS: u64 = 7 * 8;
    /// The current bytecode.
    pub(crate) const BYTECODE: u64 = 8 * 8;
}

/// Adds a frame of HotSpot's interpreter and continues with its caller. The frame pointer points to the caller's frame pointer
/// and the return address.
#[inline(always)]
pub(super) fn interpreted_frame(scratch: Claimed) -> Step {
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
    walk.frame_pointer = word(scratch, frame)?;
    walk.instruction_pointer = word(scratch, frame + 8)?;
    walk.stack_pointer = sender;
    walk.after_call = 1;
    walk.by_frame_pointer = 0;
    walk.base_saved = 0;
    Ok(())
}
