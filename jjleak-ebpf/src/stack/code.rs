//! Queries to the kernel about the mapping of an address, for code that is not in the user side's tables yet.
//!
//! A process that has just executed a program or loaded a library may end before the user side has scanned it. If the file's rows
//! are known from another process or an earlier run, the walk continues with them.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::helpers::generated::{
    bpf_find_vma, bpf_get_current_task, bpf_get_current_task_btf, bpf_ktime_get_ns, bpf_probe_read_kernel_str,
};
use jjleak_common::{
    counter::Counter,
    process::{ImageId, MAX_REPORTED},
    stack::StackStatus,
    unwind::{
        CodeFile, CodePart, Hint, MAX_CODE_PARTS, MAX_FOUND, Mapping, PATH_BYTES, ProgramBegun,
        code_identity, layer,
    },
};

use super::{Claimed, Walk};
use crate::{
    constants::kernel_offset,
    maps::{CODE, HINTS, PROCESSES, PROGRAMS, count},
    memory::read_kernel,
};

const _: () = assert!(MAX_CODE_PARTS == 2);

/// ENOENT, which `bpf_find_vma` returns for an unmapped address.
pub(super) const NO_MAPPING: i64 = -2;

/// include/linux/mm.h
pub(super) const VM_EXEC: u64 = 4;
pub(super) const PAGE_SHIFT: u64 = 12;
/// Width of a device's minor number in the kernel (MINORBITS in include/linux/kdev_t.h).
const MINOR_BITS: u32 = 20;
/// Mask that removes a flag of the kernel from the nanoseconds (`I_CTIME_QUERIED` in include/linux/fs.h).
const NANOSECONDS: u32 = (1 << 31) - 1;

/// Finds the mapping at `address` and reports it to the user side. If the rows of its file are known, keeps it for this walk. Fails
/// with the stack's status if the walk cannot continue.
#[inline(always)]
pub(super) fn look_up(scratch: Claimed, image: ImageId, address: u64) -> Result<(), StackStatus> {
    // Not on the BPF stack, which is too small: before Linux 6.13, the walk shares it with the program that began the walk.
    let hint = scratch.hint().ok_or(StackStatus::NoMapping)?;
    hint.slot = image.slot().0 as u32;
    hint.image = image.0;
    hint.begin = 0;
    hint.end = 0;
    hint.file_offset = 0;
    hint.file.inode = 0;
    hint.file.changed_s = 0;
    hint.file.changed_ns = 0;
    hint.file.device = 0;
    if kernel_offset!(vma_file) != 0 {
        let mut context: *mut Hint = hint;
        // SAFETY: the callback has the helper's signature, and its context outlives the call.
        unsafe {
            let task = bpf_get_current_task_btf();
            let status = bpf_find_vma(task, address, describe as *mut c_void, (&raw mut context).cast(), 0);
            // If the memory map is locked, the kernel returns nothing.
            scratch.walk().unfinished.awaits_rows = (status != 0 && status != NO_MAPPING) as u64;
        }
    }
    let device = (hint.file.device >> MINOR_BITS, hint.file.device & ((1 << MINOR_BITS) - 1));
    let file_start = hint.begin.wrapping_sub(hint.file_offset);
    let identity = if hint.begin == 0 { 0 } else { code_identity(device, hint.file.inode, file_start) };
    report(image, hint, identity);
    if hint.begin == 0 {
        if hint.end == 0 {
            return Err(StackStatus::NoMapping);
        }
        scratch.walk().unfinished.awaits_rows = 1;
        return Err(StackStatus::GeneratedCode);
    }
    // SAFETY: the index is in bounds.
    let found = unsafe {
        let walk = scratch.walk();
        let place = walk.found_count as usize & (MAX_FOUND - 1);
        walk.found_count += 1;
        walk.hash = walk.hash.push(identity);
        *addr_of_mut!((*scratch.record()).found).cast::<u64>().add(place) = identity;
        let found = addr_of_mut!(walk.found).cast::<Mapping>().add(place);
        (*found).layer = layer::FOUND as u32 + place as u32;
        found
    };
    let Some(rows) = CODE.get_ptr(&hint.file) else {
        scratch.walk().unfinished.awaits_rows = 1;
        return Err(StackStatus::NoMapping);
    };
    // SAFETY: both point into map values, and the indexes are in bounds.
    unsafe {
        let parts = addr_of!((*rows).parts).cast::<CodePart>();
        let mut part = parts;
        if !is_in(part, hint.file_offset) {
            part = parts.add(1);
            if !is_in(part, hint.file_offset) {
                return Err(StackStatus::NoMapping);
            }
        }
        (*found).begin = hint.begin;
        (*found).end = hint.end;
        (*found).text = file_start.wrapping_add((*part).text);
        (*found).first_page = (*rows).first_page;
        (*found).pages = (*rows).pages;
    }
    Ok(())
}

