//! jjleak's own memory: what it has freed goes back to the system, because it often runs on hosts short of memory.

use std::ffi::c_int;

use nix::libc;

/// Size in bytes from which a block is mapped on its own, and returned when it is freed. glibc would raise it up to 32 MiB.
const MAPPED_FROM: c_int = 256 << 10;
/// Size in bytes of free memory at the end of the heap that is kept.
const KEPT_AT_END: c_int = 1 << 20;

/// Sets up the allocator; to be called before there are threads.
pub(crate) fn configure() {
    // SAFETY: these calls set parameters of the allocator; nothing else uses it yet.
    unsafe {
        // A heap for each thread would keep what other threads have freed.
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_AT_END);
    }
}

/// Returns free memory within the heap to the system. Takes some 10 ms for a heap of 100 MiB.
pub(crate) fn release() {
    // SAFETY: the call has no preconditions.
    unsafe { libc::malloc_trim(0) };
}
