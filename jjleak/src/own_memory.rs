//! jjleak's own memory: what it has freed goes back to the system, because it often runs on hosts short of memory.

use std::ptr;
use std::time::Duration;

/// Purges all arenas of the program's allocator, jemalloc (`MALLCTL_ARENAS_ALL`).
const PURGE: &std::ffi::CStr = c"arena.4096.purge";

/// Time that free memory stays with the only arena for small objects.
const DECAY: &std::ffi::CStr = c"arena.0.dirty_decay_ms";

/// Keeps free memory for so long: a view needs it again for the next snapshot, and to get it anew would take a fifth of its CPU time.
pub(crate) fn keep_for(time: Duration) {
    let mut milliseconds = isize::try_from(time.as_millis()).unwrap_or(isize::MAX);
    // SAFETY: the name ends with a zero byte, and this control reads a value of this type (`ssize_t`).
    unsafe {
        let value = ptr::from_mut(&mut milliseconds).cast();
        tikv_jemalloc_sys::mallctl(
            DECAY.as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            value,
            size_of::<isize>(),
        );
    }
}

/// Returns free memory to the system.
pub(crate) fn release() {
    // SAFETY: the name ends with a zero byte, and this control neither reads nor writes a value.
    unsafe {
        tikv_jemalloc_sys::mallctl(PURGE.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0);
    }
}
