//! Code that a HotSpot JVM generates: where the kernel side reads what it is.
//!
//! A code heap consists of segments of equal size, and of blocks of whole segments, each with a blob of code. A byte a
//! segment, the *segment map*, leads back from any of a block's segments to its first one. A block on whose code a thread
//! stands cannot go while it does: what is read of it when a stack is taken is right, whatever the JVM compiles and throws
//! away meanwhile.

use crate::unwind::layer;

mod colours;
pub mod safepoint;

pub use colours::{Colours, Phase};

/// Code heaps of a JVM: HotSpot has one to three, four with the AOT compiler. A power of two: the kernel side masks with it.
pub const MAX_HEAPS: usize = 8;

/// Bytes from the start of a block that all fields are in; HotSpot's blobs have headers of up to 376 bytes.
pub const MAX_HEADER_BYTES: usize = 512;

/// Words of a header.
pub const HEADER_WORDS: usize = MAX_HEADER_BYTES / 4;

/// Where a code heap is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeHeap {
    /// First address.
    pub begin: u64,
    /// First address after what it can grow to.
    pub end: u64,
    /// Address of its segment map.
    pub segment_map: u64,
    /// log2 of the bytes of a segment.
    pub segment_log2: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// A JVM's code cache. All places are counted in words of 4 bytes from the start of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeCache {
    /// Its heaps; those that are not there are empty.
    pub heaps: [CodeHeap; MAX_HEAPS],
    /// Bytes of a block that are read: all of compiled code's header.
    pub header_bytes: u32,
    /// Bytes of the header that every blob has.
    pub plain_bytes: u32,
    /// Whether the block is in use: the lowest byte.
    pub used: u32,
    /// Where the blob begins.
    pub blob: u32,
    /// Pointer to the blob's name, by which its kind is known.
    pub name: u32,
    /// Size of a frame in words of 8 bytes.
    pub frame_size: u32,
    /// Where the code begins and ends: addresses, or distances from the start of the blob.
    pub code_begin: u32,
    /// See [`Self::code_begin`].
    pub code_end: u32,
    /// 1 when they are distances, of 4 bytes each.
    pub is_relative: u32,
    /// Number of the compilation.
    pub compile_id: u32,
    /// Where compiled code has its ways out to the interpreter, for calls and for calls by method handles: a frame whose code was
    /// thrown away under it (*deoptimized*) returns there. Addresses or distances, as the code; both 0 where that is not known.
    pub deopt_handlers: [u32; 2],
    /// How many bytes from a frame's inner end such a frame keeps the address that it would have returned to.
    pub original: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
    /// Where the frames of virtual threads are that are on no stack.
    pub continuations: Continuations,
}

/// The frames of virtual threads that are on no stack. When a virtual thread runs on, the JVM puts back a few of its frames
/// only. The others stay in the Java heap, in objects of the class `StackChunk`, each as it would be on a stack, but that
/// pointers into the frames are distances. The last frame on the stack returns to a barrier, and above it is what HotSpot
/// notes of the continuation (`src/hotspot/share/runtime/continuationEntry.hpp` in the JDK), with the `Continuation`, which knows the
/// innermost chunk. All 0 while that is not known. Places in objects are counted in words of 4 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Continuations {
    /// What the word of 8 bytes at [`klass_at`](Self::klass_at) is in a chunk, as far as this mask goes; never 0 when it is known.
    pub klass: u64,
    /// See [`Self::klass`].
    pub klass_mask: u64,
    /// References are such a part of a word of 8 bytes,
    pub reference_mask: u64,
    /// to be shifted to the left by this,
    pub reference_shift: u32,
    /// See [`Self::klass`].
    pub klass_at: u32,
    /// and added to this.
    pub reference_base: u64,
    /// Address of the variable that holds the return address into the code that entered the continuation.
    pub return_address: u64,
    /// Address of the variable that tells how far a safepoint has come: a [`safepoint`]. Collectors move objects in those that are in
    /// force, while threads in native code run on; [`barrier`] says whether they do at other times, too.
    pub safepoint: u64,
    /// Address of the variable that counts the beginnings and the ends of safepoints; it is odd in between.
    pub safepoints: u64,
    /// In a `Continuation`: reference to its innermost chunk.
    pub tail: u32,
    /// In a chunk: reference to the one further out; none in the last.
    pub parent: u32,
    /// In a chunk: the size of the memory for its frames, in words of 8 bytes,
    pub size: u32,
    /// how many of them are before the frames,
    pub stack_pointer: u32,
    /// and before the end of the frames.
    pub bottom: u32,
    /// Where that memory begins.
    pub stack: u32,
    /// How the collector keeps references right: a [`barrier`].
    pub barrier: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
    /// By what references are known that are up to date, where they have colours.
    pub colours: Colours,
}

