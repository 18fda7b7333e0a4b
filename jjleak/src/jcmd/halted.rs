//! Detects processes that cannot run, for which a signal would stay pending.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::processes::Pid;

/// Larger than any of the files read here.
const MAX_TEXT: usize = 4096;

/// The files that tell whether a process can run, held open so that they can be read without privileges.
pub(super) struct Progress {
    /// `/proc/PID/stat`.
    main_thread: File,
    is_a_thread_stopped: bool,
    /// State files of its control groups, v1 or v2.
    groups: Vec<File>,
}

impl Progress {
    /// Opens the files of a process and of all its current threads.
    pub(super) fn of(pid: Pid) -> io::Result<Self> {
        let main_thread = File::open(pid.proc_file("stat"))?;
        let threads = fs::read_dir(pid.proc_file("task"))?.filter_map(Result::ok);
        let mut stats = threads.filter_map(|thread| File::open(thread.path().join("stat")).ok());
        let is_a_thread_stopped = stats.any(|stat| is_stopped(&text(&stat)));
        let cgroups = fs::read_to_string(pid.proc_file("cgroup")).unwrap_or_default();
        let groups = cgroups.lines().filter_map(|line| File::open(state_file(line)?).ok()).collect();
        Ok(Self { main_thread, is_a_thread_stopped, groups })
    }

    /// The reason why the process cannot run, if any.
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        if self.is_a_thread_stopped || is_stopped(&text(&self.main_thread)) {
            return Some("it is stopped");
        }
        let is_frozen = self.groups.iter().any(|group| is_frozen(&text(group)));
        is_frozen.then_some("its control group is frozen")
    }
}

/// Path of the freezer state of a control group, from a line of `/proc/PID/cgroup`
/// (`hierarchy:controllers:path`).
fn state_file(line: &str) -> Option<String> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    let is_hostile = Path::new(path).components().any(|part| part.as_os_str() == "..");
    match controllers {
        _ if is_hostile => None,
        "" => Some(format!("/sys/fs/cgroup{path}/cgroup.events")),
        "freezer" => Some(format!("/sys/fs/cgroup/freezer{path}/freezer.state")),
        _ => None,
    }
}

/// Returns whether a group is frozen or freezing, according to `cgroup.events` or `freezer.state`.
fn is_frozen(state: &str) -> bool {
    state.lines().any(|line| matches!(line, "frozen 1" | "FROZEN" | "FREEZING"))
}

/// Returns whether a thread with this `stat` is stopped by a signal or a debugger.
fn is_stopped(stat: &str) -> bool {
    // The name, in parentheses, can contain anything.
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

/// Current content of a file; empty for a process that has ended.
fn text(file: &File) -> String {
    let mut bytes = [0; MAX_TEXT];
    let length = file.read_at(&mut bytes, 0).unwrap_or_default();
    String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_and_traced_threads_are_recognized_whatever_their_name() {
        assert!(is_stopped("7 (java) T 1 7") && is_stopped("7 (a) S (b) t 1 7"));
        assert!(!is_stopped("7 (a) T (b) S 1 7") && !is_stopped(""));
    }

    #[test]
    fn frozen_groups_of_both_versions_are_known() {
        assert_eq!(state_file("0::/a/b").unwrap(), "/sys/fs/cgroup/a/b/cgroup.events");
        assert_eq!(state_file("7:freezer:/a").unwrap(), "/sys/fs/cgroup/freezer/a/freezer.state");
        assert_eq!((state_file("4:memory:/a"), state_file("0::/../a")), (None, None));
        assert!(is_frozen("populated 1\nfrozen 1\n") && is_frozen("FROZEN\n"));
        assert!(!is_frozen("populated 1\nfrozen 0\n") && !is_frozen("THAWED\n"));
    }

    #[test]
    fn a_process_that_runs_has_no_obstacle() {
        let progress = Progress::of(Pid::new(std::process::id()).unwrap()).unwrap();
        assert_eq!(progress.obstacle(), None);
    }
}
