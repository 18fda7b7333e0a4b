//! The threads of a process.

use std::fs;

use super::Pid;

/// A thread of the process that has not ended; the main thread, if it is one. `None` when all have.
#[must_use]
pub fn living_thread(pid: Pid) -> Option<Pid> {
    if is_alive(pid, pid) {
        return Some(pid);
    }
    let threads = fs::read_dir(pid.proc_file("task")).ok()?;
    threads
        .filter_map(|entry| Pid::new(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .find(|thread| is_alive(pid, *thread))
}

/// Whether a thread runs; an ended one stays as a zombie while it is the main thread and others run.
#[must_use]
pub fn is_alive(pid: Pid, thread: Pid) -> bool {
    let stat = fs::read(pid.proc_file(&format!("task/{thread}/stat"))).unwrap_or_default();
    let after_name = stat.iter().rposition(|byte| *byte == b')').map(|at| &stat[at + 1..]);
    // The state is the field after the name (proc(5)).
    let state = after_name.and_then(|rest| rest.iter().find(|byte| **byte != b' '));
    state.is_some_and(|state| !matches!(state, b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_process_lives_in_its_main_thread() {
        let pid = Pid::new(std::process::id()).unwrap();
        assert_eq!(living_thread(pid), Some(pid));
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_thread() {
        assert_eq!(living_thread(Pid::new(1 << 22 | 1).unwrap()), None);
    }
}
