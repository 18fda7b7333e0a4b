//! Cache of recent walks, to reuse their stacks.
//!
//! A program allocates in loops, with the same stack again and again. The result of a walk is determined by the initial
//! registers, the process's mappings, the words read from the stack, and the thread, if threads are distinguished. Therefore a
//! walk is kept with the words that it has read; if they are all unchanged, the next call has the same stack and is not walked.

use core::ptr::{addr_of, addr_of_mut};

use jjleak_common::{stack::StackStatus, stage::Stage};

use super::{Captured, Claimed, WINDOW_WORDS, Walk, intern, window};
use crate::{memory::opaque, stages, threads};

/// Number of walks kept in each buffer. A loop has a handful of allocation sites; more would not fit the 32 KiB limit of a
/// per-CPU value.
const WALKS: usize = 8;
/// Maximum number of words of a kept walk: a return address for each frame, and a frame pointer for some.
const WORDS: usize = WINDOW_WORDS;

/// A count beyond the maximum.
const NEVER: u64 = 1 << 32;

/// A walk whose result depends on nothing but these fields.
#[repr(C)]
pub(super) struct Replay {
    /// Scope of the process's mappings ([`super::rows::scope`]); 0 if the entry is unused.
    scope: u64,
    /// Initial registers.
    site: u64,
    cfa: u64,
    frame_pointer: u64,
    /// The thread, if threads are distinguished: another thread could reuse the same stack.
    thread: u64,
    /// Hash of the stack, and its row unless it has been evicted since.
    hash: u64,
    row: u32,
    /// Number of words read.
    count: u32,
    /// Number of bytes of the window that contain them.
    extent: u64,
    /// The words, and their indices in the window.
    words: [u64; WORDS],
    places: [u8; WORDS],
}

/// The walks kept in a buffer.
pub(super) type Replays = [Replay; WALKS];

/// Number of bytes of stack that earlier walks from the same start needed: that many are copied for the next one, and the rest
/// only if they do not suffice. Copying all would take most of the time. There are more extents than walks, which also differ by
/// the caller of the function.
pub(super) type Extents = [u16; EXTENTS];
const EXTENTS: usize = 32;

const _: () = assert!(WINDOW_WORDS <= 1 << u8::BITS && WALKS.is_power_of_two() && WORDS.is_power_of_two());
const _: () = assert!(EXTENTS.is_power_of_two() && WINDOW_WORDS * 8 <= u16::MAX as usize);

/// Initial state of a walk.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) scope: u64,
    pub(super) site: u64,
    pub(super) cfa: u64,
    pub(super) frame_pointer: u64,
    /// The word below the CFA, which is in the window.
    pub(super) return_address: u64,
}

/// Number of bytes of stack that a walk from this start is likely to need; 0 if unknown.
#[inline(always)]
pub(super) fn extent(scratch: Claimed, site: u64, cfa: u64) -> u64 {
    let place = mix(cfa ^ site) >> (64 - EXTENTS.ilog2());
    // SAFETY: the mask keeps the index in bounds.
    unsafe { *scratch.extents().add(place as usize & (EXTENTS - 1)) as u64 }
}

/// Stores the number of bytes for the next walk from this start.
#[inline(always)]
fn expect(scratch: Claimed, replay: *const Replay) {
    // SAFETY: both are in a map value that is ours while claimed; the mask keeps the index in bounds.
    unsafe {
        let place = mix((*replay).cfa ^ (*replay).site) >> (64 - EXTENTS.ilog2());
        let extents = scratch.extents();
        *extents.add(place as usize & (EXTENTS - 1)) = (*replay).extent as u16;
    }
}

