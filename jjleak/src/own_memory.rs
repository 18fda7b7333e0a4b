//! jjleak's own memory: what it has freed goes back to the system, because it often runs on hosts short of memory.

use std::ptr;

/// Purges all arenas of the program's allocator, jemalloc (`MALLCTL_ARENAS_ALL`).
const PURGE: &std::ffi::CStr = c"arena.4096.purge";

/// Returns free memory to the system.
pub(crate) fn release() {
    // SAFETY: the name ends with a zero byte, and this control neither reads nor writes a value.
    unsafe {
        tikv_jemalloc_sys::mallctl(PURGE.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
    }
}
