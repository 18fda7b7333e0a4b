//! Cache of recent walks, to reuse their stacks.
//!
//! A program allocates in loops, with the same stacks again and again. The result of a walk is determined by the initial
//! registers, the process's mappings, the words of the stack that it depends on, and the thread, if threads are distinguished. Each of
//! these words tells where the next one is. So walks are kept as a tree. A node is found by the hash of all words before it, and has the
//! places of the next words, as far as they are the same in all walks that were kept through it; or the stack, if walks end there. A call
//! is not walked if the words at these places lead to a stack.

use core::ptr::{addr_of, addr_of_mut, read_volatile};

use jjleak_common::{
    stack::StackStatus,
    stage::Stage,
    walk_hash::{self, LANES},
};

use super::{
    Captured, Claimed, WINDOW_WORDS, Walk, intern,
    kept_nodes::{Node, WORDS_OF_NODE, belongs_in_second, hash, hash_words, node, place_of},
    scratch::{BUFFER_WORDS, Scratch, WINDOW_AT},
    window::{self, CHUNK_BYTES},
};
use crate::{
    constants::setting,
    memory::{opaque, swap, swap_if},
    stages, threads,
};

/// Maximum number of nodes of a walk.
const DEPTH: u64 = 16;
/// Maximum number of words of a kept walk: a return address for each frame, and a frame pointer for some.
const WORDS: usize = 256;

/// Places in the window's buffer, before the window: that of the frame pointer at the start, and of a word that is always 0.
const REGISTER: usize = 0;
const ZERO: usize = 1;
/// In place of the frame pointer's place.
pub(super) const NOTED: u64 = u64::MAX;
/// In place of a key: the walk ends here.
const ENDED: u64 = 0;
/// In place of a key: no such walk was kept.
const UNKNOWN: u64 = 1;
/// In place of a key: the words are beyond the copied ones. (Copying them from here would need more of the BPF stack than Linux 6.1 has.)
const BEYOND: u64 = 2;
/// A count beyond the maximum.
const NEVER: u64 = 1 << 32;

/// The words that a walk depends on.
#[repr(C)]
pub(super) struct Recorded {
    /// Number of bytes of the window that contain them.
    extent: u64,
    /// Indices of the words in the window's buffer.
    places: [u16; WORDS],
}

/// Number of bytes of stack that earlier walks from the same start needed: that many are copied for the next one, and the rest
/// only if they do not suffice. Copying all would take most of the time.
pub(super) type Extents = [u16; EXTENTS];
const EXTENTS: usize = 256;

const _: () = assert!(
    WINDOW_AT + WINDOW_WORDS + CHUNK_BYTES as usize / 8 <= BUFFER_WORDS
        && ZERO < WINDOW_AT
        && WORDS.is_power_of_two()
);
const _: () = assert!(EXTENTS.is_power_of_two() && WINDOW_WORDS * 8 <= u16::MAX as usize);
const _: () = assert!(WORDS_OF_NODE * DEPTH as usize >= WORDS);

/// Initial state of a walk.
#[derive(Clone, Copy)]
pub(super) struct Start {
    pub(super) scope: u64,
    pub(super) site: u64,
    pub(super) cfa: u64,
    pub(super) frame_pointer: u64,
    /// Index in the window of the first word.
    pub(super) first: u64,
    /// True if that is the frame pointer.
    pub(super) is_saved: bool,
    /// The word below the CFA, which is in the window.
    pub(super) return_address: u64,
}

/// Number of bytes of stack that a walk from this start is likely to need; 0 if unknown.
#[inline(always)]
pub(super) fn extent(scratch: Claimed, site: u64, cfa: u64) -> u64 {
    // SAFETY: the mask keeps the index in bounds.
    unsafe { *scratch.extents().add(place_of_extent(site, cfa)) as u64 }
}

/// Stores the number of bytes for the next walk from this start.
#[inline(always)]
fn expect(scratch: Claimed, place: usize, bytes: u64) {
    // SAFETY: in a map value that is ours while claimed; the mask keeps the index in bounds.
    unsafe { *scratch.extents().add(place & (EXTENTS - 1)) = bytes as u16 };
}

#[inline(always)]
fn place_of_extent(site: u64, cfa: u64) -> usize {
    let place = (cfa ^ site).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - EXTENTS.ilog2());
    place as usize & (EXTENTS - 1)
}

