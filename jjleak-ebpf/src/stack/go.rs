//! Stack switches in frames of Go's runtime.
//!
//! `runtime.asmcgocall` runs C code on the stack of the thread's scheduler (`g0`), and saves the goroutine and its depth on the
//! goroutine's stack: that stack can be moved while C code has called back into Go. `runtime.cgocallback`, which makes such a
//! call back, continues on the goroutine's stack; `g0.sched.sp` is its position on the scheduler's stack, and the word at that
//! address is the previous value.
//!
//! `runtime.systemstack` and `runtime.morestack` run functions of the runtime on the scheduler's stack, from `g0.sched.sp` down.
//! `m.curg` is the goroutine that they left, and has saved its stack pointer; `m` is found with the thread's variable `g`.

use jjleak_common::{
    stack::StackStatus,
    unwind::{GoSwitch, Row, step::MAX_FRAME_BYTES},
};

use super::{
    Claimed, Walk, replay,
    walk::{self, Step},
    window::word,
};
use crate::{current::thread_pointer, memory::read_user_word};

/// Offset of the stack's upper end in a goroutine: `g.stack.hi`, the second word in every version of the runtime.
const STACK_END_IN_G: u64 = 8;
/// Stack alignment of the C ABI.
const ALIGNMENT: u64 = 16;

/// Continues with the caller's frame, on the caller's stack.
#[inline(always)]
pub(super) fn switch_stack(scratch: Claimed, row: Row) -> Step {
    let walk = scratch.walk();
    // Reads from the goroutine are not recorded for replay.
    replay::spoil(walk);
    let switch = row.saved();
    if switch == GoSwitch::ToRunning as u64 {
        return to_running(scratch, row);
    }
    let kept_at = walk.stack_pointer.wrapping_add(row.fp_offset_bytes());
    let caller = if switch == GoSwitch::ToScheduler as u64 {
        let goroutine = word(scratch, kept_at)?;
        let depth = word(scratch, kept_at.wrapping_sub(8))?;
        if walk.scheduler == 0 {
            walk.scheduler = scheduler_pointer(row, goroutine).ok_or(StackStatus::Fault)?;
        }
        // The scheduler's stack pointer must lead to this frame: that confirms that the words are those saved by the runtime.
        let frame = walk.scheduler.wrapping_sub(row.go_room_bytes()) & !(ALIGNMENT - 1);
        if frame != walk.stack_pointer {
            return Err(StackStatus::BadFrame);
        }
        let end = read_user_word(goroutine.wrapping_add(STACK_END_IN_G)).ok_or(StackStatus::Fault)?;
        end.wrapping_sub(depth)
    } else if switch == GoSwitch::Stay as u64 {
        let caller = word(scratch, kept_at)?;
        if caller.wrapping_sub(walk.stack_pointer) >= MAX_FRAME_BYTES {
            return Err(StackStatus::BadFrame);
        }
        caller
    } else {
        let caller = walk.scheduler;
        if caller == 0 {
            return Err(StackStatus::Unsupported);
        }
        walk.scheduler = word(scratch, caller)?;
        caller
    };
    let cfa = caller.wrapping_add(row.go_cfa_bytes());
    let return_address = word(scratch, cfa.wrapping_sub(8))?;
    continue_at(walk, return_address, cfa)
}

/// Continues on the stack of the goroutine that the thread runs.
#[inline(always)]
fn to_running(scratch: Claimed, row: Row) -> Step {
    let walk = scratch.walk();
    let Some(thread) = thread_pointer() else { return Err(StackStatus::Unsupported) };
    let goroutine = read_user_word(thread.wrapping_sub(row.go_room_bytes())).ok_or(StackStatus::Fault)?;
    // The scheduler's stack pointer must be this frame's: that confirms the thread and the switch.
    let frame = scheduler_pointer(row, goroutine).ok_or(StackStatus::Fault)?;
    if frame != walk.stack_pointer {
        return Err(StackStatus::BadFrame);
    }
    let thread = read_user_word(goroutine.wrapping_add(row.go_thread_bytes())).ok_or(StackStatus::Fault)?;
    let running = read_user_word(thread.wrapping_add(row.fp_offset_bytes())).ok_or(StackStatus::Fault)?;
    if running == 0 {
        // The goroutine has given up the thread, and other threads may run it: the scheduler has no callers.
        return Err(walk::finished(walk));
    }
    let saved_at = running.wrapping_add(row.go_pointer_bytes());
    let pointer = read_user_word(saved_at).ok_or(StackStatus::Fault)?;
    let cfa = pointer.wrapping_add(row.go_cfa_bytes());
    let return_address = if row.go_cfa_bytes() == 0 {
        // The word after the stack pointer: the goroutine's stack may have been moved without the return address.
        read_user_word(saved_at.wrapping_add(8)).ok_or(StackStatus::Fault)?
    } else {
        word(scratch, cfa.wrapping_sub(8))?
    };
    continue_at(walk, return_address, cfa)
}

#[inline(always)]
fn continue_at(walk: &mut Walk, return_address: u64, stack_pointer: u64) -> Step {
    walk.instruction_pointer = return_address;
    walk.stack_pointer = stack_pointer;
    walk.after_call = 1;
    walk.by_frame_pointer = 0;
    walk.base_saved = 0;
    Ok(())
}

/// Saved stack pointer of a goroutine's scheduler: `g.m.g0.sched.sp`, with `g0` first in `m`.
#[inline(always)]
fn scheduler_pointer(row: Row, goroutine: u64) -> Option<u64> {
    let thread = read_user_word(goroutine.wrapping_add(row.go_thread_bytes()))?;
    let scheduler = read_user_word(thread)?;
    read_user_word(scheduler.wrapping_add(row.go_pointer_bytes()))
}
