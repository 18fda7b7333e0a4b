//! Threads of a process.

use std::fs;

use super::Pid;

/// A live thread of the process, preferably the main thread; `None` if all have ended.
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

/// Current name of a thread of the process; `None` if it has ended.
#[must_use]
pub fn thread_name(pid: Pid, thread: u32) -> Option<String> {
    let name = fs::read(pid.proc_file(&format!("task/{thread}/comm"))).ok()?;
    Some(String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned())
}

/// Returns true if any thread of the process has a system call filter (seccomp(2)), as far as its status is readable.
#[must_use]
pub fn has_call_filter(pid: Pid) -> bool {
    let threads = fs::read_dir(pid.proc_file("task")).into_iter().flatten().flatten();
    threads
        .flat_map(|thread| fs::read_to_string(thread.path().join("status")))
        .any(|status| is_filtered(&status))
}

/// Evaluates a thread's `status` (proc(5)).
fn is_filtered(status: &str) -> bool {
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() != "0")
}

/// Returns true if a thread is alive and will stay so. An ended main thread remains as a zombie while others run. When a process
/// ends, its threads end one after the other; threads about to end do not count as alive.
#[must_use]
pub fn is_alive(pid: Pid, thread: Pid) -> bool {
    let read = |file| fs::read(pid.proc_file(&format!("task/{thread}/{file}"))).unwrap_or_default();
    !is_ending(&read("stat")) && !is_killed(&read("status"))
}

/// Returns true if a thread has ended or is exiting, by its `stat` (proc(5)): the state is the field after the name, the kernel's
/// flags are the sixth field after that.
fn is_ending(stat: &[u8]) -> bool {
    /// `include/linux/sched.h`.
    const PF_EXITING: u64 = 4;
    let after_name = stat.iter().rposition(|byte| *byte == b')').map(|at| &stat[at + 1..]);
    let rest = String::from_utf8_lossy(after_name.unwrap_or_default());
    let mut fields = rest.split_ascii_whitespace();
    let is_over = fields.next().is_none_or(|state| matches!(state, "Z" | "X"));
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or_default();
    is_over || flags & PF_EXITING != 0
}

/// Returns true if a thread is about to be killed, by its `status`. When one thread ends the process, all others are in this
/// state.
fn is_killed(status: &[u8]) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    let status = String::from_utf8_lossy(status);
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    pending.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok()).unwrap_or_default() & SIGKILL
        != 0
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
    fn a_thread_has_a_name_while_it_runs() {
        let pid = Pid::new(std::process::id()).unwrap();
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(thread_name(pid, std::process::id()).as_deref(), Some(own.trim_end_matches('\n')));
        assert_eq!(thread_name(pid, 1 << 22 | 1), None);
    }

    #[test]
    fn a_thread_that_is_about_to_end_does_not_run() {
        let stat = |state, flags| format!("42 (a) b) {state} 1 42 42 0 -1 {flags} 7 0 0");
        assert!(!is_ending(stat("R", 4_194_304).as_bytes()) && !is_ending(stat("D", 64).as_bytes()));
        assert!(is_ending(stat("Z", 0).as_bytes()) && is_ending(stat("R", 4_194_308).as_bytes()));
        assert!(is_ending(b"") && is_ending(b"noise"));
        let status = |pending| format!("Name:\ta\nSigPnd:\t{pending}\nShdPnd:\t0000000000000000\n");
        assert!(is_killed(status("0000000000000100").as_bytes()));
        assert!(!is_killed(status("0000000000000200").as_bytes()) && !is_killed(b""));
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_thread() {
        assert_eq!(living_thread(Pid::new(1 << 22 | 1).unwrap()), None);
    }
}
