//! Words of the target's stack, copied 2 KiB at a time.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;

use jjleak_common::{
    stack::StackStatus,
    unwind::step::{WORD, is_word_address},
};

use super::{
    Claimed, WINDOW_WORDS, Walk, replay,
    scratch::{LINE_BYTES, Scratch},
};
use crate::memory::opaque;

const PAGE: u64 = 4096;
const WINDOW_BYTES: u64 = WINDOW_WORDS as u64 * WORD;
/// Bytes that are copied at a time: a typical stack of 20 frames.
pub(super) const CHUNK_BYTES: u64 = 2048;

/// The word at `at`. If it is above the copied words, more are copied; if it does not fit the window, the window moves there.
///
/// # Errors
/// [`StackStatus::Fault`] if the word is not resident, [`StackStatus::BadFrame`] if `at` cannot be the address of a word on a
/// stack.
#[inline(always)]
pub(super) fn word(scratch: Claimed, at: u64) -> Result<u64, StackStatus> {
    let place = place(scratch, at)?;
    replay::note(scratch, place as usize);
    Ok(self::at(scratch, place))
}

/// The index of the word at `at` in the window, as for [`word`]; the walk does not depend on it yet.
#[inline(always)]
pub(super) fn place(scratch: Claimed, at: u64) -> Result<u64, StackStatus> {
    let walk = scratch.walk();
    if !is_word_address(at) {
        return Err(StackStatus::BadFrame);
    }
    let offset = at.wrapping_sub(walk.window_at);
    let is_there = offset < walk.window_bytes || offset < WINDOW_BYTES && cover(scratch, offset + WORD);
    if !is_there && !move_to(scratch, at) {
        return Err(StackStatus::Fault);
    }
    // Read again: the window may have moved.
    Ok((at.wrapping_sub(walk.window_at) >> 3) & (WINDOW_WORDS as u64 - 1))
}

/// Empties the window.
#[inline(always)]
pub(super) fn close(walk: &mut Walk) {
    walk.window_bytes = 0;
    // No word is at or above, within the size of the window.
    walk.window_at = 0;
}

/// Copies the stack from the cache line of `at` on, as much as is likely to be needed. Returns true if at least this many `words` from
/// `at` on were copied.
#[inline(always)]
pub(super) fn open(scratch: Claimed, at: u64, expected_bytes: u64, words: u64) -> bool {
    let line = line_of(at);
    let needed = (at - line).wrapping_add(words << 3);
    if at & 7 == 0 && expected_bytes >= needed && expected_bytes < WINDOW_BYTES {
        // SAFETY: the mask keeps the size below the window's.
        unsafe {
            let bytes = expected_bytes & (WINDOW_BYTES - WORD);
            let window = scratch.window().cast::<c_void>();
            if bpf_probe_read_user(window, bytes as u32, line as *const c_void) == 0 {
                scratch.walk().window_at = line;
                scratch.walk().window_bytes = bytes;
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
    if move_to(scratch, at) && walk.window_bytes >= needed {
        return true;
    }
    // The end of memory found by an earlier walk may have moved since.
    walk.end_of_memory = 0;
    walk.window_bytes = 0;
    move_to(scratch, at) && walk.window_bytes >= needed
}

/// Address of the cache line that contains an address.
#[inline(always)]
fn line_of(at: u64) -> u64 {
    at & !(LINE_BYTES - 1)
}

/// Index in the window of a word that [`open`] has copied.
#[inline(always)]
pub(super) const fn first(at: u64) -> u64 {
    (at & (LINE_BYTES - 1)) >> 3
}

/// A word of the window; the window must include it.
#[inline(always)]
pub(super) fn at(scratch: Claimed, index: u64) -> u64 {
    // SAFETY: the mask keeps the index in bounds.
    unsafe { *scratch.window().add(index as usize & (WINDOW_WORDS - 1)) }
}

/// Copies more, until the window has so many bytes, at most [`WINDOW_BYTES`]. Returns false if that many cannot be read.
#[inline(always)]
pub(super) fn cover(scratch: Claimed, bytes: u64) -> bool {
    cover_window(scratch.into_ptr(), bytes) != 0
}

/// See [`cover`]. Exported, so that the verifier follows it once, and not from each place where a word is read.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn cover_window(scratch: *mut Scratch, bytes: u64) -> u64 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: not null, so it is what the caller has claimed.
    let scratch = unsafe { Claimed::again(scratch) };
    let walk = scratch.walk();
    let mut turn = 0;
    while turn <= WINDOW_BYTES / CHUNK_BYTES {
        let valid = walk.window_bytes;
        if valid >= bytes {
            return 1;
        }
        let copied = copy_chunk(scratch, valid, walk.window_at.wrapping_add(valid));
        if copied == 0 {
            return 0;
        }
        let valid = valid + copied;
        walk.window_bytes = if valid < WINDOW_BYTES { valid } else { WINDOW_BYTES };
        turn += 1;
    }
    0
}

/// Moves the window to the cache line of `at`. Returns true if any word was copied.
#[inline(always)]
fn move_to(scratch: Claimed, at: u64) -> bool {
    move_window(scratch.into_ptr(), at) != 0
}

/// See [`move_to`]. Exported as [`cover_window`]. If nothing can be read, the window is empty: a failed copy leaves zeros, which are no
/// words of the stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn move_window(scratch: *mut Scratch, at: u64) -> u64 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: not null, so it is what the caller has claimed.
    let scratch = unsafe { Claimed::again(scratch) };
    let walk = scratch.walk();
    // Only words within one window are compared.
    if walk.window_bytes != 0 {
        replay::spoil(walk);
    }
    let line = line_of(at);
    walk.window_at = line;
    walk.window_bytes = copy_chunk(scratch, 0, line);
    walk.window_bytes
}

/// Copies the stack from `at` on, to a place in the window; returns the number of bytes. Near the end of the stack, only the rest of the
/// page can be read. Detecting that takes a page fault, so the end of memory is remembered until the page behind it turns out to be
/// resident: a page that no frame has written to yet also ends memory, and becomes resident when one does.
#[inline(always)]
fn copy_chunk(scratch: Claimed, place: u64, at: u64) -> u64 {
    let walk = scratch.walk();
    // SAFETY: the buffer has space for a chunk behind the window, and the masks keep place and size in bounds.
    unsafe {
        let to = scratch.window().cast::<u8>().add(opaque(place) as usize & (WINDOW_BYTES - WORD) as usize);
        let to = to.cast::<c_void>();
        let before_end = walk.end_of_memory.wrapping_sub(at);
        if before_end >= CHUNK_BYTES || before_end == 0 {
            if bpf_probe_read_user(to, CHUNK_BYTES as u32, at as *const c_void) == 0 {
                if at.wrapping_sub(walk.end_of_memory) < PAGE {
                    walk.end_of_memory = 0;
                }
                return CHUNK_BYTES;
            }
            walk.end_of_memory = (at & !(PAGE - 1)) + PAGE;
        }
        let rest = walk.end_of_memory.wrapping_sub(at) & (CHUNK_BYTES - WORD);
        if rest == 0 || bpf_probe_read_user(to, rest as u32, at as *const c_void) != 0 { 0 } else { rest }
    }
}
