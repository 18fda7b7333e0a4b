//! Copies of unfinished stacks for the user side.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_probe_read_user};
use jjleak_common::{
    counter::Counter,
    process::ImageId,
    unfinished::{COPY_PAGES, HashedWords, PAGE_BYTES, Unfinished},
};

use super::{
    super::{Claimed, code::PAGE_SHIFT},
    budget::count_row,
};
use crate::maps::{UNFINISHED, count};

/// Sends the copy of a new stack. If one should be sent and cannot be, the stack stays unfinished, and is counted.
#[inline(always)]
pub(in crate::stack) fn send(scratch: Claimed, hash: u64, row: u32, image: ImageId) {
    let state = &scratch.walk().unfinished;
    if state.pages != 0 || state.is_refused != 0 {
        copy(scratch, hash, row, image.0);
    }
}

#[inline(never)]
fn copy(scratch: Claimed, hash: u64, row: u32, image: u32) -> u64 {
    let pages = scratch.walk().unfinished.pages;
    let is_sent = if pages == 0 {
        false
    } else if pages <= COPY_PAGES[0] as u64 {
        copy_into::<{ COPY_PAGES[0] }>(scratch, hash, row, image)
    } else if pages <= COPY_PAGES[1] as u64 {
        copy_into::<{ COPY_PAGES[1] }>(scratch, hash, row, image)
    } else if pages <= COPY_PAGES[2] as u64 {
        copy_into::<{ COPY_PAGES[2] }>(scratch, hash, row, image)
    } else if pages <= COPY_PAGES[3] as u64 {
        copy_into::<{ COPY_PAGES[3] }>(scratch, hash, row, image)
    } else if pages <= COPY_PAGES[4] as u64 {
        copy_into::<{ COPY_PAGES[4] }>(scratch, hash, row, image)
    } else {
        copy_into::<{ COPY_PAGES[5] }>(scratch, hash, row, image)
    };
    if pages != 0 {
        count_row(ImageId(image));
    }
    if !is_sent {
        count(ImageId(image).slot(), Counter::StackCopiesLost);
    }
    0
}

/// A record with room for a copy.
#[repr(C)]
struct Record<const PAGES: usize> {
    header: Unfinished,
    hashed: [HashedWords; PAGES],
    copy: [[u8; PAGE_BYTES as usize]; PAGES],
}

#[inline(always)]
fn copy_into<const PAGES: usize>(scratch: Claimed, hash: u64, row: u32, image: u32) -> bool {
    let Some(mut room) = UNFINISHED.reserve::<Record<PAGES>>(0) else { return false };
    let record = room.as_mut_ptr();
    let walk = scratch.walk();
    // SAFETY: the reserved record is ours until submitted; each copied page is in bounds.
    unsafe {
        let at = walk.unfinished.copied_at;
        // In memory: before Linux 6.3, the verifier follows each value that a register can have.
        let (pages, copied) = (addr_of!(walk.unfinished.pages), addr_of_mut!(walk.unfinished.copied));
        write_volatile(copied, 0);
        let mut page = 0;
        while page < PAGES {
            let to = addr_of_mut!((*record).copy).cast::<[u8; PAGE_BYTES as usize]>().add(page);
            let from = at.wrapping_add((page as u64) << PAGE_SHIFT);
            // The user side ignores the other pages, which keep the buffer's old content.
            if (page as u64) < read_volatile(pages)
                && bpf_probe_read_user(to.cast(), PAGE_BYTES as u32, from as *const c_void) == 0
            {
                write_volatile(copied, read_volatile(copied) | 1 << page);
            }
            page += 1;
        }
        let hashed = addr_of_mut!((*record).hashed).cast::<c_void>();
        let size = size_of::<[HashedWords; PAGES]>() as u32;
        if bpf_probe_read_kernel(hashed, size, scratch.hashed_words().cast()) != 0 {
            room.discard(0);
            return false;
        }
        (*record).header = Unfinished {
            hash,
            row,
            image,
            taken_ns: bpf_ktime_get_ns(),
            instruction_pointer: walk.instruction_pointer,
            stack_pointer: walk.stack_pointer,
            frame_pointer: walk.frame_pointer,
            base_saved: walk.base_saved,
            stack_begin: walk.stack_begin,
            stack_end: walk.stack_end,
            copied_at: at,
            copied_pages: read_volatile(copied),
            after_call: walk.after_call as u8,
            unproven: walk.unproven as u8,
            by_frame_pointer: walk.by_frame_pointer as u8,
            frame_pointer_hashed: walk.unfinished.frame_pointer_hashed as u8,
            reserved: [0; 4],
        };
    }
    room.submit(0);
    true
}
