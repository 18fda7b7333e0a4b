//! The last walks, to be taken for the next ones.
//!
//! A program allocates in loops: the same stack again and again. Where a walk leads is settled by the registers that it
//! begins with, by what the process maps, and by the words that it reads from the stack; and whose it is, by the thread, where
//! threads are told apart. A walk is therefore kept with the
//! words that it has read, and when they are all the same, the next one has the same stack, without being walked.

use core::ptr::{addr_of, addr_of_mut};

use jjleak_common::{stack::StackStatus, stage::Stage};

use super::{Scratch, WINDOW_WORDS, Walk, window};
use crate::{memory::opaque, stages, threads};

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
    /// Row of its stack.
    row: u32,
    /// How many words it read.
    count: u32,
    /// How many bytes of the window these are in.
    extent: u64,
    /// What they were, and where in the window.
    words: [u64; WORDS],
    places: [u8; WORDS],
}

/// The walks of a buffer.
pub(super) type Replays = [Replay; WALKS];

/// How many bytes of the stack the walks have needed that began like this: so many are copied for the next one, and the rest only
/// when they do not do. To copy all would take most of the time. There are more than walks, which differ by who has called the
/// function, too.
pub(super) type Extents = [u16; EXTENTS];
const EXTENTS: usize = 32;

const _: () = assert!(WINDOW_WORDS <= 1 << u8::BITS && WALKS.is_power_of_two() && WORDS.is_power_of_two());
const _: () = assert!(EXTENTS.is_power_of_two() && WINDOW_WORDS * 8 <= u16::MAX as usize);

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

/// How many bytes of its stack a walk that begins here is likely to need; 0 when that is not known.
#[inline(always)]
pub(super) fn extent(scratch: *const Scratch, site: u64, cfa: u64) -> u64 {
    let place = mix(cfa ^ site) >> (64 - EXTENTS.ilog2());
    // SAFETY: `scratch` is a map value that is ours while claimed; the mask keeps the index in bounds.
    unsafe { *addr_of!((*scratch).extents).cast::<u16>().add(place as usize & (EXTENTS - 1)) as u64 }
}

/// The next walk from here needs so many.
#[inline(always)]
fn expect(scratch: *mut Scratch, replay: *const Replay) {
    // SAFETY: both are in a map value that is ours while claimed; the mask keeps the index in bounds.
    unsafe {
        let place = mix((*replay).cfa ^ (*replay).site) >> (64 - EXTENTS.ilog2());
        let extents = addr_of_mut!((*scratch).extents).cast::<u16>();
        *extents.add(place as usize & (EXTENTS - 1)) = (*replay).extent as u16;
    }
}

#[inline(always)]
fn mix(value: u64) -> u64 {
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The row of a walk that began like this one and read what this one would read. Where there is none, all of the window is
/// copied, and [`begin`] has the walk that follows noted.
#[inline(always)]
pub(super) fn find(scratch: *mut Scratch, start: &Start) -> Option<u32> {
    let place = mix(start.return_address ^ start.cfa << 5 ^ start.site) >> (64 - WALKS.ilog2());
    // SAFETY: `scratch` is a map value that is ours while claimed; the place is in bounds.
    unsafe {
        (*scratch).walk.replay = place;
        let replay = at(scratch);
        let began_alike = (*replay).scope == start.scope
            && (*replay).site == start.site
            && (*replay).cfa == start.cfa
            && (*replay).frame_pointer == start.frame_pointer
            && (!threads::are_told_apart() || (*replay).thread == (*scratch).walk.thread);
        if began_alike {
            if (*replay).extent > (*scratch).walk.window_bytes {
                window::complete(scratch);
                expect(scratch, replay);
            }
            // The benchmark's program that ends with the words does not compare them.
            if (*replay).extent <= (*scratch).walk.window_bytes
                && (stages::end_with(Stage::Words) || reads_the_same(scratch, replay))
            {
                return Some((*replay).row);
            }
        }
        None
    }
}

/// A walk begins that is to be kept; unless its window has come to be empty, for places in the next one would be others.
#[inline(always)]
pub(super) fn begin(scratch: *mut Scratch, start: &Start) {
    window::complete(scratch);
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let window_at = unsafe {
        if (*scratch).walk.window_bytes == 0 {
            return;
        }
        let replay = at(scratch);
        (*replay).scope = 0;
        (*replay).site = start.site;
        (*replay).cfa = start.cfa;
        (*replay).frame_pointer = start.frame_pointer;
        if threads::are_told_apart() {
            (*replay).thread = (*scratch).walk.thread;
        }
        (*replay).extent = 0;
        (*scratch).walk.reads = 0;
        (*scratch).walk.window_at
    };
    let place = start.cfa.wrapping_sub(8).wrapping_sub(window_at) >> 3;
    note(scratch, place as usize & (WINDOW_WORDS - 1), start.return_address);
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
        let reads = (*scratch).walk.reads;
        if reads >= WORDS as u64 {
            spoil(&mut (*scratch).walk);
            return;
        }
        let replay = at(scratch);
        // Before Linux 6.3, the verifier forgets what a number has been compared with if it has been put on the stack before: the
        // mask tells it again, where the optimizer would leave it out.
        let index = opaque(reads) as usize & (WORDS - 1);
        *addr_of_mut!((*replay).words).cast::<u64>().add(index) = word;
        *addr_of_mut!((*replay).places).cast::<u8>().add(index) = place as u8;
        let extent = (place as u64 + 1) << 3;
        if extent > (*replay).extent {
            (*replay).extent = extent;
        }
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
            expect(scratch, replay);
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
