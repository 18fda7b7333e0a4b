//! The rule for code that a JVM generates, read from the JVM's own memory at the time of the walk: see
//! `jjleak_common::jvm`.
//!
//! Where a blob was found is remembered by the address of its code. That it is still there, and still has that code, is
//! looked at each time: one read.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use jjleak_common::{
    jvm::{CodeCache, CodeHeap, HEADER_WORDS, MAX_HEADER_BYTES, MAX_HEAPS, frame_of, name},
    stack::StackStatus,
    unwind::{Row, RowKind, SavedFp, layer},
};

use super::Scratch;
use crate::{
    maps::{BLOBS, JVMS},
    memory::{read_user, read_user_word},
};

/// Entries of the cache of blobs. The hot paths of a program pass some hundred return addresses in generated code.
const CACHE_ENTRIES: usize = 1024;

/// Steps that lead from a segment to the first one of its block. A step goes back by up to 254 segments: few are enough for
/// any block that was made at once. Free blocks that are joined keep their segments' bytes, with one step more for each, and
/// newer JDKs mend that after 10,000 joins only. A stack that would need more steps ends here.
const MAX_STEPS: u32 = 128;
/// In the segment map: no block has ever been there.
const UNUSED: u8 = 0xff;

/// Where a frame of fixed size keeps its caller's frame pointer: below the return address, in words from the CFA.
const SAVED_FP: i64 = -2;
/// The CFA of a frame that a frame pointer was set up for, in words above it.
const ABOVE_FP: u64 = 2;

/// What a blob is for. It takes the lowest bits of the blob's address in the cache.
mod kind {
    pub(super) const COMPILED: u64 = 1;
    pub(super) const NATIVE: u64 = 2;
    pub(super) const INTERPRETER: u64 = 3;
    pub(super) const CONTINUATION: u64 = 4;
    pub(super) const STUB: u64 = 5;
    pub(super) const MASK: u64 = 7;
}

/// Blocks by addresses of their code. Per CPU. What a preempting probe mixes up in an entry matches no key, as in the row cache.
#[repr(C)]
pub(crate) struct BlobCache {
    entries: [Entry; CACHE_ENTRIES],
}

/// Where a block is, with what kind of code, and the address of the name that this was known by.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    block: u64,
    name: u64,
}

/// What is known of the blob that is being looked at.
struct Blob {
    block: u64,
    name: u64,
}

/// The row for generated code at `address`, `place` being that of its mapping. In the place of the row's address are the
/// frame's layer and, in the higher half, the higher bits of the number of the compilation.
#[inline(always)]
pub(super) fn row(scratch: *mut Scratch, place: Row, scope: u64, address: u64) -> Result<Row, StackStatus> {
    let slot = (place.offset_bytes() >> 3) as u32;
    let heap = (place.fp_offset_bytes() >> 3) as usize & (MAX_HEAPS - 1);
    let jvm = JVMS.get_ptr(slot).ok_or(StackStatus::NoRow)?;
    let cache = BLOBS.get_ptr_mut(0).ok_or(StackStatus::NoRow)?;
    let at = (address ^ address >> 10) as usize & (CACHE_ENTRIES - 1);
    // SAFETY: points into a map value; the index is in bounds.
    let entry = unsafe { addr_of_mut!((*cache).entries).cast::<Entry>().add(at) };
    // SAFETY: as above.
    let mut known = unsafe {
        let block = read_volatile(addr_of!((*entry).block));
        let name = read_volatile(addr_of!((*entry).name));
        let is_known = read_volatile(addr_of!((*entry).key)) == key(address, scope, block, name);
        if is_known { Blob { block, name } } else { Blob { block: 0, name: 0 } }
    };
    // The interpreter is never thrown away.
    if known.block & kind::MASK == kind::INTERPRETER {
        return Ok(Row::plain(layer::NO_FILE as u32, RowKind::Interpreter));
    }
    // SAFETY: both are map values, and the scratch is ours while claimed.
    unsafe {
        if known.block == 0 || !has(scratch, jvm, known.block & !kind::MASK, address) {
            let heap = addr_of!((*jvm).heaps).cast::<CodeHeap>().add(heap);
            let block = block_of(heap, address)?;
            if !has(scratch, jvm, block, address) {
                return Err(StackStatus::NoRow);
            }
            known = Blob { block, name: 0 };
        }
        let name = address_at(scratch, (*jvm).name);
        if name != known.name {
            known.block = known.block & !kind::MASK | kind_of(name).ok_or(StackStatus::Fault)?;
            write_volatile(addr_of_mut!((*entry).block), known.block);
            write_volatile(addr_of_mut!((*entry).name), name);
            write_volatile(addr_of_mut!((*entry).key), key(address, scope, known.block, name));
        }
        if known.block & kind::MASK == kind::COMPILED {
            return_as_before(scratch, jvm, known.block & !kind::MASK);
        }
        Ok(rule(scratch, jvm, known.block & kind::MASK))
    }
}