#[inline(always)]
fn mix(value: u64) -> u64 {
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The stack of a kept walk with the same start and the same words, if it still has its row. If there is none, the rest of the
/// window is copied, and [`begin`] records the following walk.
#[inline(always)]
pub(super) fn find(scratch: Claimed, start: &Start) -> Option<Captured> {
    let place = mix(start.return_address ^ start.cfa << 5 ^ start.site) >> (64 - WALKS.ilog2());
    // SAFETY: the place is in bounds.
    unsafe {
        scratch.walk().replay = place;
        let replay = at(scratch);
        let began_alike = (*replay).scope == start.scope
            && (*replay).site == start.site
            && (*replay).cfa == start.cfa
            && (*replay).frame_pointer == start.frame_pointer
            && (!threads::are_told_apart() || (*replay).thread == scratch.walk().thread);
        if began_alike {
            if (*replay).extent > scratch.walk().window_bytes {
                window::complete(scratch);
                expect(scratch, replay);
            }
            // The benchmark's program that stops at this stage does not compare the words.
            if (*replay).extent <= scratch.walk().window_bytes
                && (stages::end_with(Stage::Words) || reads_the_same(scratch, replay))
            {
                let known = Captured { row: (*replay).row, hash: (*replay).hash };
                if intern::has(known.row, known.hash) {
                    return Some(known);
                }
            }
        }
        None
    }
}

/// Begins to record a walk, unless its window has become empty: indices would differ in the next window.
#[inline(always)]
pub(super) fn begin(scratch: Claimed, start: &Start) {
    window::complete(scratch);
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let window_at = unsafe {
        if scratch.walk().window_bytes == 0 {
            return;
        }
        let replay = at(scratch);
        (*replay).scope = 0;
        (*replay).site = start.site;
        (*replay).cfa = start.cfa;
        (*replay).frame_pointer = start.frame_pointer;
        if threads::are_told_apart() {
            (*replay).thread = scratch.walk().thread;
        }
        (*replay).extent = 0;
        scratch.walk().reads = 0;
        scratch.walk().window_at
    };
    let place = start.cfa.wrapping_sub(8).wrapping_sub(window_at) >> 3;
    note(scratch, place as usize & (WINDOW_WORDS - 1), start.return_address);
}

/// # Safety
/// The replay is one of the buffer's, which is a map value that is ours while claimed.
#[inline(always)]
unsafe fn reads_the_same(scratch: Claimed, replay: *const Replay) -> bool {
    // SAFETY: as promised by the caller; the masks keep indexes in bounds.
    unsafe {
        let window = scratch.window();
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

/// Records a word that the walk reads from its window.
#[inline(always)]
pub(super) fn note(scratch: Claimed, place: usize, word: u64) {
    // SAFETY: the mask keeps the index in bounds.
    unsafe {
        let reads = scratch.walk().reads;
        if reads >= WORDS as u64 {
            spoil(scratch.walk());
            return;
        }
        let replay = at(scratch);
        // Before Linux 6.3, the verifier forgets the bounds of a number that was spilled to the stack before the comparison. The
        // mask restores them; `opaque` keeps the optimizer from removing it.
        let index = opaque(reads) as usize & (WORDS - 1);
        *addr_of_mut!((*replay).words).cast::<u64>().add(index) = word;
        *addr_of_mut!((*replay).places).cast::<u8>().add(index) = place as u8;
        let extent = (place as u64 + 1) << 3;
        if extent > (*replay).extent {
            (*replay).extent = extent;
        }
        scratch.walk().reads += 1;
    }
}

/// Marks the walk as dependent on more than the recorded words.
#[inline(always)]
pub(super) fn spoil(walk: &mut Walk) {
    walk.reads = NEVER;
}

/// Keeps the walk that ended in this row, if all of its input was recorded.
#[inline(always)]
pub(super) fn keep(scratch: Claimed, scope: u64, stack: Captured) {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    unsafe {
        let walk = scratch.walk();
        let reached_root =
            walk.status == StackStatus::Complete as u64 || walk.status == StackStatus::FramePointers as u64;
        if reached_root && walk.reads <= WORDS as u64 {
            let replay = at(scratch);
            (*replay).row = stack.row;
            (*replay).hash = stack.hash;
            (*replay).count = walk.reads as u32;
            (*replay).scope = scope;
            expect(scratch, replay);
        }
    }
}

/// Location of the current walk in the cache.
///
/// # Safety
/// `scratch` is a map value that is ours while claimed.
#[inline(always)]
unsafe fn at(scratch: Claimed) -> *mut Replay {
    // SAFETY: as promised by the caller; the mask keeps the index in bounds.
    unsafe {
        let place = scratch.walk().replay as usize & (WALKS - 1);
        scratch.replays().add(place)
    }
}
