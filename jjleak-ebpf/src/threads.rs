//! Identity of the allocating thread, if requested.

use core::ptr::{addr_of_mut, write_volatile};

use aya_ebpf::helpers::generated::{bpf_get_current_comm, bpf_ktime_get_ns};
use jjleak_common::{
    counter::Counter,
    process::{COMM_BYTES, ProcessSlot},
    stack::{StackRecord, thread_identity},
};

use crate::{
    constants::setting,
    current::current_thread,
    maps::{CALLS, count},
};

/// Returns true if threads are distinguished. Constant for the verifier, like all globals.
#[inline(always)]
pub(crate) fn are_told_apart() -> bool {
    setting!(threads) != 0
}

/// Identity of the current thread; 0 if threads are not distinguished, or there is no memory for the record. Freed with the
/// thread, so that another thread with the same number gets another identity.
#[inline(always)]
pub(crate) fn current(slot: ProcessSlot) -> u64 {
    if !are_told_apart() {
        return 0;
    }
    let Some(calls) = CALLS.get_or_create() else {
        count(slot, Counter::UnknownThread);
        return 0;
    };
    // SAFETY: task storage belongs to the current task, which is executing this program, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    if calls.thread == 0 {
        // SAFETY: has no preconditions.
        calls.thread = thread_identity(current_thread(), unsafe { bpf_ktime_get_ns() });
    }
    calls.thread
}

/// Records the thread of a new stack.
///
/// # Safety
/// `record` is in a map value that nothing else uses.
#[inline(always)]
pub(crate) unsafe fn describe(thread: u64, record: *mut StackRecord) {
    // SAFETY: as promised by the caller; the helper writes at most the given size.
    unsafe {
        write_volatile(addr_of_mut!((*record).thread), thread);
        if are_told_apart() {
            write_volatile(addr_of_mut!((*record).thread_number), current_thread());
            bpf_get_current_comm(addr_of_mut!((*record).thread_name).cast(), COMM_BYTES as u32);
        }
    }
}
