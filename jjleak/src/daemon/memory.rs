//! Gives memory back that was taken for a profile.
//!
//! The C library keeps what is freed in arenas, of which each thread may get one of its own, for whoever asks next. In a daemon
//! that profiles for minutes and then watches for days, nobody does.

#[cfg(target_env = "gnu")]
use nix::libc;

/// Arenas, which threads share: the daemon's own, and one for those that profile.
#[cfg(target_env = "gnu")]
const MAX_ARENAS: libc::c_int = 2;
/// From this size on, allocations are mapped by themselves, and unmapped when they are freed. Named, it stays: the C library
/// raises it otherwise with each large one that is freed.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 128 << 10;

/// Has the C library keep little of what is freed. Before other threads are started.
pub fn keep_little() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(libc::M_ARENA_MAX, MAX_ARENAS), (libc::M_MMAP_THRESHOLD, MAPPED_FROM)] {
        // SAFETY: the call takes numbers only, and changes what the allocator does with memory that is asked for later.
        let is_done = unsafe { libc::mallopt(parameter, value) };
        if is_done == 0 {
            tracing::debug!("the C library does not take parameter {parameter} of its allocator");
        }
    }
}

/// Gives the kernel back what is free.
pub(super) fn give_back() {
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

    /// Set where the test is all that its process does: memory of other tests is none of its business.
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
        keep_little();
        let before = resident();
        let last = std::thread::spawn(|| {
            let mut many: Vec<Box<[u8; 4096]>> = (0..50_000).map(|_| Box::new([1; 4096])).collect();
            // What lies at the end keeps the C library from giving back what is before.
            many.pop()
        });
        let _last = last.join().unwrap();
        give_back();
        let after = resident();
        assert!(after < before + (100 << 20) || !cfg!(target_env = "gnu"), "{before} {after}");
    }
}
