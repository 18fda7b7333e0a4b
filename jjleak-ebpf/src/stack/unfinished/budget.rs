//! Bound of the work and rows that unfinished stacks of a process take.

use core::ptr::{addr_of, addr_of_mut, read_volatile, write_volatile};

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use jjleak_common::{
    process::ImageId,
    unfinished::{SHARE_SHIFT, UnfinishedUse},
};

use crate::{
    maps::{UNFINISHED_USE, stack_rows_log2},
    memory::{add, add_u32},
};

/// Maximum number of rows for the unfinished stacks of a process: a program that defeats this identification takes no more.
#[inline(always)]
fn max_rows() -> u64 {
    1 << (stack_rows_log2() - SHARE_SHIFT)
}

/// Resources that an image has used. Concurrent calls may count one use for two, which leaves the bounds as good.
#[inline(always)]
fn used(image: ImageId) -> Option<*mut UnfinishedUse> {
    let used = UNFINISHED_USE.get_ptr_mut(image.slot().0 as u32)?;
    // SAFETY: points into a map value; has no preconditions.
    unsafe {
        if read_volatile(addr_of!((*used).image)) != image.0 {
            let since_ns = bpf_ktime_get_ns();
            write_volatile(used, UnfinishedUse { image: image.0, rows: 0, since_ns, work: 0 });
        }
    }
    Some(used)
}

#[inline(always)]
pub(super) fn has_budget(image: ImageId) -> bool {
    // SAFETY: points into a map value; has no preconditions.
    used(image).is_some_and(|used| unsafe { read_volatile(used).has_budget(bpf_ktime_get_ns(), max_rows()) })
}

#[inline(always)]
pub(super) fn use_budget(image: ImageId, work: u64) {
    if let Some(used) = used(image) {
        // SAFETY: points into a map value.
        unsafe { add(addr_of_mut!((*used).work), work) };
    }
}

#[inline(always)]
pub(super) fn count_row(image: ImageId) {
    if let Some(used) = used(image) {
        // SAFETY: points into a map value.
        unsafe { add_u32(addr_of_mut!((*used).rows), 1) };
    }
}
