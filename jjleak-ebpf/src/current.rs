//! Identity of the current process and thread, and what the kernel knows of it.

use core::{
    ffi::c_void,
    mem::MaybeUninit,
    ptr::{addr_of, read_volatile},
};

use aya_ebpf::{
    bindings::bpf_pidns_info,
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_current_task, bpf_get_ns_current_pid_tgid},
    },
};
use jjleak_common::process::{ImageId, ProcessRow, ProcessSlot};

use crate::{
    constants::{kernel_offset, setting},
    maps::{PROCESSES, TRACKED},
    memory::read_kernel,
};

/// The current process, if it is profiled.
pub(crate) struct Caller {
    pub(crate) image: ImageId,
    pub(crate) row: *const ProcessRow,
}

impl Caller {
    /// `None` if the current process is not profiled or not armed.
    #[inline(always)]
    pub(crate) fn current() -> Option<Self> {
        let row = PROCESSES.get_ptr(slot_of_caller()?.0 as u32)?;
        // SAFETY: points into a map value.
        let image = unsafe { read_volatile(addr_of!((*row).image)) };
        if image == 0 { None } else { Some(Self { image: ImageId(image as u32), row }) }
    }
}

/// Slot of the current process, if the probe does not determine it; `None` if it is not profiled. Only used if the user side is
/// in the initial PID namespace.
#[inline(always)]
pub(crate) fn slot_of_current() -> Option<ProcessSlot> {
    // SAFETY: points into a map value.
    let slot = unsafe { *TRACKED.get_ptr(&current_tgid())? };
    Some(ProcessSlot(slot as u16))
}

/// Slot and row of the current process; `None` if it is not profiled.
#[inline(always)]
pub(crate) fn row_of_current() -> Option<(ProcessSlot, *mut ProcessRow)> {
    let pid = current_process()?;
    // SAFETY: points into a map value.
    let slot = unsafe { *TRACKED.get_ptr(&pid)? };
    Some((ProcessSlot(slot as u16), PROCESSES.get_ptr_mut(slot)?))
}

/// PID of the current process in the initial namespace.
#[inline(always)]
pub(crate) fn current_tgid() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

/// Slot of the current process; `None` if it is not profiled.
#[inline(always)]
pub(crate) fn slot_of_caller() -> Option<ProcessSlot> {
    // SAFETY: points into a map value.
    let slot = unsafe { *TRACKED.get_ptr(&current_process()?)? };
    Some(ProcessSlot(slot as u16))
}

/// Program break of the current process; `None` if it cannot be read. Only valid if [`knows_breaks`] is true.
#[inline(always)]
pub(crate) fn current_break() -> Option<u64> {
    // SAFETY: has no preconditions.
    let task = unsafe { bpf_get_current_task() };
    let memory = read_kernel::<u64>(task + kernel_offset!(task_mm))?;
    read_kernel(memory + kernel_offset!(mm_brk))
}

/// Returns true if the location of the program break in this kernel's structures is known.
#[inline(always)]
pub(crate) fn knows_breaks() -> bool {
    kernel_offset!(mm_brk) != 0
}

/// PID of the current process on the user side; `None` if it has none there.
#[inline(always)]
pub(crate) fn current_process() -> Option<u32> {
    if setting!(in_initial_pid_namespace) != 0 {
        Some(current_tgid())
    } else {
        Some(current_in_namespace()?.tgid)
    }
}

/// Thread ID of the current thread on the user side, or the kernel's own if it has none there.
#[inline(always)]
pub(crate) fn current_thread() -> u32 {
    let initial = bpf_get_current_pid_tgid() as u32;
    if setting!(in_initial_pid_namespace) != 0 {
        return initial;
    }
    current_in_namespace().map_or(initial, |info| info.pid)
}

/// Thread pointer (FS base) of the current thread; `None` if the kernel does not tell where it is.
#[inline(always)]
pub(crate) fn thread_pointer() -> Option<u64> {
    if kernel_offset!(task_thread_pointer) == 0 {
        return None;
    }
    // SAFETY: has no preconditions.
    let task = unsafe { bpf_get_current_task() };
    read_kernel(task + kernel_offset!(task_thread_pointer))
}

/// IDs of the current task in the user side's PID namespace; `None` if it is in another one, including nested ones.
#[inline(always)]
fn current_in_namespace() -> Option<bpf_pidns_info> {
    let mut info = MaybeUninit::<bpf_pidns_info>::uninit();
    // SAFETY: the destination has the stated size.
    let status = unsafe {
        bpf_get_ns_current_pid_tgid(
            setting!(pid_namespace_device),
            setting!(pid_namespace_inode),
            info.as_mut_ptr().cast::<c_void>().cast(),
            size_of::<bpf_pidns_info>() as u32,
        )
    };
    // SAFETY: the helper has filled the value, according to its status.
    if status == 0 { Some(unsafe { info.assume_init() }) } else { None }
}
