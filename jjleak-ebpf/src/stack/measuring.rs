//! Stacks of the benchmark.

use core::{ffi::c_void, ptr::addr_of_mut};

use aya_ebpf::{EbpfContext, bindings::BPF_F_USER_STACK, helpers::generated::bpf_get_stack};
use jjleak_common::{counter::Counter, process::ProcessSlot, stack::MAX_FRAMES};

use super::Scratch;
use crate::maps::count;

/// Claims and releases a buffer like a walk; calls `use_it` with an address in it and a number of bytes that fit.
#[inline(always)]
pub(crate) fn copy_some(use_it: impl Fn(*mut c_void, u32)) {
    const BYTES: u32 = 384;
    let Some(scratch) = Scratch::claim() else { return };
    use_it(scratch.window().cast(), BYTES);
    scratch.release();
}

/// Makes the kernel walk the current thread's stack, into the same memory.
#[inline(always)]
pub(crate) fn by_kernel<C: EbpfContext>(ctx: &C) {
    let Some(scratch) = Scratch::claim() else {
        count(ProcessSlot(0), Counter::ScratchBusy);
        return;
    };
    // SAFETY: the size matches its frames.
    unsafe {
        let frames = addr_of_mut!((*scratch.record()).frames);
        bpf_get_stack(ctx.as_ptr(), frames.cast(), (MAX_FRAMES * 8) as u32, BPF_F_USER_STACK as u64);
    }
    scratch.release();
}