#[inline(always)]
fn key(address: u64, scope: u64, block: u64, name: u64) -> u64 {
    address ^ scope ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name.wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// How the frames of this kind of code are laid out. Compiled code calls with the stack pointer at the bottom of its frame,
/// whose size is fixed; the others but for the interpreter keep a frame pointer unless they say how large their frame is.
///
/// # Safety
/// Both point into map values, and the header has been read.
#[inline(always)]
unsafe fn rule(scratch: *mut Scratch, jvm: *const CodeCache, kind: u64) -> Row {
    if kind == kind::INTERPRETER {
        return Row::plain(layer::NO_FILE as u32, RowKind::Interpreter);
    }
    if kind == kind::CONTINUATION {
        return Row::plain(layer::GENERATED as u32, RowKind::Continuation);
    }
    // SAFETY: as promised by the caller.
    let (frame_words, id) =
        unsafe { (int_at(scratch, (*jvm).frame_size), int_at(scratch, (*jvm).compile_id)) };
    let is_method = kind == kind::COMPILED || kind == kind::NATIVE;
    let id = if is_method { id } else { 0 };
    let frame = frame_of(id);
    let keeps_frame_pointer = match kind {
        kind::NATIVE => has_frame_pointer(scratch, frame_words),
        kind::STUB => (frame_words as i32) <= 0,
        _ => false,
    };
    let (by, offset, saved, saved_at) = if keeps_frame_pointer {
        (RowKind::Fp, ABOVE_FP, SavedFp::AtFp, 0)
    } else {
        (RowKind::Sp, frame_words as u64, SavedFp::AtCfa, SAVED_FP)
    };
    Row::new(frame, by, offset, saved, saved_at).unwrap_or(Row::plain(frame, RowKind::Unsupported))
}

/// A frame whose code was thrown away under it returns to where that code leads to the interpreter, and keeps the address that
/// it would have returned to: that one tells which methods are inlined there, and their lines.
///
/// # Safety
/// All point into map values, and the header has been read.
#[inline(always)]
unsafe fn return_as_before(scratch: *mut Scratch, jvm: *const CodeCache, block: u64) {
    // SAFETY: as promised by the caller; the scratch is ours while claimed.
    unsafe {
        let walk = &mut (*scratch).walk;
        let returns_to = walk.instruction_pointer;
        let [call, by_handle] = [(*jvm).deopt_handlers[0], (*jvm).deopt_handlers[1]];
        if call == 0 || returns_to != way_out(scratch, jvm, block, call) {
            if by_handle == 0 || returns_to != way_out(scratch, jvm, block, by_handle) {
                return;
            }
        }
        let at = walk.stack_pointer.wrapping_add(int_at(scratch, (*jvm).original) as u64);
        if let Some(before) = read_user_word(at)
            && before.wrapping_sub(block) < returns_to.wrapping_sub(block)
        {
            walk.instruction_pointer = before;
        }
    }
}

/// The address that a way out is said to be at.
///
/// # Safety
/// All point into map values, and the header has been read.
#[inline(always)]
unsafe fn way_out(scratch: *mut Scratch, jvm: *const CodeCache, block: u64, place: u32) -> u64 {
    // SAFETY: as promised by the caller.
    unsafe {
        if (*jvm).is_relative != 0 {
            block.wrapping_add(((*jvm).blob as u64) << 2).wrapping_add(int_at(scratch, place) as u64)
        } else {
            address_at(scratch, place)
        }
    }
}

/// Whether the frame pointer is that of the current frame, of this size. Wrappers of native methods may have moved the stack
/// pointer a little further to align it, and are known by their frame pointer then. Where a virtual thread's frames begin
/// (`Continuation.enterSpecial`), the frame pointer is any: the frames above were not entered by calls.
#[inline(always)]
fn has_frame_pointer(scratch: *mut Scratch, frame_words: u32) -> bool {
    const ALIGNMENT: u64 = 16;
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let walk = unsafe { &(*scratch).walk };
    let by_size = walk.stack_pointer.wrapping_add((frame_words as u64) << 3);
    let by_frame_pointer = walk.frame_pointer.wrapping_add(ABOVE_FP << 3);
    by_frame_pointer.wrapping_sub(by_size) <= ALIGNMENT
}

/// The start of the block that an address is in.
///
/// # Safety
/// The heap is in a map value.
#[inline(always)]
unsafe fn block_of(heap: *const CodeHeap, address: u64) -> Result<u64, StackStatus> {
    // SAFETY: as promised by the caller.
    let (begin, segment_map, log2) =
        unsafe { ((*heap).begin, (*heap).segment_map, (*heap).segment_log2 & 31) };
    let mut segment = address.wrapping_sub(begin) >> log2;
    let mut step = 0;
    while step < MAX_STEPS {
        let back: u8 = read_user(segment_map.wrapping_add(segment)).ok_or(StackStatus::Fault)?;
        if back == UNUSED {
            return Err(StackStatus::NoRow);
        }
        if back == 0 {
            return Ok(begin.wrapping_add(segment << log2));
        }
        segment = segment.wrapping_sub(back as u64);
        step += 1;
    }
    Err(StackStatus::NoRow)
}

/// Reads a block's header; whether the block is in use and has code at `address`.
///
/// # Safety
/// Both point into map values; the scratch is ours while claimed.
#[inline(always)]
unsafe fn has(scratch: *mut Scratch, jvm: *const CodeCache, block: u64, address: u64) -> bool {
    // SAFETY: as promised by the caller; the sizes are bounded by that of the buffer.
    unsafe {
        let header = addr_of_mut!((*scratch).header).cast::<c_void>();
        let bytes = (*jvm).header_bytes & (MAX_HEADER_BYTES as u32 - 1);
        if bpf_probe_read_user(header, bytes, block as *const c_void) != 0 {
            // A small blob can be the last one in memory.
            let bytes = (*jvm).plain_bytes & (MAX_HEADER_BYTES as u32 - 1);
            if bpf_probe_read_user(header, bytes, block as *const c_void) != 0 {
                return false;
            }
        }
        let (begin, end) = if (*jvm).is_relative != 0 {
            let blob = block.wrapping_add(((*jvm).blob as u64) << 2);
            let distance = |place| blob.wrapping_add(int_at(scratch, place) as u64);
            (distance((*jvm).code_begin), distance((*jvm).code_end))
        } else {
            (address_at(scratch, (*jvm).code_begin), address_at(scratch, (*jvm).code_end))
        };
        let is_used = int_at(scratch, (*jvm).used) & 0xff != 0;
        is_used && address.wrapping_sub(begin) < end.wrapping_sub(begin) && end > begin && begin > block
    }
}

/// What kind of code has this name.
#[inline(always)]
fn kind_of(at: u64) -> Option<u64> {
    let start = read_user_word(at)?;
    Some(if start == name::COMPILED {
        kind::COMPILED
    } else if start == name::NATIVE {
        kind::NATIVE
    } else if start == name::INTERPRETER {
        kind::INTERPRETER
    } else if start == name::STUBS && read_user_word(at.wrapping_add(16)) == Some(name::OF_CONTINUATIONS) {
        kind::CONTINUATION
    } else {
        kind::STUB
    })
}

/// The number of 4 bytes in the header that was read.
///
/// # Safety
/// The scratch is ours while claimed.
#[inline(always)]
pub(super) unsafe fn int_at(scratch: *mut Scratch, place: u32) -> u32 {
    // SAFETY: as promised by the caller; the index is in bounds.
    unsafe { *addr_of!((*scratch).header).cast::<u32>().add(place as usize & (HEADER_WORDS - 1)) }
}

/// The address in the header that was read.
///
/// # Safety
/// The scratch is ours while claimed.
#[inline(always)]
pub(super) unsafe fn address_at(scratch: *mut Scratch, place: u32) -> u64 {
    // SAFETY: as promised by the caller.
    unsafe { int_at(scratch, place) as u64 | (int_at(scratch, place.wrapping_add(1)) as u64) << 32 }
}
