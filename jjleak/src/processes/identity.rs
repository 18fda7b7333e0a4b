//! Identity of a process.

use std::fmt;
use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;

use super::{Error, living_thread};

/// A process ID in jjleak's PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(NonZeroU32);

impl Pid {
    /// Creates a PID; `None` for 0.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> NonZeroU32 {
        self.0
    }

    /// Path of a file of this process under /proc.
    #[must_use]
    pub fn proc_file(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{self}/{name}"))
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A process, identified by PID and start time, because PIDs are reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its PID.
    pub pid: Pid,
    /// Start time in clock ticks since boot (proc(5), `/proc/PID/stat`, field 22).
    pub start_time: u64,
    /// Name of its main thread.
    pub comm: String,
    /// Path of its executable, as the process sees it.
    pub exe: PathBuf,
    /// Its PID in its own PID namespace if that differs, as in a container.
    pub container_pid: Option<Pid>,
}

impl Process {
    /// Reads the identity of the process with this PID.
    pub fn open(pid: Pid) -> Result<Self, Error> {
        let status = read(pid, "status").map_err(|error| match error {
            Error::Gone(pid) => Error::NoSuchProcess(pid),
            other => other,
        })?;
        let leader = thread_group(&status)
            .ok_or_else(|| Error::Malformed { path: pid.proc_file("status"), line: String::new() })?;
        if leader != pid {
            return Err(Error::IsThread { thread: pid, process: leader });
        }
        let stat = read(pid, "stat")?;
        let start_time = start_time(&stat)
            .ok_or_else(|| Error::Malformed { path: pid.proc_file("stat"), line: stat.trim().to_owned() })?;
        let comm = read(pid, "comm")?.trim_end().to_owned();
        // The link of a kernel thread or a zombie cannot be read, nor that of a main thread that has ended before others.
        let link = |thread: Pid| fs::read_link(thread.proc_file("exe"));
        let by_other = |error| {
            let other = living_thread(pid).filter(|thread| *thread != pid);
            other.map_or(Err(error), link)
        };
        let exe = link(pid).or_else(by_other).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound if pid.proc_file("stat").exists() => Error::NoProgram(pid),
            _ => Error::read(pid, pid.proc_file("exe"), error),
        })?;
        let container_pid = innermost_pid(&status).filter(|own| *own != pid);
        Ok(Self { pid, start_time, comm, exe, container_pid })
    }
}

fn read(pid: Pid, name: &str) -> Result<String, Error> {
    let path = pid.proc_file(name);
    fs::read(&path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .map_err(|source| Error::read(pid, path, source))
}

/// Effective user and group of a process, as IDs in jjleak's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user ID.
    pub user: u32,
    /// Effective group ID.
    pub group: u32,
}

impl Credentials {
    /// Reads those of a process.
    pub fn of(pid: Pid) -> Result<Self, Error> {
        let status = read(pid, "status")?;
        let found = effective(&status, "Uid:").zip(effective(&status, "Gid:"));
        let (user, group) =
            found.ok_or_else(|| Error::Malformed { path: pid.proc_file("status"), line: String::new() })?;
        Ok(Self { user, group })
    }
}

/// The second number in the `Uid` or `Gid` line of `/proc/PID/status`: the effective ID.
fn effective(status: &str, name: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The `Tgid` line of `/proc/PID/status`.
fn thread_group(status: &str) -> Option<Pid> {
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    Pid::new(line.trim().parse().ok()?)
}

/// The last number in the `NSpid` line of `/proc/PID/status`: the PID in the innermost namespace.
fn innermost_pid(status: &str) -> Option<Pid> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Pid::new(line.split_ascii_whitespace().last()?.parse().ok()?)
}

/// Field 22 of `/proc/PID/stat`. The second field, the name in parentheses, may contain anything, including parentheses.
fn start_time(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_a_hostile_name() {
        let stat =
            "42 (a) b) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 100 10 18446744073709551615";
        assert_eq!(start_time(stat), Some(777));
        assert_eq!(start_time("42 (cut"), None);
        assert_eq!(start_time("42 (cut) S 1 2"), None);
    }

    #[test]
    fn the_pid_in_a_container_is_the_innermost_one() {
        assert_eq!(innermost_pid("Name:\tx\nNSpid:\t4711\t42\t7\n"), Pid::new(7));
        assert_eq!(innermost_pid("Name:\tx\n"), None);
    }

    #[test]
    fn a_process_acts_as_its_effective_user() {
        assert_eq!(effective("Name:\tx\nUid:\t0\t1000\t0\t1000\n", "Uid:"), Some(1000));
        assert_eq!(effective("Name:\tx\n", "Uid:"), None);
        let own = Credentials::of(Pid::new(std::process::id()).unwrap()).unwrap();
        assert_eq!(own.user, nix::unistd::geteuid().as_raw());
        assert_eq!(own.group, nix::unistd::getegid().as_raw());
    }

    #[test]
    fn a_process_sees_itself() {
        let pid = Pid::new(std::process::id()).unwrap();
        let process = Process::open(pid).unwrap();
        assert_eq!(process.exe, std::env::current_exe().unwrap());
        assert!(process.start_time > 0);
    }

    #[test]
    fn a_thread_is_not_a_process() {
        let (tid_out, tid_in) = std::sync::mpsc::channel();
        let (done_out, done_in) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let tid = nix::unistd::gettid().as_raw();
            tid_out.send(u32::try_from(tid).unwrap()).unwrap();
            let _ = done_in.recv();
        });
        let tid = Pid::new(tid_in.recv().unwrap()).unwrap();
        assert!(matches!(Process::open(tid), Err(Error::IsThread { thread, .. }) if thread == tid));
        drop(done_out);
        thread.join().unwrap();
    }

    #[test]
    fn an_unused_pid_is_no_process() {
        // Above the largest possible PID (`PID_MAX_LIMIT` is 2^22).
        let pid = Pid::new(1 << 22 | 1).unwrap();
        assert!(matches!(Process::open(pid), Err(Error::NoSuchProcess(_))));
    }
}
