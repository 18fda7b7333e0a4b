//! Returns memory to the kernel after a profile.
//!
//! The C library keeps freed memory in arenas, possibly one per thread, for later allocations. A daemon that profiles for minutes
//! and then watches for days would hold it in vain.

#[cfg(target_env = "gnu")]
use nix::libc;

/// Number of arenas: one for the daemon's own threads, and one for profiling threads.
#[cfg(target_env = "gnu")]
const MAX_ARENAS: libc::c_int = 2;
/// Size from which allocations are mapped individually and unmapped when freed. Setting it disables the C library's dynamic
/// threshold, which would rise with each large free.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 128 << 10;

/// Configures the C library's allocator to keep little freed memory. Call before starting threads.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_ARENA_MAX, MAX_ARENAS), (libc::M_MMAP_THRESHOLD, MAPPED_FROM)] {
        // SAFETY: the call takes numbers only, and changes what the allocator does with memory that is asked for later.
        let is_done = unsafe { libc::mallopt(parameter, value) };
        if is_done == 0 {
            tracing::debug!("the C library rejects allocator parameter {parameter}");
        }
    }
}

/// Returns free memory to the kernel.
pub(super) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator takes its own locks; what is in use stays where it is.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{Pid, Resident, ResidentMemory};

    fn resident() -> u64 {
        let memory = ResidentMemory::open(Pid::new(std::process::id()).unwrap()).unwrap();
        match memory.read().unwrap() {
            Resident::Bytes(bytes) => bytes,
            Resident::Ended => panic!("this process has ended"),
        }
    }

    /// Set in the child process that runs this test alone, because other tests' memory would distort it.
    const ALONE: &str = "JJLEAK_TEST_ALONE";

    #[test]
    fn what_another_thread_has_freed_goes_back_to_the_kernel() {
        if std::env::var_os(ALONE).is_none() {
            let (_, module) = module_path!().split_once("::").unwrap();
            let name = format!("{module}::what_another_thread_has_freed_goes_back_to_the_kernel");
            let program = std::env::current_exe().unwrap();
            let arguments = ["--exact", &name, "--nocapture", "--test-threads=1"];
            let output =
                std::process::Command::new(program).args(arguments).env(ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
            return;
        }
        limit_arenas();
        let before = resident();
        let last = std::thread::spawn(|| {
            let mut many: Vec<Box<[u8; 4096]>> = (0..50_000).map(|_| Box::new([1; 4096])).collect();
            // A live block at the end of the heap keeps the C library from trimming what is below.
            many.pop()
        });
        let _last = last.join().unwrap();
        trim();
        let after = resident();
        assert!(after < before + (100 << 20) || !cfg!(target_env = "gnu"), "{before} {after}");
    }
}