/// Returns true if a file offset is in a part of the file's code.
///
/// # Safety
/// The part is in a map value.
#[inline(always)]
unsafe fn is_in(part: *const CodePart, offset: u64) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { offset.wrapping_sub((*part).begin) < (*part).end.wrapping_sub((*part).begin) }
}

/// Returns true if an address is on the stack of the walk: in the mapping of the stack pointer, as far as the kernel reports it.
#[inline(always)]
pub(super) fn is_on_stack(scratch: Claimed, address: u64) -> bool {
    let walk = scratch.walk();
    if kernel_offset!(vma_file) == 0 {
        return true;
    }
    let size = walk.stack_end.wrapping_sub(walk.stack_begin);
    if walk.stack_pointer.wrapping_sub(walk.stack_begin) >= size {
        // If the memory map is locked, the kernel returns nothing.
        walk.stack_begin = 0;
        walk.stack_end = u64::MAX;
        let mut context: *mut Walk = walk;
        // SAFETY: the callback has the helper's signature, and its context outlives the call.
        unsafe {
            let (task, at) = (bpf_get_current_task_btf(), (*context).stack_pointer);
            bpf_find_vma(task, at, bound as *mut c_void, (&raw mut context).cast(), 0);
        }
    }
    // SAFETY: as above.
    let walk = scratch.walk();
    address.wrapping_sub(walk.stack_begin) <= walk.stack_end.wrapping_sub(walk.stack_begin)
}

/// Returns true if an address is mapped in the current process, as far as the kernel reports it.
#[inline(always)]
pub(super) fn is_mapped(address: u64) -> bool {
    let mut nothing = 0u64;
    // SAFETY: the callback has the helper's signature, and does not use its context.
    let status = unsafe {
        let task = bpf_get_current_task_btf();
        bpf_find_vma(task, address, ignore as *mut c_void, (&raw mut nothing).cast(), 0)
    };
    status != NO_MAPPING
}

#[inline(never)]
extern "C" fn ignore(_task: *const c_void, _vma: *const c_void, _context: *mut u64) -> i64 {
    0
}

/// Stores the bounds of a mapping in the walk.
#[inline(never)]
extern "C" fn bound(_task: *const c_void, vma: *const c_void, context: *mut *mut Walk) -> i64 {
    let vma = vma as u64;
    if let (Some(begin), Some(end)) =
        (read_kernel(vma + kernel_offset!(vma_start)), read_kernel(vma + kernel_offset!(vma_end)))
    {
        // SAFETY: the helper passes the context given by `is_on_stack`.
        let walk = unsafe { &mut **context };
        walk.stack_begin = begin;
        walk.stack_end = end;
    }
    0
}

/// Identity of an open file (`struct file`).
#[inline(always)]
fn identify(file: u64) -> Option<CodeFile> {
    let inode: u64 = read_kernel(file + kernel_offset!(file_inode))?;
    let device: u64 = read_kernel(inode + kernel_offset!(inode_super))?;
    Some(CodeFile {
        inode: read_kernel(inode + kernel_offset!(inode_number))?,
        device: read_kernel(device + kernel_offset!(super_device))?,
        changed_s: read_kernel(inode + kernel_offset!(inode_changed_s))?,
        changed_ns: read_kernel::<u32>(inode + kernel_offset!(inode_changed_ns))? & NANOSECONDS,
    })
}

