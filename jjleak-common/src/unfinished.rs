//! Stacks that the kernel side could not finish, because they lead into code whose rows are not loaded yet.
//!
//! The user side finishes them from a copy of the thread's stack once it has the rows.

use crate::unwind::Row;

/// State of a walk before its next step, with the copied stack.
///
/// A record of the ring buffer is this header, followed by the copy in one of the [sizes](COPY_PAGES).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Unfinished {
    /// Hash of the unfinished stack, as in its row.
    pub hash: u64,
    /// Index of its row.
    pub row: u32,
    /// Image in which the stack was captured.
    pub image: u32,
    /// Time of the copy, in nanoseconds of `CLOCK_MONOTONIC`.
    pub taken_ns: u64,
    /// Address of the code whose rows are missing.
    pub instruction_pointer: u64,
    /// Stack pointer of its frame.
    pub stack_pointer: u64,
    /// Frame pointer of its frame.
    pub frame_pointer: u64,
    /// Distance in bytes below the stack pointer where the called frame has saved the base register; 0 if unknown.
    pub base_saved: u64,
    /// Mapping that contains the stack.
    pub stack_begin: u64,
    /// First address after it.
    pub stack_end: u64,
    /// Address of the copy: the start of a page.
    pub copied_at: u64,
    /// The copied pages: a bit for each. Pages that the thread has not written to yet are in no memory.
    pub copied_pages: u64,
    /// 1 if the instruction pointer is a return address, 0 if execution was interrupted there.
    pub after_call: u8,
    /// 1 once a frame was unwound by its frame pointer, which is no proof.
    pub unproven: u8,
    /// 1 if the frame was found by a frame pointer.
    pub by_frame_pointer: u8,
    /// Explicit padding, always 0.
    pub reserved: [u8; 5],
}

const _: () = assert!(size_of::<Unfinished>() == 96 && align_of::<Unfinished>() == 8);

/// Size of a page of memory.
pub const PAGE_BYTES: u64 = 4096;

/// Sizes of copies in pages. The kernel reserves room of constant sizes only. A stack of 256 frames of a Python program has some
/// 40 KiB.
pub const COPY_PAGES: [usize; 6] = [2, 3, 4, 6, 9, 16];

/// Number of bytes below the stack pointer that the next step can read: those with a saved base register.
pub const BYTES_BELOW: u64 = (Row::MAX_BASE_WORDS + 1) << 3;

/// Size of the ring buffer in bytes: 1,000 copies of 16 KiB before the user side takes them, which it does at once. Two threads make
/// as many in some 10 ms.
pub const RING_BYTES: u32 = 16 << 20;

/// A process's unfinished stacks may use this share of the stack table, as a shift: an eighth.
pub const SHARE_SHIFT: u32 = 3;
