//! Programs that generate code, and write its names to a perf map.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use super::bounded::{LONG, SOON};
use super::jjleak::Jjleak;
use super::lines::Lines;
use super::process::Process;

/// A running program that executes one command per line.
pub(crate) struct Jit {
    process: Process,
    stdin: ChildStdin,
    stdout: Lines,
    perf_map: PathBuf,
}

impl Jit {
    /// Starts a program and waits until it is ready.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut stdout = Lines::of("the program that generates code", stdout);
        assert_eq!(stdout.next(SOON), "ready");
        let perf_map = PathBuf::from(format!("/tmp/perf-{}.map", process.id()));
        Self { process, stdin, stdout, perf_map }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Path of its perf map.
    pub(crate) fn perf_map(&self) -> &Path {
        &self.perf_map
    }

    /// Sends a command, and waits until it is done.
    pub(crate) fn ask(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
        assert_eq!(self.stdout.next(LONG), "done");
    }

    /// Ends the program, which leaves its perf map behind.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Attaches jjleak for blocks of at least this size.
    pub(crate) fn attach(&self, smallest: u64) -> Jjleak {
        Self::attach_to(&self.pid().to_string(), smallest)
    }

    /// Attaches jjleak to a process that this one has started.
    pub(crate) fn attach_to(pid: &str, smallest: u64) -> Jjleak {
        Jjleak::attached(["-v", "-p", pid, "3600", "--format", "json", "-z", &smallest.to_string()])
    }
}

impl Drop for Jit {
    fn drop(&mut self) {
        // It may be removed already, never have existed, or be something else.
        let _ = fs::remove_file(&self.perf_map).or_else(|_| fs::remove_dir(&self.perf_map));
    }
}