/// The stack of a kept walk with the same start and the same words, if it still has its row. If there is none, [`begin`] records the
/// following walk.
#[inline(always)]
pub(super) fn find(scratch: Claimed, start: &Start) -> Option<Captured> {
    let walk = scratch.walk();
    let mut key = walk_hash::of_start(start.scope, start.cfa, start.site, start.return_address);
    if threads::are_told_apart() {
        key = walk_hash::add(key, walk.thread);
    }
    // SAFETY: in a map value that is ours while claimed.
    unsafe {
        walk.start = key;
        *scratch.buffer().add(REGISTER) = start.frame_pointer;
    }
    if setting!(walk_each) != 0 {
        return None;
    }
    // The benchmark's program that stops at this stage hashes nothing, once a walk has told how much is to be copied.
    if stages::end_with(Stage::Words) && extent(scratch, start.site, start.cfa) != 0 {
        return Some(Captured { row: 0, hash: 0 });
    }
    if find_kept(scratch.into_ptr(), key, place_of_extent(start.site, start.cfa) as u64) == 0 {
        return None;
    }
    let stack = Captured { row: walk.kept_row as u32, hash: walk.kept_hash };
    intern::has(stack.row, stack.hash).then_some(stack)
}

/// Finds the end of a kept walk; returns 0 if there is none. Exported: inlined, it would need more of the BPF stack than Linux 6.1 has.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_kept(scratch: *mut Scratch, mut key: u64, place_of_extent: u64) -> u64 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: not null, so it is what the caller has claimed.
    let scratch = unsafe { Claimed::again(scratch) };
    let mut depth = 0;
    while depth <= DEPTH {
        let mut next = next_key(scratch.into_ptr(), key);
        if next == BEYOND {
            let extent = scratch.walk().extent;
            expect(scratch, place_of_extent as usize, extent);
            if !window::cover(scratch, extent) {
                return 0;
            }
            next = next_key(scratch.into_ptr(), key);
        }
        if next == ENDED {
            return 1;
        }
        if next == UNKNOWN || next == BEYOND {
            return 0;
        }
        key = next;
        depth += 1;
    }
    0
}

/// Key of the node after one, or [`ENDED`], [`UNKNOWN`] or [`BEYOND`]. Exported, so that the verifier follows it once, and not for each node of a
/// walk.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn next_key(scratch: *mut Scratch, key: u64) -> u64 {
    let Some(node) = node(key) else { return UNKNOWN };
    if scratch.is_null() {
        return UNKNOWN;
    }
    // SAFETY: not null, so it is what the caller has claimed; the node is a map value.
    unsafe {
        let scratch = Claimed::again(scratch);
        let walk = scratch.walk();
        let sequence = read_volatile(addr_of!((*node).sequence));
        if sequence & 1 != 0 || read_volatile(addr_of!((*node).key)) != key {
            return UNKNOWN;
        }
        let is_end = read_volatile(addr_of!((*node).count)) == 0;
        let mut next = ENDED;
        if is_end {
            walk.kept_row = read_volatile(addr_of!((*node).row)) as u64;
            walk.kept_hash = read_volatile(addr_of!((*node).hash));
        } else {
            let extent = read_volatile(addr_of!((*node).extent)) as u64;
            if extent > walk.window_bytes {
                walk.extent = extent;
                return BEYOND;
            }
            next = hash(scratch, node, key);
        }
        if read_volatile(addr_of!((*node).sequence)) != sequence || !is_end && next <= BEYOND {
            return UNKNOWN;
        }
        next
    }
}

/// Begins to record a walk.
#[inline(always)]
pub(super) fn begin(scratch: Claimed, start: &Start) {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    unsafe {
        (*scratch.recorded()).extent = 0;
        scratch.walk().reads = 0;
        scratch.walk().frame_pointer_at =
            if start.is_saved { in_buffer(start.first) } else { REGISTER as u64 };
    }
}

/// Records that the walk depends on a word of its window.
#[inline(always)]
pub(super) fn note(scratch: Claimed, place: usize) {
    note_in_buffer(scratch, place + WINDOW_AT);
}

/// Place in the buffer of a word of the window.
#[inline(always)]
pub(super) const fn in_buffer(place: u64) -> u64 {
    place + WINDOW_AT as u64
}

#[inline(always)]
fn note_in_buffer(scratch: Claimed, place: usize) {
    // SAFETY: the mask keeps the index in bounds.
    unsafe {
        let reads = scratch.walk().reads;
        if reads >= WORDS as u64 {
            spoil(scratch.walk());
            return;
        }
        let recorded = scratch.recorded();
        // Before Linux 6.3, the verifier forgets the bounds of a number that was spilled to the stack before the comparison. The
        // mask restores them; `opaque` keeps the optimizer from removing it.
        let index = opaque(reads) as usize & (WORDS - 1);
        *addr_of_mut!((*recorded).places).cast::<u16>().add(index) = place as u16;
        let extent = extent_of(place as u64);
        if extent > (*recorded).extent {
            (*recorded).extent = extent;
        }
        scratch.walk().reads += 1;
    }
}

