//! Layout of code that a HotSpot JVM generates, for the kernel side.
//!
//! A code heap consists of segments of equal size. Its blocks are whole segments, each with a blob of code.
//! The *segment map* has a byte per segment, which leads back to the first segment of its block. A block
//! stays in place while a thread executes its code: its data are valid while a stack is walked, whatever the
//! JVM compiles and discards meanwhile.

use crate::unwind::layer;

mod colours;
pub mod safepoint;

pub use colours::{Colours, Phase};

/// Maximum number of code heaps: HotSpot has one to three, four with the AOT compiler. A power of two: the
/// kernel side masks with it.
pub const MAX_HEAPS: usize = 8;

/// Bytes from the start of a block that contain all fields; HotSpot's blobs have headers of up to 376 bytes.
pub const MAX_HEADER_BYTES: usize = 512;

/// Number of words of a header.
pub const HEADER_WORDS: usize = MAX_HEADER_BYTES / 4;

/// Address range of a code heap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeHeap {
    /// First address.
    pub begin: u64,
    /// First address after its reserved memory.
    pub end: u64,
    /// Address of its segment map.
    pub segment_map: u64,
    /// log2 of the segment size in bytes.
    pub segment_log2: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// A JVM's code cache. All offsets are in words of 4 bytes from the start of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeCache {
    /// Its heaps; unused entries are empty.
    pub heaps: [CodeHeap; MAX_HEAPS],
    /// Bytes of a block to read: the whole header of compiled code.
    pub header_bytes: u32,
    /// Bytes of the header that every blob has.
    pub plain_bytes: u32,
    /// Offset of the flag that the block is in use: its lowest byte.
    pub used: u32,
    /// Offset of the blob.
    pub blob: u32,
    /// Offset of the pointer to the blob's name, which identifies its kind.
    pub name: u32,
    /// Offset of the frame size, in words of 8 bytes.
    pub frame_size: u32,
    /// Offset of the start of the code: an address, or an offset from the start of the blob.
    pub code_begin: u32,
    /// Offset of the end of the code: an address, or an offset from the start of the blob.
    pub code_end: u32,
    /// 1 if start and end are offsets, of 4 bytes each.
    pub is_relative: u32,
    /// Offset of the compilation ID.
    pub compile_id: u32,
    /// Deoptimization handlers of compiled code, for calls and for calls by method handles: a frame whose code was
    /// discarded while it was running (*deoptimized*) returns there. Addresses or offsets, as for the code; both 0 if
    /// unknown.
    pub deopt_handlers: [u32; 2],
    /// Offset in a frame, from its inner end in bytes, of the original return address of a deoptimized frame.
    pub original: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
    /// Frames of virtual threads in the Java heap.
    pub continuations: Continuations,
}

/// Frames of virtual threads in the Java heap. When a virtual thread resumes, the JVM copies only a few of
/// its frames back to the stack. The others stay in the heap, in `StackChunk` objects. They have the layout
/// of stack frames, except that pointers into frames are offsets. The last frame on the stack returns to a
/// barrier. Above it is HotSpot's entry of the continuation
/// (`src/hotspot/share/runtime/continuationEntry.hpp` in the JDK), with the `Continuation`, which refers to
/// the innermost chunk. All fields are 0 while unknown. Offsets in objects are in words of 4 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Continuations {
    /// Value of the 8-byte word at [`klass_at`](Self::klass_at) of a chunk under the mask; never 0 if known.
    pub klass: u64,
    /// See [`Self::klass`].
    pub klass_mask: u64,
    /// Mask of a reference within its 8-byte word.
    pub reference_mask: u64,
    /// Left shift of the masked reference.
    pub reference_shift: u32,
    /// See [`Self::klass`].
    pub klass_at: u32,
    /// Base to add to the shifted reference.
    pub reference_base: u64,
    /// Address of the variable that holds the return address into the code that entered the continuation.
    pub return_address: u64,
    /// Address of the variable with the progress of a safepoint: a [`safepoint`]. Collectors move objects
    /// while a safepoint is in force, and threads in native code run on; [`barrier`] says whether they also
    /// do so at other times.
    pub safepoint: u64,
    /// Address of the counter of safepoint beginnings and ends; it is odd in between.
    pub safepoints: u64,
    /// Offset in a `Continuation` of the reference to its innermost chunk.
    pub tail: u32,
    /// Offset in a chunk of the reference to the next outer one; null in the last.
    pub parent: u32,
    /// Offset in a chunk of the size of its frame memory, in words of 8 bytes.
    pub size: u32,
    /// Offset in a chunk of the number of words before the frames.
    pub stack_pointer: u32,
    /// Offset in a chunk of the number of words before the end of the frames.
    pub bottom: u32,
    /// Offset of the frame memory.
    pub stack: u32,
    /// Method by which the collector keeps references valid: a [`barrier`].
    pub barrier: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
    /// Colours of valid references, for collectors that use them.
    pub colours: Colours,
}

/// Methods by which collectors keep references valid. A collector that moves objects while threads run leaves stale
/// references behind, each of which is fixed when it is used.
pub mod barrier {
    /// Objects are moved while threads are stopped; references are valid while they run.
    pub const NONE: u32 = 0;
    /// Shenandoah: a moved object refers to its copy ([`super::forwarded`]). It stays in place until all
    /// references to it have been updated, which ends with a safepoint.
    pub const FORWARDED: u32 = 1;
    /// ZGC without generations (until JDK 23): references are addresses with the bits of their phase, on
    /// stacks too.
    pub const COLOURED: u32 = 2;
    /// Generational ZGC: references in objects are shifted addresses, with such bits below them. Those on a
    /// stack are plain addresses, valid in the thread's phase.
    pub const SHIFTED: u32 = 3;
}

