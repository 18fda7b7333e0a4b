//! Follows the chain of frame pointers.
//!
//! The first return address is read below the canonical frame address of the probe site, so the caller of the
//! allocation function is never lost, whether or not anything keeps frame pointers. From there on a frame
//! record is `[frame pointer] = caller's frame pointer, [frame pointer + 8] = return address`. Code without
//! frame pointers uses the register for other things; what does not look like a frame record ends the walk.

use core::{ffi::c_void, ptr::addr_of_mut};

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_user};
use jjleak_common::stack::{MAX_FRAMES, StackHash, StackStatus};

use super::{Scratch, WINDOW_WORDS};
use crate::registers::Hit;

const PAGE: u64 = 4096;
const WINDOW_BYTES: u64 = WINDOW_WORDS as u64 * 8;
/// Bytes of a frame record.
const RECORD: u64 = 16;
/// A frame larger than the default stack limit is no frame.
const MAX_FRAME_BYTES: u64 = 8 << 20;
/// No code is mapped below (`vm.mmap_min_addr`) or above the user half of the address space.
const CODE: core::ops::Range<u64> = 0x1_0000..0x7fff_ffff_f000;

const CONTINUE: i64 = 0;
const STOP: i64 = 1;

/// What the loop's callback gets: the kernel allows it to be on the stack only.
struct Loop {
    scratch: *mut Scratch,
}

/// Walks the stack into `scratch`.
#[inline(always)]
pub(crate) fn walk(scratch: *mut Scratch, image: u64, hit: &Hit) {
    let cfa = hit.cfa();
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    walk.frame_pointer = hit.frame_pointer();
    walk.stack_pointer = cfa;
    walk.window_bytes = 0;
    walk.hash = StackHash::new(image);
    walk.frame_count = 0;
    walk.end(StackStatus::TooDeep);
    push(scratch, hit.instruction_pointer());
    match record_at(scratch, cfa.wrapping_sub(RECORD)) {
        Some((_, return_address)) => push(scratch, return_address),
        None => return walk.end(StackStatus::Fault),
    }
    let mut context = Loop { scratch };
    // SAFETY: the callback has the signature the helper wants, and the context outlives the call.
    unsafe { bpf_loop(MAX_FRAMES as u32 - 2, step as *mut c_void, (&raw mut context).cast(), 0) };
}

#[inline(never)]
extern "C" fn step(_index: u64, context: *mut Loop) -> i64 {
    // SAFETY: the helper passes the context that `walk` gave it.
    let scratch = unsafe { (*context).scratch };
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    let at = walk.frame_pointer;
    if at == 0 {
        walk.end(StackStatus::FramePointers);
        return STOP;
    }
    // The record of a frame lies above all frames it called, the innermost one's CFA included.
    if at & 7 != 0 || at.wrapping_sub(walk.stack_pointer) > MAX_FRAME_BYTES {
        walk.end(StackStatus::BrokenChain);
        return STOP;
    }
    let Some((caller, return_address)) = record_at(scratch, at) else {
        walk.end(StackStatus::Fault);
        return STOP;
    };
    if return_address == 0 {
        walk.end(StackStatus::FramePointers);
        return STOP;
    }
    if !CODE.contains(&return_address) {
        walk.end(StackStatus::BrokenChain);
        return STOP;
    }
    push(scratch, return_address);
    walk.stack_pointer = at + RECORD;
    walk.frame_pointer = caller;
    CONTINUE
}

/// Adds a frame.
#[inline(always)]
fn push(scratch: *mut Scratch, address: u64) {
    // SAFETY: `scratch` is a map value that is ours while claimed; the mask keeps the index in bounds.
    unsafe {
        let walk = &mut (*scratch).walk;
        let index = (walk.frame_count & (MAX_FRAMES as u64 - 1)) as usize;
        *addr_of_mut!((*scratch).frames).cast::<u64>().add(index) = address;
        walk.frame_count = walk.frame_count + 1;
        walk.hash = walk.hash.push(address);
    }
}

/// The two words at `at`, from the window; moves the window there when they are outside.
#[inline(always)]
fn record_at(scratch: *mut Scratch, at: u64) -> Option<(u64, u64)> {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    let mut offset = at.wrapping_sub(walk.window_at);
    if offset.wrapping_add(RECORD) > walk.window_bytes || offset > WINDOW_BYTES {
        if !move_window(scratch, at) {
            return None;
        }
        offset = 0;
    }
    let index = (offset >> 3) as usize & (WINDOW_WORDS - 1);
    // SAFETY: the masks keep the indexes in bounds.
    unsafe {
        let window = addr_of_mut!((*scratch).window).cast::<u64>();
        Some((*window.add(index), *window.add((index + 1) & (WINDOW_WORDS - 1))))
    }
}

/// Copies the stack from `at` on. Near the end of the stack only what is left of the page can be read.
#[inline(always)]
fn move_window(scratch: *mut Scratch, at: u64) -> bool {
    // SAFETY: `scratch` is a map value that is ours while claimed; both sizes fit the window.
    unsafe {
        let walk = &mut (*scratch).walk;
        let window = addr_of_mut!((*scratch).window).cast::<c_void>();
        walk.window_at = at;
        walk.window_bytes = WINDOW_BYTES;
        if bpf_probe_read_user(window, WINDOW_BYTES as u32, at as *const c_void) == 0 {
            return true;
        }
        let rest = (PAGE - (at & (PAGE - 1))) & (WINDOW_BYTES - 8);
        walk.window_bytes = rest;
        rest >= RECORD && bpf_probe_read_user(window, rest as u32, at as *const c_void) == 0
    }
}