/// Records that the walk depends on the frame pointer. Its place is not recorded when it is read: most functions save it for their
/// callers, and few callers need it to be unwound. In the others it can have any value, another one in each call.
#[inline(always)]
pub(super) fn note_frame_pointer(scratch: Claimed) {
    let walk = scratch.walk();
    if walk.frame_pointer_at != NOTED {
        note_in_buffer(scratch, walk.frame_pointer_at as usize);
        walk.frame_pointer_at = NOTED;
    }
}

/// Number of bytes of the window up to a place in the buffer.
#[inline(always)]
fn extent_of(place: u64) -> u64 {
    let words = place + 1;
    if words > WINDOW_AT as u64 { (words - WINDOW_AT as u64) << 3 } else { 0 }
}

/// Marks the walk as dependent on more than the recorded words.
#[inline(always)]
pub(super) fn spoil(walk: &mut Walk) {
    walk.reads = NEVER;
}

/// Keeps the walk that ended in this row, if all of its input was recorded.
#[inline(always)]
pub(super) fn keep(scratch: Claimed, site: u64, cfa: u64, stack: Captured) {
    let walk = scratch.walk();
    let reached_root =
        walk.status == StackStatus::Complete as u64 || walk.status == StackStatus::FramePointers as u64;
    if reached_root && walk.reads <= WORDS as u64 {
        keep_walk(scratch.into_ptr(), stack.row, stack.hash);
        // SAFETY: in a map value that is ours while claimed.
        expect(scratch, place_of_extent(site, cfa), unsafe { (*scratch.recorded()).extent });
    }
}

/// See [`keep`]. Exported, so that the verifier follows it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn keep_walk(scratch: *mut Scratch, row: u32, hash: u64) -> u64 {
    if scratch.is_null() {
        return 0;
    }
    // SAFETY: not null, so it is what the caller has claimed; the masks keep indexes in bounds.
    unsafe {
        let scratch = Claimed::again(scratch);
        let reads = scratch.walk().reads;
        let mut key = scratch.walk().start;
        let mut read = 0;
        let mut depth = 0;
        while depth <= DEPTH {
            let Some(node) = place_of(key, belongs_in_second(key) != 0) else { return 0 };
            let sequence = read_volatile(addr_of!((*node).sequence));
            // Another walk writes it.
            if sequence & 1 != 0 || !swap_if(addr_of_mut!((*node).sequence), sequence, sequence + 1) {
                return 0;
            }
            let is_end = read >= reads;
            if is_end {
                (*node).key = key;
                (*node).count = 0;
                (*node).row = row;
                (*node).hash = hash;
            } else {
                read += share(scratch.into_ptr(), node, key, read);
                key = hash_words(scratch.into_ptr(), node, key);
            }
            swap(addr_of_mut!((*node).sequence), sequence + 2);
            if is_end {
                return 0;
            }
            depth += 1;
        }
    }
    0
}

/// Writes the words of the recorded walk, from one on, into its node; returns how many. If other walks have been kept through the node, it
/// keeps the words that they have in common: the first one at least, because all before are the same. Exported as [`keep_walk`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn share(scratch: *mut Scratch, node: *mut Node, key: u64, from: u64) -> u64 {
    if scratch.is_null() || node.is_null() {
        return 0;
    }
    // SAFETY: not null, so they are what the caller has; the masks keep indexes in bounds.
    unsafe {
        let scratch = Claimed::again(scratch);
        let recorded = addr_of!((*scratch.recorded()).places).cast::<u16>();
        let left = scratch.walk().reads.wrapping_sub(from);
        let first = *recorded.add(opaque(from) as usize & (WORDS - 1));
        let places = addr_of_mut!((*node).places).cast::<u16>();
        let is_known = (*node).key == key && (*node).count != 0 && *places == first << 3;
        let most = if is_known { (*node).count as u64 } else { WORDS_OF_NODE as u64 };
        let most = if most < left { most } else { left };
        let mut extent = 0;
        let mut index = 0;
        while index < WORDS_OF_NODE && (index as u64) < most {
            let place = *recorded.add(opaque(from.wrapping_add(index as u64)) as usize & (WORDS - 1));
            if is_known && *places.add(index) != place << 3 {
                break;
            }
            *places.add(index) = place << 3;
            let end = extent_of(place as u64);
            if end > extent {
                extent = end;
            }
            index += 1;
        }
        let mut end = index;
        while end < WORDS_OF_NODE && end % LANES != 0 {
            *places.add(end) = (ZERO as u16) << 3;
            end += 1;
        }
        (*node).key = key;
        (*node).count = index as u16;
        (*node).extent = extent as u16;
        index as u64
    }
}
