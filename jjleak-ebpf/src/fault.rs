//! Reports page faults, that is, the stack that is about to make a page resident, and moved pages. The user side finds out which pages
//! are resident.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use jjleak_common::{
    counter::Counter,
    fault::{Fault, Move, RING_BYTES, Record},
};

use crate::{
    constants::kernel_offset,
    current::Caller,
    maps::{PAGE_FAULTS, count},
    memory::{USER_SPACE_END, read_kernel},
    ring::wakeup,
    stack,
    syscall::{self, Syscall},
};

/// Bits of a fault's error code (`arch/x86/include/asm/trap_pf.h`): a page is there, but not for this use (`X86_PF_PROT`), and it is written
/// to (`X86_PF_WRITE`).
const PAGE_FAULT_PRESENT: u64 = 1;
const PAGE_FAULT_WRITE: u64 = 2;
/// Size of a page on x86-64.
const PAGE_BYTES: u64 = 4096;
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A fault at an address, in user space or in a system call. Walks fault, too, where the stack is not resident: these make nothing resident, and
/// change nothing until the page is touched in earnest.
#[inline(always)]
pub(crate) fn report(address: u64, error_code: u64) {
    if address >= USER_SPACE_END {
        return;
    }
    let Some(caller) = Caller::current() else { return };
    let Some(user) = Syscall::of_current().user() else {
        count(caller.image.slot(), Counter::PageFaultLost);
        return;
    };
    let stack = stack::capture_syscall(caller.image, caller.row, &syscall::origin(&user)).row;
    let fault = Fault {
        // SAFETY: has no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        page: address,
        is_write: error_code & PAGE_FAULT_WRITE != 0,
        was_present: error_code & PAGE_FAULT_PRESENT != 0,
        stack,
    };
    send(&caller, &Record::of_fault(caller.image, fault));
}

/// The kernel has chosen an address for a mapping of the current process: pages that `mremap` moves get addresses from there. With
/// `MREMAP_FIXED` it does not choose.
#[inline(always)]
pub(crate) fn placed(chosen: u64, area: *const c_void) {
    /// The system call's number on x86-64.
    const MREMAP: u64 = 25;
    if chosen >= USER_SPACE_END {
        // An error: no range is free.
        return;
    }
    let Some(caller) = Caller::current() else { return };
    let call = Syscall::of_current();
    if call.number() != Some(MREMAP) {
        return;
    }
    let length = read_kernel::<u64>(area as u64 + kernel_offset!(unmapped_area_length));
    let (Some(user), Some(length)) = (call.user(), length) else {
        count(caller.image.slot(), Counter::PageFaultLost);
        return;
    };
    let [from, old_bytes, new_bytes, ..] = syscall::arguments(&user);
    // mm/huge_memory.c, `__thp_get_unmapped_area`: with room for a huge page, the range begins at the next one.
    let is_padded = length >= new_bytes.wrapping_add(HUGE_PAGE_BYTES);
    let to =
        if is_padded { chosen.wrapping_add(HUGE_PAGE_BYTES - 1) & !(HUGE_PAGE_BYTES - 1) } else { chosen };
    let bytes = if old_bytes < new_bytes { old_bytes } else { new_bytes };
    let pages = bytes.wrapping_add(PAGE_BYTES - 1) / PAGE_BYTES;
    let pages = if pages > u32::MAX as u64 { u32::MAX } else { pages as u32 };
    send(&caller, &Record::of_move(caller.image, Move { from, to, pages }));
}

#[inline(always)]
fn send(caller: &Caller, record: &Record) {
    if PAGE_FAULTS.output::<Record>(record, wakeup(&PAGE_FAULTS, RING_BYTES, false)).is_err() {
        count(caller.image.slot(), Counter::PageFaultLost);
    }
}
