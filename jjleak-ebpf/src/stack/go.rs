//! From one stack to another, in the frames of Go's runtime that switch.
//!
//! `runtime.asmcgocall` runs C code on the stack of the thread's scheduler (`g0`), and keeps the goroutine and how deep on its stack
//! it was there: the stack itself can be moved while C code has called Go back. `runtime.cgocallback`, by which that happens, goes
//! on on the goroutine's stack; `g0.sched.sp` says where on the scheduler's it was, and the word there what it said before.

use jjleak_common::{
    stack::StackStatus,
    unwind::{GoSwitch, Row},
};

use super::{
    Scratch, replay,
    walk::{MAX_FRAME_BYTES, Step},
    window::word,
};
use crate::memory::read_user_word;

/// Offset of the stack's upper end in a goroutine: `g.stack.hi`, its second word in every version of the runtime.
const STACK_END_IN_G: u64 = 8;
/// What the C ABI aligns the stack to.
const ALIGNMENT: u64 = 16;

/// Goes to the caller's frame, on the stack that it is on.
#[inline(always)]
pub(super) fn switch_stack(scratch: *mut Scratch, row: Row) -> Step {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    // What is read of the goroutine is not noted.
    replay::spoil(walk);
    let kept_at = walk.stack_pointer.wrapping_add(row.fp_offset_bytes());
    let switch = row.saved();
    let caller = if switch == GoSwitch::ToScheduler as u64 {
        let goroutine = word(scratch, kept_at)?;
        let depth = word(scratch, kept_at.wrapping_sub(8))?;
        if walk.scheduler == 0 {
            walk.scheduler = scheduler_pointer(row, goroutine).ok_or(StackStatus::Fault)?;
        }
        // The frame is where the scheduler's stack pointer led: what was read is what the runtime has kept.
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
    walk.instruction_pointer = word(scratch, cfa.wrapping_sub(8))?;
    walk.stack_pointer = cfa;
    walk.after_call = 1;
    walk.by_frame_pointer = 0;
    walk.base_saved = 0;
    Ok(())
}

/// Where the stack pointer of a goroutine's scheduler is kept: `g.m.g0.sched.sp`, with `g0` first in `m`.
#[inline(always)]
fn scheduler_pointer(row: Row, goroutine: u64) -> Option<u64> {
    let thread = read_user_word(goroutine.wrapping_add(row.go_thread_bytes()))?;
    let scheduler = read_user_word(thread)?;
    read_user_word(scheduler.wrapping_add(row.go_pointer_bytes()))
}
