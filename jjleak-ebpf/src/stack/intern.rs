//! Finds the row of a stack; adds the stack if it is new.

use core::{
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
    slice,
};

use jjleak_common::{
    counter::Counter,
    process::ImageId,
    stack::{
        MAX_FRAMES, MAX_PROBES, StackRecord, lost_row, max_frame_bytes_of_process, max_rows_of_process,
        probed_row, rows_between_wakeups,
    },
};

use super::{Captured, Claimed, unfinished};
use crate::{
    maps::{FRAMES, STACK_USAGE, STACKS, count, frame_bytes, stack_rows_log2},
    memory::{add, fetch_add, opaque, swap_if},
    ring::wakeup,
    threads,
};

const _: () = assert!(MAX_FRAMES.is_power_of_two());

/// Finds the row of the stack in `scratch`; if the table is full, the process's [`lost_row`], which is counted.
#[inline(always)]
pub(crate) fn intern(scratch: Claimed, image: ImageId) -> Captured {
    let hash = scratch.walk().hash.finish(scratch.walk().status as u8);
    let Some(Found { row, is_new }) = find(hash, image) else {
        count(image.slot(), Counter::StackTableFull);
        return Captured::lost(image.slot());
    };
    if is_new {
        let is_urgent = count_row(image);
        // SAFETY: `scratch` is a map value that is ours while claimed.
        unsafe { send_frames(scratch, hash, row, image, is_urgent) };
        unfinished::send(scratch, hash, row, image);
    }
    Captured { row, hash }
}

/// Returns true if the stack with this hash is in this row. It is not once the user side begins to evict it.
#[inline(always)]
pub(super) fn has(row: u32, hash: u64) -> bool {
    let Some(row) = STACKS.get_ptr(row) else { return false };
    // SAFETY: points into a map value.
    unsafe { read_volatile(addr_of!((*row).hash)) == hash }
}

/// Row of a stack that was evicted; if the table is full, the process's [`lost_row`], which is counted.
#[inline(never)]
pub(super) fn again(image: u32, hash: u64) -> u32 {
    let image = ImageId(image);
    let Some(Found { row, is_new }) = find(hash, image) else {
        count(image.slot(), Counter::StackTableFull);
        return lost_row(image.slot());
    };
    if is_new {
        count_row(image);
    }
    row
}

/// Counts a row that a process has claimed. Returns true if the user side should check the load of the table.
#[inline(always)]
fn count_row(image: ImageId) -> bool {
    let Some(usage) = STACK_USAGE.get_ptr_mut(image.slot().0 as u32) else { return false };
    // SAFETY: points into a map value.
    let claimed = unsafe { fetch_add(addr_of_mut!((*usage).claimed), 1) };
    claimed & (rows_between_wakeups(stack_rows_log2()) - 1) == 0
}

/// Returns true if a process can claim another row.
#[inline(always)]
fn can_claim(image: ImageId) -> bool {
    let Some(usage) = STACK_USAGE.get_ptr(image.slot().0 as u32) else { return false };
    // SAFETY: points into a map value.
    let (claimed, emptied) =
        unsafe { (read_volatile(addr_of!((*usage).claimed)), read_volatile(addr_of!((*usage).emptied))) };
    // The user side can have emptied a row of an image that has ended before it is counted as claimed.
    (claimed.wrapping_sub(emptied) as i64) < max_rows_of_process(stack_rows_log2()) as i64
}

/// A row that was found, or was claimed for a new stack.
struct Found {
    row: u32,
    is_new: bool,
}

/// Set in what [`find_row`] returns if the row was claimed.
const NEW: u64 = 1 << 32;

/// Row of this hash; claims a free one for a new stack.
#[inline(always)]
fn find(hash: u64, image: ImageId) -> Option<Found> {
    let found = find_row(hash, image.0);
    if found == 0 { None } else { Some(Found { row: found as u32, is_new: found & NEW != 0 }) }
}

/// See [`find`]; 0 for no row, which is the number of none. Exported, so that the verifier follows the turns of the loop once, and not
/// for each state of a program that gets here.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn find_row(hash: u64, image: u32) -> u64 {
    let image = ImageId(image);
    let mut claimed = 0;
    let can_claim = can_claim(image);
    let rows_log2 = stack_rows_log2();
    let mut probe = 0;
    while probe < MAX_PROBES {
        let index = probed_row(hash, rows_log2, probe);
        probe += 1;
        let Some(row) = STACKS.get_ptr_mut(index) else { break };
        // SAFETY: points into a map value.
        let found = unsafe {
            let slot = addr_of_mut!((*row).hash);
            if can_claim && read_volatile(slot) == 0 && swap_if(slot, 0, hash) {
                write_volatile(addr_of_mut!((*row).image), image.0);
                claimed = NEW;
            }
            read_volatile(slot)
        };
        if found == hash {
            return index as u64 | claimed;
        }
    }
    0
}

/// Sends the frames of a stack whose row was just claimed. The user side polls them, and is woken when the buffer or the table fills
/// up. Java frames wake it at once, because their code may be discarded soon.
///
/// # Safety
/// `scratch` is a map value that is ours while claimed.
#[inline(always)]
unsafe fn send_frames(scratch: Claimed, hash: u64, row: u32, image: ImageId, is_urgent: bool) {
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
        // Before Linux 6.3, the verifier forgets the bounds of a number that was spilled to the stack before the comparison. The mask
        // gives others; `opaque` keeps the optimizer from removing it.
        let frame_count = opaque(frame_count) as usize & (2 * MAX_FRAMES - 1);
        slice::from_raw_parts(record.cast::<u8>(), StackRecord::HEADER_BYTES + frame_count * 8)
    };
    let is_urgent = is_urgent || scratch.walk().is_java != 0;
    let wakeup = wakeup(&FRAMES, frame_bytes(), is_urgent);
    if !can_send(image) || FRAMES.output::<[u8]>(record, wakeup).is_err() {
        count(image.slot(), Counter::FrameStorageFull);
    } else if let Some(usage) = STACK_USAGE.get_ptr_mut(image.slot().0 as u32) {
        // SAFETY: points into a map value.
        unsafe { add(addr_of_mut!((*usage).sent_bytes), record.len() as u64) };
    }
}

/// Returns true unless too many of a process's frames wait for the user side.
#[inline(always)]
fn can_send(image: ImageId) -> bool {
    let Some(usage) = STACK_USAGE.get_ptr(image.slot().0 as u32) else { return false };
    // SAFETY: points into a map value.
    let (sent, received) = unsafe {
        (read_volatile(addr_of!((*usage).sent_bytes)), read_volatile(addr_of!((*usage).received_bytes)))
    };
    // The user side may have received frames that are not counted as sent yet.
    (sent.wrapping_sub(received) as i64) < max_frame_bytes_of_process(frame_bytes()) as i64
}
