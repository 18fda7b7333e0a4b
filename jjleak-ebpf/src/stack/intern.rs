//! Finds the row of a stack, and writes it the first time the stack is seen.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use jjleak_common::{
    counter::Counter,
    stack::{FRAME_WORDS, LOST_ROW, MAX_FRAMES, MAX_PROBES, StackRow, StackStatus},
};

use super::Scratch;
use crate::{
    maps::{FRAMES, STACKS, count, stack_rows_log2},
    memory::{fetch_add, swap_if},
};

/// The row of the stack in `scratch`; [`LOST_ROW`], counted, when the table is full.
#[inline(always)]
pub(crate) fn intern(scratch: *const Scratch, image: u64) -> u32 {
    // SAFETY: `scratch` is a map value that is ours while claimed.
    let hash = unsafe { (*scratch).walk.hash.finish((*scratch).walk.status as u8) };
    let rows_log2 = stack_rows_log2();
    let mask = (1u32 << rows_log2) - 1;
    // The high bits of the hash are the best mixed.
    let first = (hash >> (64 - rows_log2)) as u32;
    let mut probe = 0;
    while probe < MAX_PROBES {
        let index = first.wrapping_add(probe) & mask;
        probe += 1;
        if index == LOST_ROW {
            continue;
        }
        let Some(row) = STACKS.get_ptr_mut(index) else { break };
        // SAFETY: points into a map value.
        let found = unsafe {
            let slot = addr_of_mut!((*row).hash);
            if read_volatile(slot) == 0 && swap_if(slot, 0, hash) {
                fill(row, scratch, image);
            }
            read_volatile(slot)
        };
        if found == hash {
            return index;
        }
    }
    count(Counter::StackTableFull);
    LOST_ROW
}

/// Writes a row that was just claimed, its frames first.
///
/// # Safety
/// Both are map values; `scratch` is ours while claimed.
#[inline(always)]
unsafe fn fill(row: *mut StackRow, scratch: *const Scratch, image: u64) {
    // SAFETY: as promised by the caller.
    unsafe {
        let wanted = (*scratch).walk.frame_count;
        let stored = store_frames(addr_of!((*scratch).frames).cast(), wanted);
        (*row).frames_at = stored.unwrap_or(0);
        (*row).frame_count = if stored.is_some() { wanted as u16 } else { 0 };
        (*row).image = image as u16;
        (*row).status = if stored.is_some() { (*scratch).walk.status as u8 } else { StackStatus::Lost as u8 };
        write_volatile(addr_of_mut!((*row).ready), 1);
    }
}

/// Copies frames into the frame storage; where they begin there.
#[inline(always)]
fn store_frames(frames: *const u64, frame_count: u64) -> Option<u32> {
    let storage = FRAMES.get_ptr_mut(0)?;
    let frame_count = if frame_count > MAX_FRAMES as u64 { MAX_FRAMES as u64 } else { frame_count };
    // SAFETY: the storage is a map value; a full copy from `at` stays in bounds.
    unsafe {
        let at = fetch_add(addr_of_mut!((*storage).used), frame_count);
        if at > (FRAME_WORDS - MAX_FRAMES) as u64 {
            count(Counter::FrameStorageFull);
            return None;
        }
        let words = addr_of_mut!((*storage).words).cast::<u64>().add(at as usize).cast::<c_void>();
        bpf_probe_read_kernel(words, (frame_count << 3) as u32, frames.cast());
        Some(at as u32)
    }
}
