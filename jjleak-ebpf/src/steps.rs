//! Repetitions of single, indispensable steps of the accounting, for the benchmark, which measures each step.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_user};
use jjleak_common::{
    process::ProcessSlot,
    stage::{STEPS, Step},
};

use crate::{
    constants::{load, measurement},
    maps::CALLS,
    memory::{opaque, read_user_word},
    registers::Hit,
    stack,
};

/// Repeats the step.
#[inline(always)]
pub(crate) fn repeat(hit: &Hit) {
    let step = load(&measurement().step);
    let mut times = 0;
    while times < STEPS {
        if step == Step::Word as u32 {
            read_user_word(hit.stack_pointer());
        } else if step == Step::Copy as u32 {
            stack::measuring::copy_some(|place, bytes| {
                // SAFETY: the destination has space for that many bytes; the helper checks the source.
                unsafe { bpf_probe_read_user(place, bytes, hit.stack_pointer() as *const c_void) };
            });
        } else if step == Step::Claim as u32 {
            stack::measuring::copy_some(|_, _| {});
        } else if step == Step::Storage as u32 {
            opaque(CALLS.get().is_some() as u64);
        } else if step == Step::Time as u32 {
            // SAFETY: has no preconditions.
            unsafe { bpf_ktime_get_ns() };
        } else if step == Step::Add as u32 {
            stack::count_allocation(jjleak_common::stack::lost_row(ProcessSlot(0)), 0);
        }
        times += 1;
    }
}
