//! Finds the row of a stack; adds the stack if it is new.

use core::{
    ptr::{addr_of_mut, read_volatile, write_volatile},
    slice,
};

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use jjleak_common::{
    counter::Counter,
    process::ImageId,
    stack::{FIRST_ROW, MAX_FRAMES, MAX_PROBES, StackRecord, lost_row},
};

use super::{Claimed, unfinished};
use crate::{
    maps::{FRAMES, STACKS, count, frame_bytes, stack_rows_log2},
    memory::swap_if,
    threads,
};

/// Row of the stack in `scratch`; if the table is full, the process's [`lost_row`], which is counted.
#[inline(always)]
pub(crate) fn intern(scratch: Claimed, image: ImageId) -> u32 {
    let hash = scratch.walk().hash.finish(scratch.walk().status as u8);
    scratch.walk().is_new = 0;
    let Some(row) = find(scratch, hash, image) else {
        count(image.slot(), Counter::StackTableFull);
        return lost_row(image.slot());
    };
    if scratch.walk().is_new != 0 {
        // SAFETY: `scratch` is a map value that is ours while claimed.
        unsafe { send_frames(scratch, hash, row, image) };
        unfinished::send(scratch, hash, row, image);
    }
    row
}

/// Row of this hash; claims a free one for a new stack. Nothing else happens where a row is claimed: the verifier follows each turn
/// of the loop.
#[inline(always)]
fn find(scratch: Claimed, hash: u64, image: ImageId) -> Option<u32> {
    let rows_log2 = stack_rows_log2();
    let mask = (1u32 << rows_log2) - 1;
    // The high bits of the hash are best mixed.
    let first = (hash >> (64 - rows_log2)) as u32;
    let mut probe = 0;
    while probe < MAX_PROBES {
        let index = FIRST_ROW + (first.wrapping_add(probe) & mask);
        probe += 1;
        let Some(row) = STACKS.get_ptr_mut(index) else { break };
        // SAFETY: points into a map value.
        let found = unsafe {
            let slot = addr_of_mut!((*row).hash);
            if read_volatile(slot) == 0 && swap_if(slot, 0, hash) {
                write_volatile(addr_of_mut!((*row).image), image.0);
                scratch.walk().is_new = 1;
            }
            read_volatile(slot)
        };
        if found == hash {
            return Some(index);
        }
    }
    None
}

/// Sends the frames of a stack whose row was just claimed. The user side polls them, and is woken when the buffer fills up. Java
/// frames wake it at once, because their code may be discarded soon.
///
/// # Safety
/// `scratch` is a map value that is ours while claimed.
#[inline(always)]
unsafe fn send_frames(scratch: Claimed, hash: u64, row: u32, image: ImageId) {
    // SAFETY: as promised by the caller; the slice ends within the record.
    let record = unsafe {
        let frame_count = scratch.walk().frame_count;
        let frame_count = if frame_count > MAX_FRAMES as u64 { MAX_FRAMES as u64 } else { frame_count };
        let record = scratch.record();
        (*record).hash = hash;
        (*record).row = row;
        (*record).image = image.0;
        (*record).frame_count = frame_count as u32;
        (*record).status = scratch.walk().status as u32;
        threads::describe(scratch.walk().thread, record);
        slice::from_raw_parts(record.cast::<u8>(), StackRecord::HEADER_BYTES + frame_count as usize * 8)
    };
    let waiting = FRAMES.query(BPF_RB_AVAIL_DATA as u64);
    let is_urgent = scratch.walk().is_java != 0 || waiting > (frame_bytes() >> 2) as u64;
    let wakeup = if is_urgent { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP };
    if FRAMES.output::<[u8]>(record, wakeup as u64).is_err() {
        count(image.slot(), Counter::FrameStorageFull);
    }
}
