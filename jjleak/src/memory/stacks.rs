//! Stacks of threads that no JVM describes.

use std::fs;

use super::{Claim, Kind};
use crate::processes::{Mapping, Pid};

/// Name of the row with the stacks of a JVM's threads.
pub(super) const OF_JAVA: &str = "Java threads";
/// Name of the row with other stacks.
const OF_NATIVE: &str = "native threads";
/// Maximum number of threads whose stacks are looked for: each costs some 10 us.
const MAX_THREADS: usize = 20_000;
/// Largest mapping that counts as a stack. Larger ones may hold something else beside it.
const MAX_STACK_BYTES: u64 = 64 << 20;

/// The mappings that hold the stacks of a process's threads, by their stack pointers. A thread that runs at this moment has none;
/// its stack counts as anonymous memory.
pub(super) fn of_native_threads(pid: Pid, mappings: &[Mapping]) -> Vec<Claim> {
    let Ok(threads) = fs::read_dir(pid.proc_file("task")) else { return Vec::new() };
    let pointers = threads.flatten().take(MAX_THREADS).filter_map(|thread| {
        let call = fs::read_to_string(thread.path().join("syscall")).ok()?;
        stack_pointer(&call)
    });
    let mut stacks: Vec<_> = pointers.filter_map(|pointer| stack(pointer, mappings)).collect();
    stacks.sort_by_key(|claim| claim.range.start);
    stacks.dedup();
    stacks
}

/// The stack pointer of a blocked thread: `/proc/PID/task/TID/syscall` ends with it and the instruction pointer (`proc_pid_syscall(5)`).
fn stack_pointer(call: &str) -> Option<u64> {
    let mut words = call.split_ascii_whitespace().rev();
    let pointer = words.nth(1)?.strip_prefix("0x")?;
    u64::from_str_radix(pointer, 16).ok()
}

fn stack(pointer: u64, mappings: &[Mapping]) -> Option<Claim> {
    // Mappings are in ascending order.
    let index = mappings.partition_point(|mapping| mapping.addresses.end <= pointer);
    let mapping = mappings.get(index).filter(|mapping| mapping.addresses.contains(&pointer))?;
    let range = mapping.addresses.clone();
    let is_stack = mapping.file.is_none()
        && mapping.path.as_os_str().is_empty()
        && range.end - range.start <= MAX_STACK_BYTES;
    is_stack.then(|| Claim { range, kind: Kind::ThreadStacks, name: OF_NATIVE.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_pointer_of_a_blocked_thread_is_the_last_number_but_one() {
        let call = "202 0x7f00 0x80 0x0 0x0 0x0 0xffffffff 0x7ffe5b0c 0x7f3c12\n";
        assert_eq!(stack_pointer(call), Some(0x7ffe_5b0c));
        assert_eq!(stack_pointer("running\n"), None);
        assert_eq!(stack_pointer("-1 0x7ffe5b0c 0x7f3c12"), Some(0x7ffe_5b0c));
    }

    #[test]
    fn the_stack_of_a_thread_that_waits_is_found() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv().is_err());
        let pid = Pid::new(std::process::id()).unwrap();
        // The thread blocks soon after its start.
        let found = (0..1000).any(|_| {
            std::thread::yield_now();
            !of_native_threads(pid, &Mapping::all(pid).unwrap()).is_empty()
        });
        drop(stop);
        assert!(thread.join().unwrap() && found);
    }
}
