//! Stacks that lead into code whose rows are not loaded yet: copied for the user side, which finishes them.
//!
//! Until then, such a stack is identified by the frames walked, the registers, and the words of the stack that can decide the
//! rest of the walk: addresses of code and of the stack itself, with their places. Two stacks that differ in none of them end alike;
//! other words may change from call to call.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::helpers::generated::{
    bpf_find_vma, bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_loop, bpf_probe_read_user,
};
use jjleak_common::{
    process::ImageId,
    stack::StackStatus,
    unfinished::{BYTES_BELOW, COPY_PAGES, PAGE_BYTES, SHARE_SHIFT, Unfinished},
};

use super::{
    Claimed, Walk,
    code::{self, NO_MAPPING, PAGE_SHIFT, VM_EXEC},
    window::{LAST_ADDRESS, word},
};
use crate::{
    constants::kernel_offset,
    maps::{UNFINISHED, UNFINISHED_ROWS, stack_rows_log2},
    memory::read_kernel,
};

/// Lowest address of a mapping (`vm.mmap_min_addr`).
const FIRST_ADDRESS: u64 = 1 << 16;
/// Pages for which it is remembered if they hold code. A stack refers to some dozens.
const PAGES: usize = 64;
/// Bits of an entry for the number of the walk, by which the entries of other walks are void.
const WALK_BITS: u64 = 27;
/// Bits of an address. The bits above take a word's place in the stack.
const ADDRESS_BITS: u64 = 48;

const CONTINUE: i64 = 0;
/// Maximum number of copied pages.
const MAX_PAGES: u64 = COPY_PAGES[5] as u64;

/// Entries: page, number of the walk, and 1 if the page holds code.
pub(super) type Pages = [u64; PAGES];

/// State of an unfinished walk.
#[repr(C)]
pub(super) struct State {
    /// 1 if the walk ended in code whose rows may come.
    pub(super) awaits_rows: u64,
    /// Part of the stack to copy; no pages for a stack that stays as it is.
    copied_at: u64,
    pages: u64,
    /// Copied pages: a bit for each.
    copied: u64,
    /// First word that is hashed.
    hashed_at: u64,
    /// End of a page that is in no memory.
    absent_until: u64,
    /// Number of walks prepared with this buffer.
    walks: u64,
    /// Flags of the mapping that was last asked for.
    mapping_flags: u64,
}

impl State {
    #[inline(always)]
    pub(super) fn begin(&mut self) {
        self.awaits_rows = 0;
        self.pages = 0;
    }
}

/// Prepares a walk for the user side, if that can finish it: determines the part of the stack to copy, and includes its words in
/// the hash.
#[inline(always)]
pub(super) fn prepare(scratch: Claimed, image: ImageId) {
    let walk = scratch.walk();
    if walk.status == StackStatus::NoMapping as u64 && walk.unfinished.awaits_rows != 0 {
        identify(scratch, image.0);
    }
}

#[inline(never)]
fn identify(scratch: Claimed, image: u32) -> u64 {
    let walk = scratch.walk();
    // The user side knows neither a JVM's memory nor that of Go's runtime.
    let is_native = walk.is_java == 0 && walk.scheduler == 0 && !walk.heap.is_entered();
    if !is_native || rows_used(ImageId(image)) >= most_rows() {
        return 0;
    }
    let stack_pointer = walk.stack_pointer;
    if !code::is_on_stack(scratch, stack_pointer) {
        return 0;
    }
    let walk = scratch.walk();
    // The memory map may have been locked.
    let is_known = walk.stack_end != u64::MAX && stack_pointer & 7 == 0;
    let size = walk.stack_end.wrapping_sub(walk.stack_begin);
    if !is_known || stack_pointer.wrapping_sub(walk.stack_begin) >= size {
        return 0;
    }
    let copied_at = stack_pointer.wrapping_sub(BYTES_BELOW) & !(PAGE_BYTES - 1);
    let pages = walk.stack_end.wrapping_sub(copied_at) >> PAGE_SHIFT;
    let pages = if pages > MAX_PAGES { MAX_PAGES } else { pages };
    walk.unfinished.copied_at = copied_at;
    walk.unfinished.pages = pages;
    walk.unfinished.absent_until = 0;
    walk.unfinished.walks = (walk.unfinished.walks + 1) & ((1 << WALK_BITS) - 1);
    let hashed_at = stack_pointer - walk.base_saved;
    walk.unfinished.hashed_at = hashed_at;
    walk.hash = walk.hash.push(walk.instruction_pointer).push(stack_pointer).push(walk.frame_pointer);
    let words = copied_at.wrapping_add(pages << PAGE_SHIFT).wrapping_sub(hashed_at) >> 3;
    let mut context = scratch;
    // SAFETY: the callback has the helper's signature, and the context outlives the call.
    unsafe { bpf_loop(words as u32, add_word as *mut c_void, (&raw mut context).cast(), 0) };
    0
}

/// Adds a word of the stack to the hash, if it can decide the walk.
#[inline(never)]
extern "C" fn add_word(index: u64, context: *mut Claimed) -> i64 {
    // SAFETY: the helper passes the context given by `identify`.
    let scratch = unsafe { *context };
    let at = scratch.walk().unfinished.hashed_at.wrapping_add(index << 3);
    if at < scratch.walk().unfinished.absent_until {
        return CONTINUE;
    }
    let Ok(word) = word(scratch, at) else {
        scratch.walk().unfinished.absent_until = (at | (PAGE_BYTES - 1)).wrapping_add(1);
        return CONTINUE;
    };
    if decides(scratch, word) {
        let walk = scratch.walk();
        walk.hash = walk.hash.push(word | index << ADDRESS_BITS);
    }
    CONTINUE
}