/// How collectors keep references right. One that moves objects while threads run leaves stale references behind, each of which is mended
/// when it is used.
pub mod barrier {
    /// Objects are moved while threads are stopped, and references are right when they run.
    pub const NONE: u32 = 0;
    /// Shenandoah: an object that was moved leads to its copy ([`super::forwarded`]). It stays where it was until all references to it
    /// have been mended, which a safepoint ends.
    pub const FORWARDED: u32 = 1;
    /// ZGC without generations (until JDK 23): references are addresses, with bits in them that tell of which phase they are, wherever
    /// they are.
    pub const COLOURED: u32 = 2;
    /// Generational ZGC: references in objects are shifted addresses, with such bits below them. Those on a stack are addresses, and
    /// are of the phase that the thread is in.
    pub const SHIFTED: u32 = 3;
}

/// Where an object is whose header begins with this word, if it has been moved (`src/hotspot/share/oops/markWord.hpp` and
/// `src/hotspot/share/gc/shenandoah/shenandoahForwarding.inline.hpp` in the JDK): the lowest two bits say it. Without an address, the
/// object is only marked by somebody who goes through the heap; with compact headers such a mark keeps its class, which would be taken
/// for an address, but is there within safepoints only.
#[inline(always)]
#[must_use]
pub const fn forwarded(mark: u64) -> Option<u64> {
    if mark & 3 == 3 && mark != 3 { Some(mark & !3) } else { None }
}

impl Continuations {
    /// Bytes from the innermost end of what HotSpot notes of a continuation on the stack to the reference to the `Continuation`:
    /// an empty structure, and a pointer.
    pub const CONTINUATION_AT: u64 = 16;
    /// To the entry further out on the same stack, if there is one,
    pub const PARENT_AT: u64 = 8;
    /// to a chunk, which none of the JDKs from 21 to 25 sets,
    pub const CHUNK_AT: u64 = 24;
    /// to whether it is a virtual thread's, and, in the higher half, how many words the last frame on the stack has been passed,
    pub const FLAGS_AT: u64 = 32;
    /// to the thread's outermost frame before that is not as compiled code has it,
    pub const FAST_PATH_AT: u64 = 40;
    /// to how many monitors are held, and, in JDK 21 in the higher half, how many reasons there are not to unmount it.
    pub const HELD_AT: u64 = 48;
    /// Bytes up to the end of these.
    pub const ENTRY_BYTES: u32 = 56;

    /// The address that a word of 8 bytes with a reference in it refers to, where it has no colour; 0 when to none.
    #[inline(always)]
    #[must_use]
    pub const fn referred(&self, word: u64) -> u64 {
        match word & self.reference_mask {
            0 => 0,
            reference => self.reference_base.wrapping_add(reference << (self.reference_shift & 63)),
        }
    }
}

/// The start of the names by which HotSpot tells kinds of code apart, as little-endian words.
pub mod name {
    /// Of compiled methods, with the 0 that ends it.
    pub const COMPILED: u64 = u64::from_le_bytes(*b"nmethod\0");
    /// Of wrappers of native methods.
    pub const NATIVE: u64 = u64::from_le_bytes(*b"native n");
    /// Of the interpreter.
    pub const INTERPRETER: u64 = u64::from_le_bytes(*b"Interpre");
    /// Of stubs.
    pub const STUBS: u64 = u64::from_le_bytes(*b"StubRout");
    /// What follows 16 bytes after the start of a stub's name when it is one of virtual threads: `StubRoutines (continuation
    /// stubs)`, in JDK 25 without the second space.
    pub const OF_CONTINUATIONS: u64 = u64::from_le_bytes(*b"ntinuati");
}

/// Bits of a [`compile_id`](CodeCache::compile_id) that are a part of a frame.
pub const COMPILE_ID_BITS: u32 = 13;

/// Those bits.
#[inline(always)]
#[must_use]
pub const fn id_in_frame(compile_id: u32) -> u16 {
    (compile_id & ((1 << COMPILE_ID_BITS) - 1)) as u16
}

/// What stands for a compilation in the place of a row's address: the layer of its frames in the lower half, and in the upper
/// half the next higher 16 bits of its number, which are a part of the stack's hash.
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
        // Unlocked, with a monitor, locked on the stack, marked, and such that stay for want of memory.
        assert!([1, 0x7f00_1238 | 2, 0x7f00_1238, 3, 5].iter().all(|mark| forwarded(*mark).is_none()));
    }

    #[test]
    fn compilations_are_told_apart_by_29_bits_of_their_numbers() {
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
