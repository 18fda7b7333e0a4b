//! Memory for what is allocated while the next library's functions are looked up. It is never freed.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Alignment of any block of malloc.
pub(crate) const ALIGNMENT: usize = 16;

/// Ample: `dlsym` allocates some hundred bytes if there is no function of a name.
const BYTES: usize = 64 << 10;

static mut MEMORY: [u8; BYTES] = [0; BYTES];
/// Bytes given out.
static USED: AtomicUsize = AtomicUsize::new(0);

fn begin() -> *mut u8 {
    (&raw mut MEMORY).cast()
}

/// Returns true if a block is one of these.
#[inline]
pub(crate) fn has(block: *mut c_void) -> bool {
    block.addr().wrapping_sub(begin().addr()) < BYTES
}

/// A block of zeros; null if there is no room.
#[cold]
pub(crate) fn allocate(size: usize, alignment: usize) -> *mut c_void {
    let alignment = alignment.max(ALIGNMENT);
    if size > BYTES || alignment > BYTES || !alignment.is_power_of_two() {
        return ptr::null_mut();
    }
    let place = |used: usize| (begin().addr() + used).next_multiple_of(alignment) - begin().addr();
    let end = |used: usize| Some(place(used) + size).filter(|end| *end <= BYTES);
    match USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end) {
        // SAFETY: within the memory.
        Ok(used) => unsafe { begin().add(place(used)).cast() },
        Err(_) => ptr::null_mut(),
    }
}

/// A larger block with the same content.
#[cold]
pub(crate) fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    let resized = allocate(size, ALIGNMENT);
    if !resized.is_null() && has(block) {
        copy(block, resized, size);
    }
    resized
}

/// Moves a block of this memory into one of malloc.
///
/// # Safety
/// As for malloc(3).
#[cold]
pub(crate) unsafe fn leave(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: as promised by the caller.
    let moved = unsafe { crate::malloc(size) };
    if !moved.is_null() {
        copy(block, moved, size);
    }
    moved
}

/// Copies what a block of this memory may hold.
fn copy(from: *mut c_void, to: *mut c_void, size: usize) {
    let behind = BYTES - (from.addr() - begin().addr());
    // SAFETY: both have that many bytes; a block that was given out later begins behind this one, at the earliest.
    unsafe { ptr::copy(from, to, size.min(behind)) };
}