/// Address of the copy of a moved object, by the first word of its header
/// (`src/hotspot/share/oops/markWord.hpp` and
/// `src/hotspot/share/gc/shenandoah/shenandoahForwarding.inline.hpp` in the JDK): the lowest two bits mark
/// it. Without an address, the object is only marked by a heap walk. With compact headers such a mark keeps
/// the class, which could be mistaken for an address, but it exists within safepoints only.
#[inline(always)]
#[must_use]
pub const fn forwarded(mark: u64) -> Option<u64> {
    if mark & 3 == 3 && mark != 3 { Some(mark & !3) } else { None }
}

impl Continuations {
    /// Offset of the reference to the `Continuation` in HotSpot's continuation entry on the stack, in bytes:
    /// an empty structure and a pointer precede it.
    pub const CONTINUATION_AT: u64 = 16;
    /// Offset of the next outer entry on the same stack, if there is one.
    pub const PARENT_AT: u64 = 8;
    /// Offset of a chunk, which none of the JDKs from 21 to 25 sets.
    pub const CHUNK_AT: u64 = 24;
    /// Offset of the virtual thread flag, with the number of argument words of the last frame on the stack in
    /// the higher half.
    pub const FLAGS_AT: u64 = 32;
    /// Offset of the thread's previous outermost frame that does not have compiled code's layout.
    pub const FAST_PATH_AT: u64 = 40;
    /// Offset of the number of held monitors, in JDK 21 with the number of reasons not to unmount in the
    /// higher half.
    pub const HELD_AT: u64 = 48;
    /// Size of the entry in bytes.
    pub const ENTRY_BYTES: u32 = 56;

    /// The address that a word with an uncoloured reference refers to; 0 for null.
    #[inline(always)]
    #[must_use]
    pub const fn referred(&self, word: u64) -> u64 {
        match word & self.reference_mask {
            0 => 0,
            reference => self.reference_base.wrapping_add(reference << (self.reference_shift & 63)),
        }
    }
}

/// Beginnings of HotSpot's names for kinds of code, as little-endian words.
pub mod name {
    /// Compiled methods, with the trailing NUL.
    pub const COMPILED: u64 = u64::from_le_bytes(*b"nmethod\0");
    /// Wrappers of native methods.
    pub const NATIVE: u64 = u64::from_le_bytes(*b"native n");
    /// The interpreter.
    pub const INTERPRETER: u64 = u64::from_le_bytes(*b"Interpre");
    /// Stubs.
    pub const STUBS: u64 = u64::from_le_bytes(*b"StubRout");
    /// The eight bytes at offset 16 in the name of a continuation stub: `StubRoutines (continuation stubs)`,
    /// in JDK 25 without the second space.
    pub const OF_CONTINUATIONS: u64 = u64::from_le_bytes(*b"ntinuati");
}

/// Bits of a [`compile_id`](CodeCache::compile_id) that are part of a frame.
pub const COMPILE_ID_BITS: u32 = 13;

/// Lowest [`COMPILE_ID_BITS`] bits of a compilation ID.
#[inline(always)]
#[must_use]
pub const fn id_in_frame(compile_id: u32) -> u16 {
    (compile_id & ((1 << COMPILE_ID_BITS) - 1)) as u16
}

/// Identifies a compilation in place of a row's address: the layer of its frames in the lower half, and in
/// the upper half the next higher 16 bits of its ID, which are part of the stack's hash.
#[inline(always)]
#[must_use]
pub const fn frame_of(compile_id: u32) -> u32 {
    (layer::GENERATED | id_in_frame(compile_id)) as u32 | (compile_id >> COMPILE_ID_BITS) << u16::BITS
}

const _: () = assert!(
    size_of::<CodeHeap>() == 32
        && size_of::<Colours>() == 40
        && size_of::<Continuations>() == 136
        && size_of::<CodeCache>() == 32 * MAX_HEAPS + 192
);
const _: () = assert!(MAX_HEAPS.is_power_of_two() && HEADER_WORDS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_leads_to_its_copy_if_there_is_one() {
        assert_eq!(forwarded(0x7f00_1238 | 3), Some(0x7f00_1238));
        // Unlocked, with a monitor, locked on the stack, marked, and immovable for want of memory.
        assert!([1, 0x7f00_1238 | 2, 0x7f00_1238, 3, 5].iter().all(|mark| forwarded(*mark).is_none()));
    }

    #[test]
    fn compilations_are_distinguished_by_29_bits_of_their_ids() {
        let ids = (0..29).map(|bit| 0x64 ^ 1 << bit).chain([0, 100, 8_192 + 100, 65_536 + 100]);
        let ids: std::collections::BTreeSet<u32> = ids.collect();
        let frames: std::collections::BTreeSet<u32> = ids.iter().map(|id| frame_of(*id)).collect();
        assert_eq!(frames.len(), ids.len());
        assert!(
            frames
                .iter()
                .all(|frame| { (layer::GENERATED..layer::INTERPRETED).contains(&((frame & 0xffff) as u16)) })
        );
    }
}
