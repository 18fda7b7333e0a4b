//! Return addresses replaced by return probes.
//!
//! A return probe, jjleak's or another tool's, writes the address of a trampoline to the return slot of a running call. The
//! kernel keeps the original return address in the task's list of return instances, innermost first (include/linux/uprobes.h,
//! `struct uprobe_task` and `struct return_instance`). The loader sets the offsets of their fields.

use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_probe_read_kernel};
use core::{ffi::c_void, mem::MaybeUninit};

use super::Walk;

use crate::constants::kernel_offset;

/// Maximum number of return instances to skip: calls that ended without returning leave theirs behind.
const MAX_SKIPPED: u32 = 16;

/// Writes the original return address to the walk's instruction pointer, if a return probe has replaced its return slot.
#[inline(always)]
pub(super) fn resolve(walk: &mut Walk) {
    if kernel_offset!(task_utask) == 0 || walk.after_call == 0 {
        return;
    }
    let slot = walk.stack_pointer.wrapping_sub(8);
    let mut instance = walk.return_instance;
    if instance == 0 {
        // SAFETY: has no preconditions.
        let task = unsafe { bpf_get_current_task() };
        instance = kernel_word(task + kernel_offset!(task_utask))
            .and_then(|utask| kernel_word(utask + kernel_offset!(utask_return_instances)))
            .unwrap_or(0);
    }
    let mut skipped = 0;
    while skipped < MAX_SKIPPED && instance != 0 {
        let next = kernel_word(instance + kernel_offset!(return_instance_next)).unwrap_or(0);
        if kernel_word(instance + kernel_offset!(return_instance_stack)) == Some(slot) {
            if let Some(address) = kernel_word(instance + kernel_offset!(return_instance_address)) {
                walk.instruction_pointer = address;
            }
            walk.return_instance = next;
            return;
        }
        instance = next;
        skipped += 1;
    }
}

/// A word of the kernel's memory; `None` for an invalid address and for null pointers.
#[inline(always)]
fn kernel_word(address: u64) -> Option<u64> {
    let mut word = MaybeUninit::<u64>::uninit();
    // SAFETY: the destination has 8 bytes; the helper checks the source.
    let status = unsafe { bpf_probe_read_kernel(word.as_mut_ptr().cast(), 8, address as *const c_void) };
    // SAFETY: the helper has filled all 8 bytes, according to its status.
    let word = if status == 0 { unsafe { word.assume_init() } } else { 0 };
    if word == 0 { None } else { Some(word) }
}
