//! What happens to a profiled process as a whole.

use core::{
    ffi::c_void,
    mem::MaybeUninit,
    ptr::{addr_of_mut, read_volatile, write_volatile},
};

use aya_ebpf::{Global, bindings::bpf_pidns_info, helpers::generated::bpf_get_ns_current_pid_tgid};
use jjleak_common::{counter::Counter, process::ImageId};

use crate::{
    maps::{PROCESSES, TRACKED, count},
    stack,
};

/// The PID namespace that the user side knows processes by: device and inode of its `/proc/self/ns/pid`.
#[unsafe(no_mangle)]
static PID_NAMESPACE_DEVICE: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static PID_NAMESPACE_INODE: Global<u64> = Global::new(0);

/// The current process has replaced its program: a new image begins, and the blocks of the old one are gone with
/// its memory. `old_thread` is the thread that called exec, as the initial namespace numbered it then; it has become
/// the main thread.
#[inline(always)]
pub(crate) fn exec(old_thread: u32, thread: u32) {
    let Some(pid) = current_process() else { return };
    let Some(slot) = TRACKED.get_ptr(&pid) else { return };
    // SAFETY: points into a map value; a process has one thread while it runs exec.
    unsafe {
        let Some(row) = PROCESSES.get_ptr_mut(*slot) else { return };
        let image = read_volatile(addr_of_mut!((*row).image));
        if image == 0 {
            return;
        }
        write_volatile(addr_of_mut!((*row).image), ImageId(image as u16).next().0 as u64);
        stack::report_miss(*slot, 0);
    }
    count(Counter::Exec);
    if old_thread != thread {
        count(Counter::ProbesUnbound);
    }
}

/// The current process's PID in the user side's namespace; `None` when it has none there.
#[inline(always)]
fn current_process() -> Option<u32> {
    let mut info = MaybeUninit::<bpf_pidns_info>::uninit();
    // SAFETY: the destination is as large as it says.
    let status = unsafe {
        bpf_get_ns_current_pid_tgid(
            PID_NAMESPACE_DEVICE.load(),
            PID_NAMESPACE_INODE.load(),
            info.as_mut_ptr().cast::<c_void>().cast(),
            size_of::<bpf_pidns_info>() as u32,
        )
    };
    // SAFETY: the helper filled it, as its status says.
    if status == 0 { Some(unsafe { info.assume_init() }.tgid) } else { None }
}
