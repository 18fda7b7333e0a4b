//! A JVM loads the library while it runs (`jjleak --sampled --load`): nothing resolves to the library's functions then, so that what the
//! process's libraries import is redirected to them. The library stays until the process ends.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::Ordering;

use crate::{BYTES, elf, imports, next, number};

/// Called by a JVM for a request to load the library, in a thread of its own: the first time, and again for the libraries that were
/// loaded since. The options are the number of bytes between two samples.
///
/// # Safety
/// As for JVMTI's function of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn Agent_OnAttach(
    _: *mut c_void,
    options: *const c_char,
    _: *mut c_void,
) -> c_int {
    if !next::is_late() {
        if !elf::next(c"malloc").is_null() {
            // It was preloaded, and has the functions already.
            return 0;
        }
        next::find_late();
    }
    // SAFETY: as promised by the caller.
    let bytes = unsafe { number(options) };
    if bytes > 0 {
        BYTES.store(bytes, Ordering::Relaxed);
    }
    imports::redirect();
    // Another value would make the JVM unload the library, which is called by now.
    0
}
