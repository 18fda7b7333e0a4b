//! The words of the target's stack, copied 2 KiB at a time.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut},
};

use aya_ebpf::helpers::generated::bpf_probe_read_user;

use jjleak_common::stack::StackStatus;

use super::{Scratch, WINDOW_WORDS, Walk, replay};

const PAGE: u64 = 4096;
/// Where the last word of user space can be: what lies above is no memory of the target's that could be missing
/// (Documentation/arch/x86/x86_64/mm.rst in Linux; stacks are below 2^47 also where there are five levels of page tables).
const LAST_ADDRESS: u64 = (1 << 47) - 8;
const WORD: u64 = 8;
const WINDOW_BYTES: u64 = WINDOW_WORDS as u64 * WORD;

/// The word at `at`. A word outside of the window moves the window there, so that the words above it, which the outer frames
/// need, come with it.
///
/// # Errors
/// [`StackStatus::Fault`] when it is not in memory, [`StackStatus::BadFrame`] when `at` is no place for a word on a stack.
#[inline(always)]
pub(super) fn word(scratch: *mut Scratch, at: u64) -> Result<u64, StackStatus> {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    if at & 7 != 0 || at > LAST_ADDRESS {
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
    let word = unsafe { *addr_of_mut!((*scratch).window).cast::<u64>().add(index) };
    replay::note(scratch, index, word);
    Ok(word)
}

/// Nothing is copied yet.
#[inline(always)]
pub(super) fn close(walk: &mut Walk) {
    walk.window_bytes = 0;
    walk.is_part = 0;
}

/// Copies the stack from `at` on, as much as is likely to be needed; whether these many `words` could be.
#[inline(always)]
pub(super) fn open(scratch: *mut Scratch, at: u64, expected_bytes: u64, words: u64) -> bool {
    if at & 7 == 0 && expected_bytes >= words << 3 && expected_bytes < WINDOW_BYTES {
        // SAFETY: `scratch` is a map value that is ours while claimed; the mask keeps the size below the window's.
        unsafe {
            let bytes = expected_bytes & (WINDOW_BYTES - WORD);
            let window = addr_of_mut!((*scratch).window).cast::<c_void>();
            if bpf_probe_read_user(window, bytes as u32, at as *const c_void) == 0 {
                (*scratch).walk.window_at = at;
                (*scratch).walk.window_bytes = bytes;
                (*scratch).walk.is_part = 1;
                return true;
            }
        }
    }
    // SAFETY: as above.
    let walk = unsafe { &mut (*scratch).walk };
    close(walk);
    if at & 7 != 0 {
        return false;
    }
    if move_to(scratch, at) && walk.window_bytes >= words << 3 {
        return true;
    }
    // Memory that has ended there for an earlier walk may have come since.
    walk.end_of_memory = 0;
    walk.window_bytes = 0;
    move_to(scratch, at) && walk.window_bytes >= words << 3
}

/// Copies what [`open`] has left out; when that fails, the window is empty.
#[inline(always)]
pub(super) fn complete(scratch: *mut Scratch) {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &mut (*scratch).walk };
    if walk.is_part != 0 {
        walk.is_part = 0;
        // This is the same window: no reason for a walk not to be kept.
        walk.window_bytes = 0;
        move_to(scratch, walk.window_at);
    }
}

/// A word of the window, which must reach that far.
#[inline(always)]
pub(super) fn at(scratch: *const Scratch, index: u64) -> u64 {
    // SAFETY: `scratch` is a map value that is ours while claimed; the mask keeps the index in bounds.
    unsafe { *addr_of!((*scratch).window).cast::<u64>().add(index as usize & (WINDOW_WORDS - 1)) }
}

/// Copies the stack from `at` on. Near the end of the stack only what is left of the page can be read. To find that out takes
/// a page fault, so that it is remembered where memory ended, until the page behind is seen to be there: a page that no frame has
/// written to yet ends memory, too, and comes when one does. Where nothing can be read, nothing is in the window: a copy that
/// fails leaves zeros behind, which are no words of the stack.
#[inline(always)]
fn move_to(scratch: *mut Scratch, at: u64) -> bool {
    // SAFETY: `scratch` is a map value that is ours while claimed; both sizes fit the window.
    unsafe {
        let walk = &mut (*scratch).walk;
        // Only what is in one window is compared.
        if walk.window_bytes != 0 {
            replay::spoil(walk);
        }
        let window = addr_of_mut!((*scratch).window).cast::<c_void>();
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
