//! The `jjleak` command.

use tikv_jemallocator::Jemalloc;

/// Linked in: breakpoints of runs that follow processes are in the C library of all processes, and jjleak's own allocations would
/// run into them.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// One arena, because an arena for each thread would keep what other threads have freed. Free pages go back to the system when
/// jemalloc next looks at them, a millisecond later or more: if they went at once, attaching to a JVM would take a fifth longer.
// SAFETY: jemalloc reads this symbol as a string.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static CONFIGURATION: Option<&'static std::ffi::c_char> = {
    let text: &'static std::ffi::CStr = c"narenas:1,dirty_decay_ms:1,muzzy_decay_ms:0";
    // SAFETY: the string is static.
    Some(unsafe { &*text.as_ptr() })
};

fn main() -> std::process::ExitCode {
    jjleak::cli::run()
}
