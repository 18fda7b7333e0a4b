//! What happens to a profiled process as a whole.

use core::ptr::{addr_of_mut, read_volatile, write_volatile};

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use jjleak_common::process::ImageId;

use crate::{
    maps::{PROCESSES, TRACKED},
    stack,
};

/// The current process has replaced its program: a new image begins, and the blocks of the old one are gone with
/// its memory.
#[inline(always)]
pub(crate) fn exec() {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
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
}
