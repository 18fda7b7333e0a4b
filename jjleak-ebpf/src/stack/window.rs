//! Words of the target's stack, copied 2 KiB at a time.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;

use jjleak_common::{
    stack::StackStatus,
    unwind::step::{WORD, is_word_address},
};

use super::{Claimed, WINDOW_WORDS, Walk, replay, scratch::Scratch};

const PAGE: u64 = 4096;
const WINDOW_BYTES: u64 = WINDOW_WORDS as u64 * WORD;

/// The word at `at`. If it is outside of the window, the window moves there, and includes the words above it, which the outer
/// frames need.
///
/// # Errors
/// [`StackStatus::Fault`] if the word is not resident, [`StackStatus::BadFrame`] if `at` cannot be the address of a word on a
/// stack.
#[inline(always)]
pub(super) fn word(scratch: Claimed, at: u64) -> Result<u64, StackStatus> {
    let walk = scratch.walk();
    if !is_word_address(at) {
        return Err(StackStatus::BadFrame);
    }
    let mut offset = at.wrapping_sub(walk.window_at);
    if offset >= walk.window_bytes {
        if !move_to(scratch, at) {
            return Err(StackStatus::Fault);
        }
        offset = 0;
    }
    let index = (offset >> 3) as usize & (WINDOW_WORDS - 1);
    // SAFETY: the mask keeps the index in bounds.
    let word = unsafe { *scratch.window().add(index) };
    replay::note(scratch, index, word);
    Ok(word)
}

/// Empties the window.
#[inline(always)]
pub(super) fn close(walk: &mut Walk) {
    walk.window_bytes = 0;
    walk.is_part = 0;
}

/// Copies the stack from `at` on, as much as is likely to be needed. Returns true if at least this many `words` were copied.
#[inline(always)]
pub(super) fn open(scratch: Claimed, at: u64, expected_bytes: u64, words: u64) -> bool {
    if at & 7 == 0 && expected_bytes >= words << 3 && expected_bytes < WINDOW_BYTES {
        // SAFETY: the mask keeps the size below the window's.
        unsafe {
            let bytes = expected_bytes & (WINDOW_BYTES - WORD);
            let window = scratch.window().cast::<c_void>();
            if bpf_probe_read_user(window, bytes as u32, at as *const c_void) == 0 {
                scratch.walk().window_at = at;
                scratch.walk().window_bytes = bytes;
                scratch.walk().is_part = 1;
                return true;
            }
        }
    }
    // SAFETY: as above.
    let walk = scratch.walk();
    close(walk);
    if at & 7 != 0 {
        return false;
    }
    if move_to(scratch, at) && walk.window_bytes >= words << 3 {
        return true;
    }
    // The end of memory found by an earlier walk may have moved since.
    walk.end_of_memory = 0;
    walk.window_bytes = 0;
    move_to(scratch, at) && walk.window_bytes >= words << 3
}

/// Copies the rest that [`open`] has left out; the window is empty if that fails.
#[inline(always)]
pub(super) fn complete(scratch: Claimed) {
    let walk = scratch.walk();
    if walk.is_part != 0 {
        walk.is_part = 0;
        // The window stays the same, so the walk can still be kept.
        walk.window_bytes = 0;
        move_to(scratch, walk.window_at);
    }
}

/// A word of the window; the window must include it.
#[inline(always)]
pub(super) fn at(scratch: Claimed, index: u64) -> u64 {
    // SAFETY: the mask keeps the index in bounds.
    unsafe { *scratch.window().add(index as usize & (WINDOW_WORDS - 1)) }
}

/// Moves the window to `at`. Returns true if any word was copied.
#[inline(always)]
fn move_to(scratch: Claimed, at: u64) -> bool {
    move_window(scratch.into_ptr(), at) != 0
}

/// See [`move_to`]. Exported, so that the verifier follows it once, and not from each place where a word is read.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn move_window(scratch: *mut Scratch, at: u64) -> u64 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: not null, so it is what the caller has claimed.
    copy_from(unsafe { Claimed::again(scratch) }, at) as u64
}

/// Copies the stack from `at` on. Near the end of the stack, only the rest of the page can be read. Detecting that takes a page
/// fault, so the end of memory is remembered until the page behind it turns out to be resident: a page that no frame has written
/// to yet also ends memory, and becomes resident when one does. If nothing can be read, the window is empty: a failed copy leaves
/// zeros, which are no words of the stack.
#[inline(always)]
fn copy_from(scratch: Claimed, at: u64) -> bool {
    // SAFETY: both sizes fit the window.
    unsafe {
        let walk = scratch.walk();
        // Only words within one window are compared.
        if walk.window_bytes != 0 {
            replay::spoil(walk);
        }
        let window = scratch.window().cast::<c_void>();
        walk.window_at = at;
        walk.window_bytes = 0;
        let before_end = walk.end_of_memory.wrapping_sub(at);
        if before_end >= WINDOW_BYTES || before_end == 0 {
            if bpf_probe_read_user(window, WINDOW_BYTES as u32, at as *const c_void) == 0 {
                walk.window_bytes = WINDOW_BYTES;
                if at.wrapping_sub(walk.end_of_memory) < PAGE {
                    walk.end_of_memory = 0;
                }
                return true;
            }
            walk.end_of_memory = (at & !(PAGE - 1)) + PAGE;
        }
        let rest = walk.end_of_memory.wrapping_sub(at) & (WINDOW_BYTES - WORD);
        if rest == 0 || bpf_probe_read_user(window, rest as u32, at as *const c_void) != 0 {
            return false;
        }
        walk.window_bytes = rest;
        true
    }
}