/// Number of the current process's mount namespace; 0 if unknown.
#[inline(always)]
fn mount_namespace() -> u32 {
    if kernel_offset!(task_namespaces) == 0 {
        return 0;
    }
    // SAFETY: has no preconditions.
    let task = unsafe { bpf_get_current_task() };
    let number = read_kernel::<u64>(task + kernel_offset!(task_namespaces))
        .and_then(|namespaces| read_kernel::<u64>(namespaces + kernel_offset!(mount_namespace)))
        .and_then(|namespace| read_kernel::<u32>(namespace + kernel_offset!(mount_namespace_number)));
    number.unwrap_or(0)
}

/// Reports the start of a program in the current process; `program` is its `struct linux_binprm`. A hint must wake the user side.
/// If the report does not fit, it is unknown if the program was counted.
#[inline(always)]
pub(crate) fn report_program(image: ImageId, program: u64) {
    let Some(mut room) = PROGRAMS.reserve::<ProgramBegun>(0) else {
        count(image.slot(), Counter::UnseenProgram);
        return;
    };
    let begun = room.as_mut_ptr();
    let unknown = CodeFile { inode: 0, changed_s: 0, changed_ns: 0, device: 0 };
    let (mut file, mut path) = (unknown, 0);
    if kernel_offset!(program_file) != 0 && kernel_offset!(vma_file) != 0 {
        let opened = read_kernel::<u64>(program + kernel_offset!(program_file));
        file = opened.and_then(identify).unwrap_or(unknown);
        path = read_kernel::<u64>(program + kernel_offset!(program_path)).unwrap_or(0);
    }
    // SAFETY: the reserved record is ours until submitted, and the helpers write at most the given sizes.
    unsafe {
        (*begun).time_ns = bpf_ktime_get_ns();
        (*begun).image = image.0;
        (*begun).mount_namespace = mount_namespace();
        (*begun).file = file;
        let text = addr_of_mut!((*begun).path).cast::<c_void>();
        if bpf_probe_read_kernel_str(text, PATH_BYTES as u32, path as *const c_void) < 0 {
            *text.cast::<u8>() = 0;
        }
    }
    room.submit(0);
}

/// Reports a mapping to the user side, once if possible.
#[inline(always)]
fn report(image: ImageId, hint: &Hint, identity: u64) {
    let Some(row) = PROCESSES.get_ptr_mut(image.slot().0 as u32) else { return };
    let mark = identity ^ image.generation() as u64;
    let place = (hint.begin >> PAGE_SHIFT ^ hint.begin >> (2 * PAGE_SHIFT)) as usize & (MAX_REPORTED - 1);
    // SAFETY: points into a map value; the index is in bounds.
    let reported = unsafe { addr_of_mut!((*row).reported).cast::<u64>().add(place) };
    // SAFETY: as above.
    if hint.begin != 0 && unsafe { read_volatile(reported) } == mark {
        return;
    }
    // If the buffer is full, the user side has hints to act on.
    if HINTS.output::<Hint>(hint, 0).is_ok() {
        // SAFETY: as above.
        unsafe { write_volatile(reported, mark) };
    }
}

/// Stores a mapping in the hint, if it is of a file's code.
#[inline(never)]
extern "C" fn describe(_task: *const c_void, vma: *const c_void, context: *mut *mut Hint) -> i64 {
    // SAFETY: the helper passes the context given by `look_up`.
    let hint = unsafe { &mut **context };
    let _ = read(vma as u64, hint);
    0
}

#[inline(always)]
fn read(vma: u64, hint: &mut Hint) -> Option<()> {
    let flags: u64 = read_kernel(vma + kernel_offset!(vma_flags))?;
    let file: u64 = read_kernel(vma + kernel_offset!(vma_file))?;
    if flags & VM_EXEC == 0 {
        return None;
    }
    let end = read_kernel(vma + kernel_offset!(vma_end))?;
    if file == 0 {
        // Code in no file has no beginning here.
        hint.end = end;
        return None;
    }
    hint.file = identify(file)?;
    hint.file_offset = read_kernel::<u64>(vma + kernel_offset!(vma_page_offset))? << PAGE_SHIFT;
    hint.end = end;
    hint.begin = read_kernel(vma + kernel_offset!(vma_start))?;
    Some(())
}
