//! Nodes of kept walks, and the places where they are found by their keys.

use core::ptr::{addr_of, read_volatile};

use aya_ebpf::{macros::map, maps::Array};
use jjleak_common::walk_hash::{LANES, Lanes};

use super::{
    Claimed,
    scratch::{BUFFER_WORDS, Scratch},
};

/// Number of nodes for all processes: 6 MiB.
const NODES: u32 = 1 << 16;
/// Maximum number of words of a node: more are in the next node.
pub(super) const WORDS_OF_NODE: usize = 32;
const GROUPS: usize = WORDS_OF_NODE / LANES;
/// Bits of a word's offset in bytes in the window's buffer.
const OFFSET: u64 = (BUFFER_WORDS as u64 - 1) << 3;

/// The next words of all walks that have read the same words so far, or the stack of these walks.
#[repr(C)]
pub(super) struct Node {
    /// Sequence counter: odd while the node is written, and another even number afterwards.
    pub(super) sequence: u64,
    /// Hash of the start and all words before.
    pub(super) key: u64,
    /// Hash of the stack, and its row unless it has been evicted since, if walks end here.
    pub(super) hash: u64,
    pub(super) row: u32,
    /// Number of the next words; 0 if walks end here.
    pub(super) count: u16,
    /// Number of bytes of the window that contain these words.
    pub(super) extent: u16,
    /// Offsets of the words in the buffer, [`LANES`] in each; the last group is filled up with [`ZERO`].
    pub(super) places: [u64; GROUPS],
}

#[map]
static KEPT: Array<Node> = Array::with_max_entries(NODES, 0);

const _: () = assert!(NODES.is_power_of_two());

/// The node of a key, or another one in its place.
#[inline(always)]
pub(super) fn node(key: u64) -> Option<*mut Node> {
    let first = place_of(key, false)?;
    // SAFETY: points into a map value.
    if unsafe { read_volatile(addr_of!((*first).key)) } == key { Some(first) } else { place_of(key, true) }
}

/// Returns whether a key's node is, or shall be, in its second place. Exported: inlined, it would need more of the BPF stack than Linux
/// 6.1 has.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn belongs_in_second(key: u64) -> u64 {
    let (Some(first), Some(second)) = (place_of(key, false), place_of(key, true)) else { return 0 };
    // SAFETY: both point into map values.
    let (in_first, in_second, sequence) = unsafe {
        (
            read_volatile(addr_of!((*first).key)),
            read_volatile(addr_of!((*second).key)),
            read_volatile(addr_of!((*first).sequence)),
        )
    };
    // If others have both places, it takes the first after each second write.
    let is_turn = sequence & 2 == 0;
    let is_first = in_first == key || in_second != key && (in_first == 0 || in_second != 0 && is_turn);
    !is_first as u64
}

/// A place that a key's node can have. There are two: with one, two frequent walks would keep replacing each other.
#[inline(always)]
pub(super) fn place_of(key: u64, second: bool) -> Option<*mut Node> {
    KEPT.get_ptr_mut((if second { key >> 32 } else { key }) as u32 & (NODES - 1))
}

/// See [`hash`]. Exported, so that the verifier follows it once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn hash_words(scratch: *mut Scratch, node: *const Node, key: u64) -> u64 {
    if scratch.is_null() || node.is_null() {
        return 0;
    }
    // SAFETY: not null, so they are what the caller has.
    unsafe { hash(Claimed::again(scratch), node, key) }
}

/// Hash of the words of a node.
///
/// # Safety
/// The node is a map value.
#[inline(always)]
pub(super) unsafe fn hash(scratch: Claimed, node: *const Node, key: u64) -> u64 {
    // SAFETY: as promised by the caller; the masks keep indexes in bounds.
    unsafe {
        let buffer = scratch.buffer().cast::<u8>();
        let word = |offset: u64| *buffer.add((offset & OFFSET) as usize).cast::<u64>();
        let count = (*node).count;
        let groups = (count as usize).div_ceil(LANES);
        let mut lanes = Lanes::new(key, count);
        let mut group = 0;
        while group < GROUPS && group < groups {
            let places = (*node).places[group];
            lanes = lanes.push([word(places), word(places >> 16), word(places >> 32), word(places >> 48)]);
            group += 1;
        }
        lanes.finish()
    }
}
