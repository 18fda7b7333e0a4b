//! The last walks, to be taken for the next ones.
//!
//! A program allocates in loops: the same stack again and again. Where a walk leads is settled by the registers that it
//! begins with, by what the process maps, and by the words that it reads from the stack; and whose it is, by the thread, where
//! threads are told apart. A walk is therefore kept with the
//! words that it has read, and when they are all the same, the next one has the same stack, without being walked.

use core::ptr::{addr_of, addr_of_mut};

use jjleak_common::stack::StackStatus;

use super::{Scratch, WINDOW_WORDS, Walk};
use crate::threads;

/// Walks that are kept in each buffer. A loop has a handful of allocation sites; more would not fit the 32 KiB that a
/// per-CPU value can have.
const WALKS: usize = 8;
/// Words of a walk that is kept: a return address for each frame, and a frame pointer for some.
const WORDS: usize = WINDOW_WORDS;

/// More words than are kept.
const NEVER: u64 = 1 << 32;

/// A walk that came to its end by what is said here alone.
#[repr(C)]
pub(super) struct Replay {
    /// What the process maps ([`super::rows::scope`]); 0 when no walk is kept here.
    scope: u64,
    /// The registers that it began with.
    site: u64,
    cfa: u64,
    frame_pointer: u64,
    /// The thread, when threads are told apart: another one can come to have the same stack.
    thread: u64,
    /// How much of its window could be read.
    window_bytes: u64,
    /// Row of its stack.
    row: u32,
    /// How many words it read.
    count: u32,
    /// What they were, and where in the window.
    words: [u64; WORDS],
    places: [u8; WORDS],
}

/// The walks of a buffer.
pub(super) type Replays = [Replay; WALKS];

const _: () = assert!(WINDOW_WORDS <= 1 << u8::BITS && WALKS.is_power_of_two() && WORDS.is_power_of_two());

/// What a walk begins with.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) scope: u64,
    pub(super) site: u64,
    pub(super) cfa: u64,
    pub(super) frame_pointer: u64,
    /// The word below the CFA, which is in the window.
    pub(super) return_address: u64,
}

/// The row of a walk that began like this one and read what this one would read. Where there is none, the walk that follows
/// is noted.
#[inline(always)]
pub(super) fn find(scratch: *mut Scratch, start: &Start) -> Option<u32> {
    let mixed = (start.return_address ^ start.cfa << 5 ^ start.site).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let place = mixed >> (64 - WALKS.ilog2());
    // SAFETY: `scratch` is a map value that is ours while claimed; the place is in bounds.
    unsafe {
        (*scratch).walk.replay = place;
        (*scratch).walk.reads = 0;
        let replay = at(scratch);
        if (*replay).scope == start.scope
            && (*replay).site == start.site
            && (*replay).cfa == start.cfa
            && (*replay).frame_pointer == start.frame_pointer
            && (!threads::are_told_apart() || (*replay).thread == (*scratch).walk.thread)
            && (*replay).window_bytes == (*scratch).walk.window_bytes
            && reads_the_same(scratch, replay)
        {
            return Some((*replay).row);
        }
        (*replay).scope = 0;
        (*replay).site = start.site;
        (*replay).cfa = start.cfa;
        (*replay).frame_pointer = start.frame_pointer;
        if threads::are_told_apart() {
            (*replay).thread = (*scratch).walk.thread;
        }
        (*replay).window_bytes = (*scratch).walk.window_bytes;
    }
    // SAFETY: as above.
    let window_at = unsafe { (*scratch).walk.window_at };
    let place = start.cfa.wrapping_sub(8).wrapping_sub(window_at) >> 3;
    note(scratch, place as usize & (WINDOW_WORDS - 1), start.return_address);
    None
}

/// # Safety
/// The replay is one of the buffer's, which is a map value that is ours while claimed.
#[inline(always)]
unsafe fn reads_the_same(scratch: *const Scratch, replay: *const Replay) -> bool {
    // SAFETY: as promised by the caller; the masks keep indexes in bounds.
    unsafe {
        let window = addr_of!((*scratch).window).cast::<u64>();
        let words = addr_of!((*replay).words).cast::<u64>();
        let places = addr_of!((*replay).places).cast::<u8>();
        let count = (*replay).count as usize;
        let mut differ = 0;
        let mut index = 0;
        while index < WORDS {
            if index >= count {
                break;
            }
            let place = *places.add(index) as usize & (WINDOW_WORDS - 1);
            differ |= *window.add(place) ^ *words.add(index);
            index += 1;
        }
        differ == 0
    }
}

/// The walk reads a word of its window.
#[inline(always)]
pub(super) fn note(scratch: *mut Scratch, place: usize, word: u64) {
    // SAFETY: `scratch` is a map value that is ours while claimed; the mask keeps the index in bounds.
    unsafe {
        if (*scratch).walk.reads >= WORDS as u64 {
            spoil(&mut (*scratch).walk);
            return;
        }
        let replay = at(scratch);
        let index = (*scratch).walk.reads as usize & (WORDS - 1);
        *addr_of_mut!((*replay).words).cast::<u64>().add(index) = word;
        *addr_of_mut!((*replay).places).cast::<u8>().add(index) = place as u8;
        (*scratch).walk.reads += 1;
    }
}

/// The walk depends on more than is noted.
#[inline(always)]
pub(super) fn spoil(walk: &mut Walk) {
    walk.reads = NEVER;
}

/// The walk has ended in this row: keeps it, if it ended by what is noted.
#[inline(always)]
pub(super) fn keep(scratch: *mut Scratch, scope: u64, row: u32) {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    unsafe {
        let walk = &mut (*scratch).walk;
        let reached_root =
            walk.status == StackStatus::Complete as u64 || walk.status == StackStatus::FramePointers as u64;
        if reached_root && walk.reads <= WORDS as u64 {
            let replay = at(scratch);
            (*replay).row = row;
            (*replay).count = walk.reads as u32;
            (*replay).scope = scope;
        }
    }
}

/// Where the current walk is kept.
///
/// # Safety
/// `scratch` is a map value that is ours while claimed.
#[inline(always)]
unsafe fn at(scratch: *mut Scratch) -> *mut Replay {
    // SAFETY: as promised by the caller; the mask keeps the index in bounds.
    unsafe {
        let place = (*scratch).walk.replay as usize & (WALKS - 1);
        addr_of_mut!((*scratch).replays).cast::<Replay>().add(place)
    }
}
