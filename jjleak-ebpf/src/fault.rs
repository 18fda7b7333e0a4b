//! Reports page faults: the stack that is about to make a page resident. The user side finds out which pages are.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use jjleak_common::{counter::Counter, fault::Fault};

use crate::{
    current::Caller,
    maps::{PAGE_FAULTS, count},
    memory::USER_SPACE_END,
    stack,
    syscall::{self, Syscall},
};

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
        place: Fault::place(address, error_code),
        image: caller.image,
        stack,
    };
    if PAGE_FAULTS.output::<Fault>(&fault, 0).is_err() {
        count(caller.image.slot(), Counter::PageFaultLost);
    }
}
