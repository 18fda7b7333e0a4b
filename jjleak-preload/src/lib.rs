//! The functions of malloc, for `LD_PRELOAD`: each calls the next library's function of its name, samples the block, and announces the
//! samples at probes (SDT) with OpenTelemetry's contract `otel_memory`. `jjleak --sampled` consumes them.
//!
//! Nothing is sampled until a consumer attaches. Here, nothing takes a lock, and nothing allocates.
//!
//! - `next`: the next library's functions.
//! - `early`: memory for what is allocated while those are looked up.

mod early;
mod next;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use jjleak_sampler::hooks;

/// Environment variable with the number of bytes between two samples, on average.
const DISTANCE: &std::ffi::CStr = c"JJLEAK_SAMPLE_BYTES";

/// Bytes between two samples, on average; 0 before the environment was read.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Runs when the library is loaded, before other threads exist.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    next::find();
    distance();
}

fn distance() -> u64 {
    let known = BYTES.load(Ordering::Relaxed);
    if known != 0 { known } else { read_distance() }
}

#[cold]
fn read_distance() -> u64 {
    // SAFETY: a terminated name; whoever changes the environment in another thread breaks the program anyway.
    let value = unsafe { libc::getenv(DISTANCE.as_ptr()) };
    let mut bytes = 0u64;
    if !value.is_null() {
        // SAFETY: a terminated string.
        for byte in unsafe { std::ffi::CStr::from_ptr(value) }.to_bytes() {
            let digit = byte.wrapping_sub(b'0');
            // A value that is no number is as none.
            bytes = if digit < 10 { bytes.saturating_mul(10).saturating_add(u64::from(digit)) } else { 0 };
        }
    }
    let bytes = if bytes == 0 { jjleak_sampler::DEFAULT_DISTANCE } else { bytes };
    BYTES.store(bytes, Ordering::Relaxed);
    bytes
}

/// A block from the next library's function, while samples are consumed.
#[cold]
fn allocated(block: *mut c_void, size: usize) {
    if !block.is_null() {
        hooks::allocated(block.cast(), size, distance());
    }
}

/// Calls a function of the next library that may call others of its functions by name: those do not count.
#[inline]
fn call(size: usize, of_next: impl FnOnce() -> *mut c_void) -> *mut c_void {
    if !hooks::are_consumed() {
        return of_next();
    }
    let block = hooks::nested(of_next);
    allocated(block, size);
    block
}

/// # Safety
/// As for malloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    let block = match next::malloc() {
        // SAFETY: as promised by the caller.
        Some(malloc) => unsafe { malloc(size) },
        None => early::allocate(size, early::ALIGNMENT),
    };
    if hooks::are_consumed() {
        allocated(block, size);
    }
    block
}

/// # Safety
/// As for calloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let bytes = count.saturating_mul(size);
    match next::calloc() {
        // SAFETY: as promised by the caller.
        Some(calloc) => call(bytes, || unsafe { calloc(count, size) }),
        // Never used before, so that it is zero.
        None => early::allocate(bytes, early::ALIGNMENT),
    }
}

/// # Safety
/// As for free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    if early::has(block) {
        return;
    }
    if hooks::are_any() {
        // Before the real free: from then on, the address can be another block's.
        hooks::freed(block.cast());
    }
    if let Some(free) = next::free() {
        // SAFETY: as promised by the caller.
        unsafe { free(block) };
    }
}

/// # Safety
/// As for realloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let Some(realloc) = next::realloc() else { return early::resize(block, size) };
    if early::has(block) {
        // SAFETY: as promised by the caller.
        return unsafe { early::leave(block, size) };
    }
    // Before the real call, which may give the address away, and succeeds nearly always.
    let was_sampled = !block.is_null() && hooks::are_any() && hooks::freed(block.cast());
    // SAFETY: as promised by the caller.
    let resized = call(size, || unsafe { realloc(block, size) });
    if was_sampled && resized.is_null() && size != 0 {
        // It has failed, and the block lives on.
        // SAFETY: the caller's block.
        let usable = next::usable_size().map_or(1, |usable_size| unsafe { usable_size(block) });
        hooks::lives_on(block.cast(), usable, distance());
    }
    resized
}

/// # Safety
/// As for `posix_memalign(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(into: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    let Some(of_next) = next::posix_memalign() else { return libc::ENOMEM };
    let mut status = 0;
    call(size, || {
        // SAFETY: as promised by the caller.
        unsafe {
            status = of_next(into, alignment, size);
            if status == 0 { *into } else { std::ptr::null_mut() }
        }
    });
    status
}

/// # Safety
/// As for `aligned_alloc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    match next::aligned_alloc() {
        // SAFETY: as promised by the caller.
        Some(aligned_alloc) => call(size, || unsafe { aligned_alloc(alignment, size) }),
        None => early::allocate(size, alignment),
    }
}

/// # Safety
/// As for memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    match next::memalign() {
        // SAFETY: as promised by the caller.
        Some(memalign) => call(size, || unsafe { memalign(alignment, size) }),
        None => early::allocate(size, alignment),
    }
}

/// # Safety
/// As for valloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    match next::valloc() {
        // SAFETY: as promised by the caller.
        Some(valloc) => call(size, || unsafe { valloc(size) }),
        None => std::ptr::null_mut(),
    }
}

/// # Safety
/// As for pvalloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match next::pvalloc() {
        // SAFETY: as promised by the caller.
        Some(pvalloc) => call(size, || unsafe { pvalloc(size) }),
        None => std::ptr::null_mut(),
    }
}
