//! Access to the target's memory, and atomic operations on map values.

use core::{
    ffi::c_void,
    intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd, atomic_xchg},
    mem::MaybeUninit,
};

use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_user};

/// Addresses above belong to the kernel, or are error numbers (Documentation/arch/x86/x86_64/mm.rst). With five levels of page tables, the
/// kernel chooses addresses below for programs that do not ask for others.
pub(crate) const USER_SPACE_END: u64 = 1 << 47;

/// Reads a word of the target's memory; `None` if it is not resident.
#[inline(always)]
pub(crate) fn read_user_word(address: u64) -> Option<u64> {
    read_user(address)
}

/// Reads from the target's memory; `None` if it is not resident.
#[inline(always)]
pub(crate) fn read_user<T: Copy>(address: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the destination has the size of `T`; the helper checks the source.
    let status = unsafe {
        bpf_probe_read_user(value.as_mut_ptr().cast(), size_of::<T>() as u32, address as *const c_void)
    };
    // SAFETY: the helper has filled the value, according to its status.
    if status == 0 { Some(unsafe { value.assume_init() }) } else { None }
}

/// Reads from the kernel's memory; `None` if the address is invalid.
#[inline(always)]
pub(crate) fn read_kernel<T: Copy>(address: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the destination has the size of `T`; the helper checks the source.
    let status = unsafe {
        bpf_probe_read_kernel(value.as_mut_ptr().cast(), size_of::<T>() as u32, address as *const c_void)
    };
    // SAFETY: the helper has filled the value, according to its status.
    if status == 0 { Some(unsafe { value.assume_init() }) } else { None }
}

/// Adds to a 64-bit map value.
///
/// # Safety
/// `value` points into a map value.
#[inline(always)]
pub(crate) unsafe fn add(value: *mut u64, amount: u64) {
    // SAFETY: as promised by the caller.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(value, amount) };
}

/// Adds to a 64-bit map value and returns the previous value.
///
/// # Safety
/// `value` points into a map value.
#[inline(always)]
pub(crate) unsafe fn fetch_add(value: *mut u64, amount: u64) -> u64 {
    // SAFETY: as promised by the caller.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::AcqRel }>(value, amount) }
}

/// Adds to a 32-bit map value, wrapping.
///
/// # Safety
/// `value` points into a map value.
#[inline(always)]
pub(crate) unsafe fn add_u32(value: *mut u32, amount: u32) {
    // SAFETY: as promised by the caller.
    unsafe { atomic_xadd::<u32, u32, { AtomicOrdering::Relaxed }>(value, amount) };
}

/// Replaces `old` by `new` (compare and exchange). Returns true if `old` was there.
///
/// # Safety
/// `value` points into a map value.
#[inline(always)]
pub(crate) unsafe fn swap_if(value: *mut u64, old: u64, new: u64) -> bool {
    // SAFETY: as promised by the caller.
    let (found, _) = unsafe {
        atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(value, old, new)
    };
    found == old
}

/// Writes `new` and returns the previous value.
///
/// # Safety
/// `value` points into a map value.
#[inline(always)]
pub(crate) unsafe fn swap(value: *mut u64, new: u64) -> u64 {
    // SAFETY: as promised by the caller.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(value, new) }
}

/// The same value, opaque to the optimizer. An instruction rather than an empty asm block, because the kernel rejects line
/// information without code.
#[inline(always)]
pub(crate) fn opaque(mut value: u64) -> u64 {
    // SAFETY: copies a register onto itself.
    unsafe {
        core::arch::asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack, preserves_flags))
    };
    value
}

/// The top bit of a value, opaque to the optimizer.
#[inline(always)]
pub(crate) fn top_bit(mut value: u64) -> u64 {
    // SAFETY: shifts a register.
    unsafe {
        core::arch::asm!("{0} >>= 63", inout(reg) value, options(pure, nomem, nostack, preserves_flags))
    };
    value
}
