//! A running jjleak, and its results after its end.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::RwLockWriteGuard;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use jjleak::render::json::Document;
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::bounded::{self, LONG, SOON};
use super::lines::Lines;
use super::probes;
use super::process::Process;

/// A `--max-overhead` that no machine reaches, however slow it is: ten million times what the program takes.
pub(crate) const NEVER_REACHED: &str = "1000000000";

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_jjleak");

/// Prefix of jjleak's message that all allocations from now on count.
const ATTACHED: &str = "jjleak: attached";

/// A running jjleak in its own folder.
pub(crate) struct Jjleak {
    process: Process,
    stderr: Lines,
    stdout: Output,
    folder: TempDir,
    /// Held while it may have probes in processes of other tests.
    everywhere: Option<RwLockWriteGuard<'static, ()>>,
}

/// Options with which jjleak probes processes that are not named explicitly.
const WIDE: [&str; 4] = ["--follow", "--name", "-n", "--system-wide"];

enum Output {
    /// Read by a thread; complete when the last writer has closed it.
    Read(Receiver<Vec<u8>>),
    /// Held unread, so that a writer blocks when the pipe is full.
    Unread(ChildStdout),
    /// Not a pipe of the test.
    Elsewhere,
}

impl Jjleak {
    /// Starts jjleak with these arguments and waits until it has attached.
    pub(crate) fn attached(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).stdout(Stdio::piped());
        Self::start(command).until_attached()
    }

    /// Starts jjleak, attached, with an unread stdout.
    pub(crate) fn attached_unread(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).stdout(Stdio::piped());
        Self::spawn(command, Output::Unread).until_attached()
    }

    /// Starts a command that is, or becomes, jjleak. Its stdout is read if it is a pipe.
    pub(crate) fn start(command: Command) -> Self {
        Self::spawn(command, |pipe| Output::Read(read(pipe)))
    }

    fn spawn(mut command: Command, output: impl FnOnce(ChildStdout) -> Output) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let is_wide = command.get_args().any(|argument| WIDE.iter().any(|wide| argument == *wide));
        let everywhere = is_wide.then(probes::everywhere);
        command.current_dir(folder.path()).stdin(Stdio::null()).stderr(Stdio::piped());
        // SAFETY: the call between fork and exec is async-signal-safe.
        unsafe { command.pre_exec(unignore_hangups) };
        let mut process = Process::spawn(&mut command);
        let stderr = Lines::of("jjleak", process.stderr.take().unwrap());
        let stdout = process.stdout.take().map_or(Output::Elsewhere, output);
        Self { process, stderr, stdout, folder, everywhere }
    }

    /// Waits for jjleak's message that it has attached.
    pub(crate) fn until_attached(mut self) -> Self {
        self.wait_for(ATTACHED);
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a line of stderr with this prefix.
    pub(crate) fn wait_for(&mut self, start: &str) -> String {
        self.stderr.skip_to(start, SOON)
    }

    /// Waits for lines of stderr with these prefixes, in any order.
    pub(crate) fn wait_for_all(&mut self, starts: &[&str]) {
        for start in starts {
            self.stderr.until_said(start, SOON);
        }
    }

    /// Waits until jjleak has begun to write to its unread stdout.
    pub(crate) fn until_it_writes(&mut self) {
        let Output::Unread(pipe) = &self.stdout else { panic!("stdout is being read") };
        bounded::readable(pipe, SOON, "jjleak's stdout");
    }

    /// Closes the reading end of its unread stdout.
    pub(crate) fn without_stdout(mut self) -> Self {
        self.stdout = Output::Elsewhere;
        self
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // The child has not been waited for, so that the PID is still its own.
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits for a condition that may hold only briefly, by polling without a pause. It may come too late for jjleak, which has
    /// then ended.
    pub(crate) fn spin_until(&self, mut is_so: impl FnMut() -> bool) {
        let begin = Instant::now();
        let stat = format!("/proc/{}/stat", self.pid());
        while !is_so() && !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            assert!(begin.elapsed() < LONG, "what was waited for did not come within {LONG:?}");
        }
    }

    /// Kills it.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.process.end(SOON);
    }

    /// Requests the final report, like Ctrl-C, and waits for the end.
    pub(crate) fn interrupt(self) -> Ended {
        self.signal(Signal::SIGINT);
        self.end()
    }

    /// Waits for the end of jjleak; its command may continue.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.end(LONG)
    }

    /// Waits for the end of jjleak and of all processes that share its stdout and stderr.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.wait();
        let stdout = match self.stdout {
            Output::Read(all) => all.recv_timeout(SOON).expect("whoever holds jjleak's stdout lets go"),
            Output::Unread(_) | Output::Elsewhere => Vec::new(),
        };
        let stdout = String::from_utf8(stdout).unwrap();
        drop(self.everywhere);
        Ended { status, stdout, stderr: self.stderr.all(SOON), folder: self.folder }
    }
}

fn read(mut pipe: ChildStdout) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        // Nobody receives if the test has failed.
        let _ = sender.send(bytes);
    });
    receiver
}

/// A jjleak that has ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    /// Its lines.
    pub(crate) stderr: Vec<String>,
    folder: TempDir,
}

impl Ended {
    /// Runs jjleak to its end.
    pub(crate) fn of(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).stdout(Stdio::piped());
        Jjleak::start(command).end()
    }

    /// Fails unless jjleak succeeded.
    pub(crate) fn assert_done(self) -> Self {
        assert_eq!(self.status.code(), Some(0), "{:#?}", self.stderr);
        self
    }

    /// The JSON reports on stdout. Lines of a profiled command are skipped.
    pub(crate) fn reports(&self) -> Vec<Document> {
        let lines = self.stdout.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The last JSON report.
    pub(crate) fn report(&self) -> Document {
        self.reports().pop().unwrap_or_else(|| panic!("no report, but {:#?}", self.stderr))
    }

    /// The last JSON report on a process.
    pub(crate) fn report_on(&self, pid: u32) -> Document {
        let mut reports = self.reports().into_iter().filter(|report| report.process.pid == pid);
        reports.next_back().unwrap_or_else(|| panic!("no report on {pid}, but {:#?}", self.stderr))
    }

    /// Names of the files in its folder, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        names_in(self.folder.path())
    }

    /// Path of a file in its folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Fails unless jjleak failed with this exit code, one line with the failure and its cause, one line with the remedy, and no
    /// file.
    pub(crate) fn assert_failed(&self, code: i32, what: &str, remedy: &str) {
        let lines: Vec<_> = self.stderr.iter().map(String::as_str).collect();
        assert_eq!(self.status.code(), Some(code), "{lines:#?}");
        let [.., why, to_do] = lines[..] else { panic!("not two lines: {lines:#?}") };
        assert!(why.starts_with("jjleak: ") && why.contains(what), "not about {what:?}: {lines:#?}");
        assert!(to_do.starts_with("jjleak: to do: ") && to_do.contains(remedy), "not {remedy:?}: {lines:#?}");
        assert_eq!(self.files(), [""; 0]);
    }
}

/// Names of the files in a folder, hidden ones included, sorted.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Restores the default action of SIGHUP: tests may be run by nohup(1), and jjleak keeps ignored signals ignored.
fn unignore_hangups() -> io::Result<()> {
    // SAFETY: the default action runs no code of this program.
    unsafe { signal(Signal::SIGHUP, SigHandler::SigDfl)? };
    Ok(())
}
