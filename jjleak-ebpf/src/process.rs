//! Life cycle of profiled processes: start, `exec`, end.

use core::{
    ffi::c_void,
    ptr::{addr_of, addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid,
    generated::{bpf_get_current_comm, bpf_get_current_task, bpf_ktime_get_ns},
};
use jjleak_common::{
    counter::Counter,
    process::{
        COMM_BYTES, FreedCode, ImageId, MAX_ALLOCATORS, ProcessRow, ProcessSlot, ProcessState, TextRange,
        flag,
    },
};

use crate::{
    accounting,
    constants::{kernel_offset, setting},
    current::{current_process, current_tgid, row_of_current, slot_of_caller},
    maps::{FREE_SLOTS, PROCESSES, TRACKED, count, count_common},
    memory::{add, read_kernel},
    stack,
};

/// Fork of a process. If children are followed, a child that shares its parent's memory (`vfork`) uses the parent's slot, and any
/// other gets a slot of its own. Runs before the child does.
#[inline(always)]
pub(crate) fn fork(parent: *const c_void, child: *const c_void) {
    let Some((slot, row)) = row_of_current() else { return };
    let Some(child_tgid) = field::<u32>(child, kernel_offset!(task_tgid)) else { return };
    if child_tgid == current_tgid() {
        return;
    }
    let shares_memory =
        field::<u64>(parent, kernel_offset!(task_mm)) == field::<u64>(child, kernel_offset!(task_mm));
    match (setting!(follow_forks) != 0, shares_memory) {
        (true, true) => {
            // SAFETY: the row is a map value, and all writers during the life of an image set the same bit.
            unsafe {
                let flags = read_volatile(addr_of!((*row).flags));
                write_volatile(addr_of_mut!((*row).flags), flags | flag::SHARED);
            }
            let _ = TRACKED.insert(child_tgid, slot.0 as u32, 0);
        }
        (true, false) => {
            adopt(child_tgid, Some(row));
        }
        (false, true) => count(slot, Counter::SharedMemoryChild),
        (false, false) => count(slot, Counter::Fork),
    }
}

/// Exec in the current process: a new program image starts, and the blocks of the old one are gone with its memory. `old_thread`
/// is the thread that called exec, numbered in the initial namespace before the call; it has become the main thread. `program` is
/// the kernel's description of the program (`struct linux_binprm`).
#[inline(always)]
pub(crate) fn exec(old_thread: u32, thread: u32, program: u64) {
    let Some(pid) = current_process() else { return };
    let Some(slot) = TRACKED.get_ptr(&pid) else {
        if setting!(adopt_execs) != 0
            && let Some(image) = adopt(pid, None)
        {
            stack::report_program(image, program);
        }
        return;
    };
    // SAFETY: points into a map value.
    let slot = unsafe { *slot };
    let Some(row) = PROCESSES.get_ptr_mut(slot) else { return };
    // SAFETY: the row is a map value; a process has a single thread during exec.
    unsafe {
        if read_volatile(addr_of!((*row).pid)) != pid {
            // It shared its parent's memory until now, and has its own from now on.
            let _ = TRACKED.remove(pid);
            if (setting!(follow_forks) != 0 || setting!(adopt_execs) != 0)
                && let Some(image) = adopt(pid, None)
            {
                stack::report_program(image, program);
            }
            return;
        }
        let mut image = read_volatile(addr_of!((*row).image));
        if image == 0 {
            if read_volatile(addr_of!((*row).state)) != ProcessState::Attaching as u32 {
                return;
            }
            image = read_volatile(addr_of!((*row).last_image));
            write_volatile(addr_of_mut!((*row).state), ProcessState::Running as u32);
        }
        let flags = read_volatile(addr_of!((*row).flags));
        write_volatile(addr_of_mut!((*row).flags), flags & flag::SHARED);
        name(row);
        let next = ImageId(image as u32).next();
        if read_volatile(addr_of!((*row).swept)) == next.0 as u64 {
            count(next.slot(), Counter::ImageReused);
        }
        begin(row, next);
        stack::report_program(next, program);
    }
    let slot = ProcessSlot(slot as u16);
    stack::begin_lost(slot);
    stack::hint(slot);
    count(slot, Counter::Exec);
    // Probes without a bound thread stay attached.
    if old_thread != thread && setting!(follow_forks) == 0 {
        count(slot, Counter::ProbesUnbound);
    }
}

/// End of the current thread. The C library has freed its data of the thread, unless it is the main thread.
#[inline(always)]
pub(crate) fn end_thread() {
    if bpf_get_current_pid_tgid() as u32 == current_tgid() {
        return;
    }
    if let Some(slot) = slot_of_caller() {
        accounting::end_thread(slot);
    }
}

/// End of the current thread. The process ends with its last thread, and its PID may be reused from then on.
#[inline(always)]
pub(crate) fn exit() {
    let tgid = current_tgid();
    let Some(slot) = TRACKED.get_ptr(&tgid) else { return };
    // SAFETY: has no preconditions.
    let task = unsafe { bpf_get_current_task() } as *const c_void;
    let Some(signal) = field::<u64>(task, kernel_offset!(task_signal)) else { return };
    if field::<u32>(signal as *const c_void, kernel_offset!(signal_live)) != Some(0) {
        return;
    }
    // SAFETY: both point into map values.
    unsafe {
        let slot = *slot;
        let _ = TRACKED.remove(tgid);
        let Some(row) = PROCESSES.get_ptr_mut(slot) else { return };
        if read_volatile(addr_of!((*row).pid)) == tgid {
            write_volatile(addr_of_mut!((*row).state), ProcessState::Ended as u32);
            stack::hint(ProcessSlot(slot as u16));
        }
    }
}

/// Counts code that the JVM of the current process is about to free, even while its allocations are not counted: as soon as it is freed,
/// other code can have its address.
#[inline(always)]
pub(crate) fn count_freed_code() {
    let Some((_, row)) = row_of_current() else { return };
    // SAFETY: points into a map value.
    unsafe {
        let freed = addr_of_mut!((*row).freed_code);
        if FreedCode(read_volatile(freed)).is_counted() {
            add(freed, 1);
        }
    }
}

/// Assigns a slot to a process, with its parent's code mappings if it is a copy. Returns its program image.
#[inline(always)]
fn adopt(tgid: u32, parent: Option<*const ProcessRow>) -> Option<ImageId> {
    let Ok(Some(slot)) = FREE_SLOTS.pop() else {
        count_common(Counter::ProcessTableFull);
        return None;
    };
    let row = PROCESSES.get_ptr_mut(slot)?;
    let slot = ProcessSlot(slot as u16);
    // SAFETY: both rows are map values, and nothing else uses a row whose slot was free.
    let image = unsafe {
        let last = read_volatile(addr_of!((*row).last_image));
        let image = if last == 0 { ImageId::first(slot) } else { ImageId(last as u32).next() };
        (*row).pid = tgid;
        name(row);
        (*row).flags = 0;
        (*row).parent = 0;
        (*row).trampoline = 0;
        (*row).mappings_image = 0;
        (*row).text_image = 0;
        if let Some(parent) = parent {
            (*row).flags = flag::FORKED;
            (*row).parent = (*parent).pid;
            inherit(row, parent, image);
        }
        if TRACKED.insert(tgid, slot.0 as u32, 0).is_err() {
            count_common(Counter::ProcessTableFull);
        }
        (*row).swept = image.0 as u64;
        begin(row, image);
        write_volatile(addr_of_mut!((*row).state), ProcessState::Running as u32);
        image
    };
    stack::hint(slot);
    Some(image)
}

/// Copies the code mappings of the parent. Both use the parent's table of mappings until the child has its own.
///
/// # Safety
/// Both are map values.
#[inline(always)]
unsafe fn inherit(row: *mut ProcessRow, parent: *const ProcessRow, image: ImageId) {
    // SAFETY: as promised by the caller.
    unsafe {
        let of_parent = read_volatile(addr_of!((*parent).image));
        if of_parent == 0 {
            return;
        }
        if (*parent).mappings_image == of_parent {
            (*row).mappings = (*parent).mappings;
            (*row).mappings_image = image.0 as u64;
        }
        (*row).code.made = (*parent).code.made;
        (*row).code.replaced = (*parent).code.replaced;
        (*row).code.scan = (*parent).code.scan;
        (*row).code.disturbed = (*parent).code.disturbed;
        if (*parent).text_image == of_parent {
            let mut index = 0;
            while index < MAX_ALLOCATORS {
                let TextRange { start, end } = (*parent).allocator_text[index];
                (*row).allocator_text[index] = TextRange { start, end };
                index += 1;
            }
            (*row).text_image = image.0 as u64;
        }
    }
}

/// Records the name of the current thread.
///
/// # Safety
/// `row` is a map value.
#[inline(always)]
unsafe fn name(row: *mut ProcessRow) {
    // SAFETY: as promised by the caller; the helper writes at most the given size.
    unsafe { bpf_get_current_comm(addr_of_mut!((*row).comm).cast(), COMM_BYTES as u32) };
}

/// Arms a process for a new image.
///
/// # Safety
/// `row` is a map value.
#[inline(always)]
unsafe fn begin(row: *mut ProcessRow, image: ImageId) {
    // SAFETY: as promised by the caller.
    unsafe {
        write_volatile(addr_of_mut!((*row).since_ns), bpf_ktime_get_ns());
        write_volatile(addr_of_mut!((*row).last_image), image.0 as u64);
        write_volatile(addr_of_mut!((*row).image), image.0 as u64);
    }
}

/// A field of a kernel structure; `None` if it cannot be read.
#[inline(always)]
fn field<T: Copy>(structure: *const c_void, offset: u64) -> Option<T> {
    read_kernel(structure as u64 + offset)
}
