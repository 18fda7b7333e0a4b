//! The functions of malloc and C++'s `operator new` and `delete`, for `LD_PRELOAD`: each calls the next library's function of its name,
//! samples the block, and announces the samples at probes (SDT) with OpenTelemetry's contract `otel_memory`. `jjleak --sampled` consumes
//! them.
//!
//! Nothing is sampled until a consumer attaches. Here, nothing takes a lock or allocates, once the program has begun.
//!
//! The library names no other: glibc 2.17 and later, and musl, have all that it needs.
//!
//! - `operators`: C++'s operators.
//! - `agent`: a JVM that loads the library while it runs.
//! - `imports`: makes the libraries of such a process call these functions.
//! - `next`: the next library's functions.
//! - `elf`: looks them up.

mod agent;
mod elf;
mod imports;
mod next;
mod operators;

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::ptr;
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
    // SAFETY: null, or a terminated string.
    let bytes = unsafe { number(value) };
    let bytes = if bytes == 0 { jjleak_sampler::DEFAULT_DISTANCE } else { bytes };
    BYTES.store(bytes, Ordering::Relaxed);
    bytes
}

/// The number in a text; 0 for a text that is none, and without a text.
///
/// # Safety
/// Null, or a terminated string.
unsafe fn number(text: *const std::ffi::c_char) -> u64 {
    let mut number = 0u64;
    if !text.is_null() {
        // SAFETY: as promised by the caller.
        for byte in unsafe { std::ffi::CStr::from_ptr(text) }.to_bytes() {
            let digit = byte.wrapping_sub(b'0');
            number = if digit < 10 { number.saturating_mul(10).saturating_add(u64::from(digit)) } else { 0 };
        }
    }
    number
}

/// Samples a block from the next library's function, while samples are consumed; returns the block.
#[inline]
fn sampled(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return block;
    }
    sampled_at(block, size, hooks::point_in(size))
}

/// Samples a block at its point, if it has one; returns the block.
#[inline]
fn sampled_at(block: *mut c_void, size: usize, point: Option<hooks::Point>) -> *mut c_void {
    match point {
        None => block,
        Some(point) => {
            let mut block = at_point(block, size, point);
            // Nothing, but no tail call: the stack of the sample keeps the function that the program has called.
            // SAFETY: changes nothing.
            unsafe { asm!("/* {} */", inout(reg) block, options(nostack, preserves_flags)) };
            block
        }
    }
}

#[cold]
#[inline(never)]
fn at_point(block: *mut c_void, size: usize, point: hooks::Point) -> *mut c_void {
    hooks::at_point(block.cast(), size, point, distance());
    // The callers do not know that they have it already: they would keep it in a register, and save that, at each call.
    std::hint::black_box(block)
}

/// Calls a function of the next library that may call others of its functions by name: those do not count.
#[inline]
fn call(size: usize, of_next: impl FnOnce() -> *mut c_void) -> *mut c_void {
    if !hooks::are_consumed() {
        return of_next();
    }
    let (block, point) = hooks::nested(size, || of_next().cast());
    sampled_at(block.cast(), size, point)
}

/// # Safety
/// As for malloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    // SAFETY: as promised by the caller.
    let block = next::malloc().map_or(ptr::null_mut(), |malloc| unsafe { malloc(size) });
    if hooks::are_consumed() { sampled(block, size) } else { block }
}

/// # Safety
/// As for calloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let bytes = count.saturating_mul(size);
    let Some(calloc) = next::calloc() else { return ptr::null_mut() };
    // SAFETY: as promised by the caller.
    call(bytes, || unsafe { calloc(count, size) })
}

/// # Safety
/// As for free(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
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
    let Some(realloc) = next::realloc() else { return ptr::null_mut() };
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
            if status == 0 { *into } else { ptr::null_mut() }
        }
    });
    status
}

/// # Safety
/// As for `aligned_alloc(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    let Some(aligned_alloc) = next::aligned_alloc() else { return ptr::null_mut() };
    // SAFETY: as promised by the caller.
    call(size, || unsafe { aligned_alloc(alignment, size) })
}

/// # Safety
/// As for memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, size: usize) -> *mut c_void {
    let Some(memalign) = next::memalign() else { return ptr::null_mut() };
    // SAFETY: as promised by the caller.
    call(size, || unsafe { memalign(alignment, size) })
}

/// # Safety
/// As for valloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    let Some(valloc) = next::valloc() else { return ptr::null_mut() };
    // SAFETY: as promised by the caller.
    call(size, || unsafe { valloc(size) })
}

/// # Safety
/// As for pvalloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let Some(pvalloc) = next::pvalloc() else { return ptr::null_mut() };
    // SAFETY: as promised by the caller.
    call(size, || unsafe { pvalloc(size) })
}
