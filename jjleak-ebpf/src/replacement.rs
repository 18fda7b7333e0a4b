//! Detection of mappings of a profiled process that replace others.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_pt_regs};
use jjleak_common::{
    process::ProcessRow,
    unwind::{CodeChanges, Mapping, MappingTable, NO_MAPPINGS},
};

use crate::{
    constants::kernel_offset,
    current,
    maps::MAPPINGS,
    memory::{USER_SPACE_END, read_kernel},
    stack::{self, changes, mapping_at, seen},
};

/// The kernel has chosen an address for a mapping of the current process. Mappings that a process places over other code itself
/// (`MAP_FIXED`) are not reported: the dynamic loader uses them only within a range that the kernel has chosen.
#[inline(always)]
pub(crate) fn placed(start: u64, area: *const c_void) {
    if start >= USER_SPACE_END {
        // An error: no range is free.
        return;
    }
    let Some((slot, row)) = current::row_of_current() else { return };
    let Some(length) = read_kernel::<u64>(area as u64 + kernel_offset!(unmapped_area_length)) else { return };
    // SAFETY: the row is a map value. The kernel serializes mapping calls of a process (`mmap_lock`).
    unsafe {
        let table = table(row);
        let replaces = match table {
            Some(table) => overlaps(table, start, start.wrapping_add(length)),
            None => false,
        };
        let call = mapping_call();
        if !replaces && !call.can_hold_code() {
            return;
        }
        let changes = changes(row);
        let CodeChanges { made, replaced, disturbed, .. } = match table {
            Some(table) => changes.after(Some(&seen(table)), replaces),
            None => changes.after(None, false),
        };
        let code = addr_of_mut!((*row).code);
        write_volatile(addr_of_mut!((*code).disturbed), disturbed);
        write_volatile(addr_of_mut!((*code).replaced), replaced);
        write_volatile(addr_of_mut!((*code).made), made);
        if replaces || call.is_loaders() {
            stack::hint(slot);
        }
    }
}

/// Arguments of the current system call, if it maps memory.
struct MappingCall {
    flags: u64,
    protection: u64,
    is_mmap: bool,
}

impl MappingCall {
    /// Returns true if it can map code: from a file, or as executable memory. Other anonymous mappings are too frequent to check.
    #[inline(always)]
    const fn can_hold_code(&self) -> bool {
        const MAP_ANONYMOUS: u64 = 0x20;
        const PROT_EXEC: u64 = 4;
        self.is_mmap && (self.flags & MAP_ANONYMOUS == 0 || self.protection & PROT_EXEC != 0)
    }

    /// Returns true for the first mapping of a library by glibc's dynamic loader. It sets a flag that the kernel ignores and no
    /// other program sets (`MAP_COPY` in include/sys/mman.h in glibc's sysdeps).
    #[inline(always)]
    const fn is_loaders(&self) -> bool {
        const MAP_DENYWRITE: u64 = 0x800;
        self.is_mmap && self.flags & MAP_DENYWRITE != 0
    }
}

#[inline(always)]
fn mapping_call() -> MappingCall {
    const MMAP: u64 = 9;
    // SAFETY: the current task always has the registers of its entry into the kernel.
    let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64;
    // arch/x86/include/asm/ptrace.h; the third and fourth arguments of a system call are in rdx and r10.
    let [flags, protection, number] =
        [56, 96, 120].map(|offset| read_kernel::<u64>(registers + offset).unwrap_or(0));
    MappingCall { flags, protection, is_mmap: number == MMAP }
}

/// The table of mappings that the process uses. A table of an older image is never valid, whatever is recorded about it.
///
/// # Safety
/// `row` is a map value.
#[inline(always)]
unsafe fn table(row: *const ProcessRow) -> Option<*const MappingTable> {
    // SAFETY: as promised by the caller.
    let index = unsafe { read_volatile(addr_of!((*row).mappings)) };
    if index == NO_MAPPINGS as u64 { None } else { MAPPINGS.get_ptr(index as u32) }
}

/// Returns true if a range overlaps a mapping in the table.
///
/// # Safety
/// The table is a map value.
#[inline(always)]
unsafe fn overlaps(table: *const MappingTable, start: u64, end: u64) -> bool {
    // SAFETY: as promised by the caller.
    unsafe {
        // If the last mapping that begins before the end does not overlap, no other does.
        let last: *const Mapping = mapping_at(table, end - 1);
        (*last).begin < end && (*last).end > start
    }
}
