//! A running daemon.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::bounded::{LONG, SOON};
use super::compile;
use super::java::Java;
use super::jjleak::PROGRAM;
use super::lines::Lines;
use super::process::Process;

/// Configuration with short profiles, on request only.
pub(crate) const ON_REQUEST: &str = "[profile]\nduration = \"60s\"\nsettle = \"1s\"\nsnapshot = \"1s\"\nback_off = \"1s\"\n\
    [suspect]\nlimit_within = \"0s\"\nlimit_percent = 100.0\npressure_percent = 100.0\ngrowth_bytes = \"1TiB\"\n\
    [http]\nlisten = \"off\"";

/// The C program with leaks, running under the name of a test.
pub(crate) fn working(place: &Place) -> (Process, Lines) {
    working_at(place, "pace 100000 10")
}

/// The same at another pace.
pub(crate) fn working_at(place: &Place, orders: &str) -> (Process, Lines) {
    driven(Command::new(place.program(compile::verdicts())), orders)
}

/// The same, started by a command that is or becomes it.
pub(crate) fn driven(mut command: Command, orders: &str) -> (Process, Lines) {
    let mut program = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("the leaking program", program.stdout.take().unwrap());
    assert_eq!(said.next(SOON), "ready");
    writeln!(program.stdin.as_mut().unwrap(), "{orders}").unwrap();
    (program, said)
}

/// Sends a request over a Unix socket. Returns the head and the body of the answer.
pub(crate) fn ask(socket: &Path, request: &str) -> (String, Vec<u8>) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nhost: jjleak\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    (String::from_utf8(answer[..end].to_vec()).unwrap(), answer.split_off(end + 4))
}

/// A daemon in its own folder, which watches programs of this test only.
pub(crate) struct Daemon {
    process: Process,
    log: Lines,
    /// Its messages so far.
    pub(crate) said: Vec<Value>,
    folder: PathBuf,
}

/// A folder for a daemon, and a process name that no other test uses.
pub(crate) struct Place {
    folder: TempDir,
    name: String,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Process names have 15 bytes; the last one distinguishes programs.
        let name = format!("{name}{}", std::process::id());
        assert!(name.len() <= 14, "{name}");
        Self { folder, name }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Socket of its daemon, if configured.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// [`ON_REQUEST`] for a daemon that listens.
    pub(crate) fn served_on_request(&self) -> String {
        ON_REQUEST.replace("\"off\"", &format!("\"unix:{}\"", self.socket().display()))
    }

    /// The stored profiles, oldest first.
    pub(crate) fn kept(&self) -> Vec<PathBuf> {
        profiles(&self.state())
    }

    /// A program under the name of this test.
    pub(crate) fn program(&self, program: &Path) -> PathBuf {
        self.link(&self.name, program)
    }

    /// A program under a second watched name.
    pub(crate) fn other_program(&self, program: &Path) -> PathBuf {
        self.link(&format!("{}j", self.name), program)
    }

    /// A Java program under the name of this test.
    pub(crate) fn java(&self, bytes: u64, pause_ms: u64, what: &str) -> Java {
        let java = fs::canonicalize("/usr/bin/java").unwrap();
        Java::start_pace(&self.link(&format!("{}j", self.name), &java), bytes, pause_ms, what)
    }

    fn link(&self, name: &str, program: &Path) -> PathBuf {
        let link = self.path(name);
        if !link.exists() {
            symlink(program, &link).unwrap();
        }
        link
    }

    /// Writes a configuration that watches programs of this name, with these additional sections.
    pub(crate) fn configure(&self, watch: &str, sections: &str) -> PathBuf {
        let (state, name) = (self.state().display().to_string(), &self.name);
        let text = format!(
            "[state]\ndirectory = {state:?}\n[log]\nformat = \"json\"\n\
             [watch]\njvms = false\nnames = [\"^{name}j?$\"]\ninterval = \"1s\"\n{watch}\n{sections}\n"
        );
        let path = self.path("jjleak.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// Starts a daemon and waits until it watches.
    pub(crate) fn start(&self) -> Daemon {
        self.spawn(|command| command).until_it_watches()
    }

    /// Starts a daemon with further arguments or another environment.
    pub(crate) fn spawn(&self, more: impl FnOnce(&mut Command) -> &mut Command) -> Daemon {
        let mut command = Command::new(PROGRAM);
        more(command.arg("daemon"));
        self.spawn_as(command)
    }

    /// Starts a daemon with a command that is, or becomes, `jjleak daemon`.
    pub(crate) fn spawn_as(&self, mut command: Command) -> Daemon {
        command.arg("--config").arg(self.path("jjleak.toml"));
        let mut process = Process::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped()));
        let log = Lines::of("the daemon", process.stderr.take().unwrap());
        Daemon { process, log, said: Vec::new(), folder: self.state() }
    }

    /// Sends a request to its daemon. Returns the head and the body of the answer.
    pub(crate) fn ask(&self, request: &str) -> (String, Vec<u8>) {
        ask(&self.socket(), request)
    }
}

impl Daemon {
    /// Waits until it watches.
    pub(crate) fn until_it_watches(mut self) -> Self {
        self.until("watching ", SOON);
        while !self.said.last().unwrap()["message"].as_str().unwrap().contains(" being profiled, ") {
            self.until("watching ", SOON);
        }
        self
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a message that contains `part`, and skips all others.
    pub(crate) fn until(&mut self, part: &str, limit: Duration) -> Value {
        let begin = Instant::now();
        loop {
            let passed = begin.elapsed();
            assert!(passed < limit, "{part:?} did not come within {limit:?}, after {:#?}", self.said);
            let line = self.log.next(limit.saturating_sub(passed));
            let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            self.said.push(said.clone());
            if said["message"].as_str().is_some_and(|message| message.contains(part)) {
                return said;
            }
        }
    }

    /// Returns true if it has printed a message that contains `part`.
    pub(crate) fn has_said(&self, part: &str) -> bool {
        self.said.iter().any(|line| line["message"].as_str().is_some_and(|message| message.contains(part)))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    /// Ends it as systemd does. Returns all of its messages.
    pub(crate) fn end(mut self) -> Vec<Value> {
        self.signal(Signal::SIGTERM);
        let status = self.process.end(LONG);
        assert_eq!(status.code(), Some(0), "{:#?}", self.said);
        let lines = self.log.all(SOON);
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Kills it.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.process.end(SOON);
    }

    /// The stored profiles.
    pub(crate) fn profiles(&self) -> Vec<PathBuf> {
        profiles(&self.folder)
    }
}

/// The profiles in a state directory, oldest first.
pub(crate) fn profiles(state: &Path) -> Vec<PathBuf> {
    // Before the first one, the folder may not exist.
    let files = fs::read_dir(state.join("profiles")).into_iter().flatten().map(|file| file.unwrap().path());
    let mut profiles: Vec<_> = files.filter(|path| path.to_str().unwrap().ends_with(".pb.gz")).collect();
    profiles.sort();
    profiles
}