/// Returns true if a word can be a return address, or an address of the stack.
#[inline(always)]
fn decides(scratch: Claimed, word: u64) -> bool {
    let walk = scratch.walk();
    let above = word.wrapping_sub(walk.stack_pointer);
    if above < walk.stack_end.wrapping_sub(walk.stack_pointer) {
        return word & 7 == 0;
    }
    if word < FIRST_ADDRESS || word > LAST_ADDRESS {
        return false;
    }
    let page = word >> PAGE_SHIFT;
    let key = page << (WALK_BITS + 1) | walk.unfinished.walks << 1;
    let place = (page ^ page >> 6) as usize & (PAGES - 1);
    // SAFETY: the mask keeps the index in bounds.
    let entry = unsafe { scratch.pages().add(place) };
    // SAFETY: as above.
    let known = unsafe { *entry };
    if known & !1 == key {
        return known & 1 != 0;
    }
    let walk = scratch.walk();
    walk.unfinished.mapping_flags = 0;
    let mut context: *mut Walk = walk;
    // SAFETY: the callback has the helper's signature, and its context outlives the call.
    let status = unsafe {
        let task = bpf_get_current_task_btf();
        bpf_find_vma(task, word, note_flags as *mut c_void, (&raw mut context).cast(), 0)
    };
    if status != 0 && status != NO_MAPPING {
        // The memory map is locked: nothing is known of the page.
        return true;
    }
    let is_code = scratch.walk().unfinished.mapping_flags & VM_EXEC != 0;
    // SAFETY: as above.
    unsafe { *entry = key | is_code as u64 };
    is_code
}

#[inline(never)]
extern "C" fn note_flags(_task: *const c_void, vma: *const c_void, context: *mut *mut Walk) -> i64 {
    // SAFETY: the helper passes the context given by `decides`.
    let walk = unsafe { &mut **context };
    walk.unfinished.mapping_flags = read_kernel(vma as u64 + kernel_offset!(vma_flags)).unwrap_or(0);
    0
}

/// Sends the copy of a new stack. If there is no room for it, the stack stays unfinished.
#[inline(always)]
pub(super) fn send(scratch: Claimed, hash: u64, row: u32, image: ImageId) {
    if scratch.walk().unfinished.pages != 0 {
        copy(scratch, hash, row, image.0);
    }
}

#[inline(never)]
fn copy(scratch: Claimed, hash: u64, row: u32, image: u32) -> u64 {
    count_row(ImageId(image));
    let pages = scratch.walk().unfinished.pages;
    if pages <= COPY_PAGES[0] as u64 {
        copy_into::<{ COPY_PAGES[0] }>(scratch, hash, row, image);
    } else if pages <= COPY_PAGES[1] as u64 {
        copy_into::<{ COPY_PAGES[1] }>(scratch, hash, row, image);
    } else if pages <= COPY_PAGES[2] as u64 {
        copy_into::<{ COPY_PAGES[2] }>(scratch, hash, row, image);
    } else if pages <= COPY_PAGES[3] as u64 {
        copy_into::<{ COPY_PAGES[3] }>(scratch, hash, row, image);
    } else if pages <= COPY_PAGES[4] as u64 {
        copy_into::<{ COPY_PAGES[4] }>(scratch, hash, row, image);
    } else {
        copy_into::<{ COPY_PAGES[5] }>(scratch, hash, row, image);
    }
    0
}

/// A record with room for a copy.
#[repr(C)]
struct Record<const PAGES: usize> {
    header: Unfinished,
    copy: [[u8; PAGE_BYTES as usize]; PAGES],
}

#[inline(always)]
fn copy_into<const PAGES: usize>(scratch: Claimed, hash: u64, row: u32, image: u32) {
    let Some(mut room) = UNFINISHED.reserve::<Record<PAGES>>(0) else { return };
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
            // What is not copied is not read.
            if (page as u64) < read_volatile(pages)
                && bpf_probe_read_user(to.cast(), PAGE_BYTES as u32, from as *const c_void) == 0
            {
                write_volatile(copied, read_volatile(copied) | 1 << page);
            }
            page += 1;
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
            reserved: [0; 5],
        };
    }
    room.submit(0);
}

/// Maximum number of rows for the unfinished stacks of a process: a program that defeats this identification takes no more.
#[inline(always)]
fn most_rows() -> u64 {
    1 << (stack_rows_log2() - SHARE_SHIFT)
}

/// Number of rows that an image has used for unfinished stacks.
#[inline(always)]
fn rows_used(image: ImageId) -> u64 {
    let Some(used) = UNFINISHED_ROWS.get_ptr(image.slot().0 as u32) else { return u64::MAX };
    // SAFETY: points into a map value.
    let used = unsafe { read_volatile(used) };
    if used >> 32 == image.0 as u64 { used & 0xffff_ffff } else { 0 }
}

/// Counts a row. Concurrent calls may count one row for two, which leaves the bound as good.
#[inline(always)]
fn count_row(image: ImageId) {
    if let Some(used) = UNFINISHED_ROWS.get_ptr_mut(image.slot().0 as u32) {
        let next = (image.0 as u64) << 32 | rows_used(image) + 1;
        // SAFETY: points into a map value.
        unsafe { write_volatile(used, next) };
    }
}
