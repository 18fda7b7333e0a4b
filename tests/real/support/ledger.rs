//! The ledger program: a running process that executes scenarios on request and keeps its own accounting.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use jjleak::render::json::{Document, ThreadDocument};
use nix::sys::signal::Signal;

use super::accounts::{Account, Accounts};
use super::bounded::{LONG, SOON};
use super::compile;
use super::jjleak::Jjleak;
use super::lines::Lines;
use super::process::Process;

pub(crate) struct Ledger {
    process: Process,
    pid: u32,
    stdin: ChildStdin,
    stdout: Lines,
}

impl Ledger {
    /// Starts the program and waits until it listens.
    pub(crate) fn start() -> Self {
        Self::start_as(compile::ledger())
    }

    /// Starts the program from a copy at this path.
    pub(crate) fn start_as(path: &Path) -> Self {
        Self::spawn(&mut Command::new(path))
    }

    /// Starts the program from a copy in this folder under the given name.
    pub(crate) fn start_named(folder: &Path, name: &str) -> Self {
        let path = folder.join(name);
        if !path.exists() {
            fs::rename(compile::copy(compile::ledger(), folder), &path).unwrap();
        }
        Self::start_as(&path)
    }

    /// Starts the program with a preloaded allocator.
    pub(crate) fn start_preloading(library: &str) -> Self {
        Self::start_as_preloading(compile::ledger(), library)
    }

    /// Starts the program from this path, with a preloaded allocator.
    pub(crate) fn start_as_preloading(path: &Path, library: &str) -> Self {
        let ledger = Self::spawn(Command::new(path).env("LD_PRELOAD", library));
        let maps = fs::read_to_string(format!("/proc/{}/maps", ledger.pid())).unwrap();
        assert!(
            maps.contains(library.trim_end_matches(char::is_numeric)),
            "{library} is not loaded:\n{maps}"
        );
        ledger
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let pid = process.id();
        let mut ledger = Self { process, pid, stdin, stdout: Lines::of("the ledger program", stdout) };
        assert_eq!(ledger.stdout.next(SOON), "ready");
        ledger
    }

    /// Starts the program with a command that has it as its only child, directly or through a chain of only children.
    pub(crate) fn spawn_in(command: &mut Command) -> Self {
        let ledger = Self::spawn(command);
        let mut pid = ledger.pid;
        while let Some(child) = only_child(pid) {
            pid = child;
        }
        Self { pid, ..ledger }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Prepares the state that a scenario needs before jjleak attaches.
    pub(crate) fn set_up(&mut self, scenario: &str) {
        self.ask(&format!("set_up {scenario}"));
        self.expect_done();
    }

    /// Attaches jjleak, and resets the accounting while the program is idle.
    pub(crate) fn attach(&mut self, options: &[&str]) -> Jjleak {
        let pid = self.pid().to_string();
        let jjleak = Jjleak::attached(["-p", &pid].iter().chain(options));
        self.open_accounts();
        jjleak
    }

    /// Runs a scenario.
    pub(crate) fn run(&mut self, scenario: &str) {
        self.begin(scenario);
        self.expect_end();
    }

    /// Begins to run a scenario.
    pub(crate) fn begin(&mut self, scenario: &str) {
        self.ask(&format!("run {scenario}"));
    }

    /// Waits until a scenario has ended.
    pub(crate) fn expect_end(&mut self) {
        self.expect_done();
    }

    /// The program's accounting.
    pub(crate) fn accounts(&mut self) -> Accounts {
        let lines = self.table("ledger");
        Accounts::parse(lines.iter().map(String::as_str))
    }

    /// The accounting of each thread of the scenario `ledgers`.
    pub(crate) fn thread_accounts(&mut self) -> BTreeMap<ThreadDocument, Account> {
        let lines = self.table("ledgers");
        let parse = |line: &String| {
            let words: Vec<_> = line.split(' ').collect();
            let ["thread", id, name, "live", bytes, objects, "allocated", all_bytes, all_objects] = words[..]
            else {
                panic!("no account of a thread: {line}")
            };
            let [live_bytes, live_objects, allocated_bytes, allocated_objects] =
                [bytes, objects, all_bytes, all_objects].map(|number| number.parse().unwrap());
            let thread = ThreadDocument { id: id.parse().unwrap(), name: name.to_owned(), nth: 1 };
            (thread, Account { live_bytes, live_objects, allocated_bytes, allocated_objects })
        };
        lines.iter().map(parse).collect()
    }

    /// Addresses of the program's allocation functions.
    pub(crate) fn allocation_functions(&mut self) -> Vec<(String, u64)> {
        let lines = self.table("addresses");
        let parse = |line: &String| {
            let (name, address) = line.strip_prefix("address ")?.split_once(" 0x")?;
            Some((name.to_owned(), u64::from_str_radix(address, 16).ok()?))
        };
        lines.iter().map(|line| parse(line).expect("a name and an address")).collect()
    }

    /// Resets the accounting.
    pub(crate) fn open_accounts(&mut self) {
        self.ask("open");
        self.expect_done();
    }

    /// Makes the process load a library with its own allocator.
    pub(crate) fn load(&mut self, library: &str) {
        self.ask(&format!("load {library}"));
        self.expect_done();
    }

    /// Makes the process fork. From now on, the child executes requests. Returns its PID.
    pub(crate) fn fork(&mut self) -> u32 {
        self.ask("fork");
        let said = self.stdout.next(SOON);
        said.strip_prefix("child ").unwrap_or_else(|| panic!("no child, but {said}")).parse().unwrap()
    }

    /// Ends the child. From now on, its parent executes requests.
    pub(crate) fn end_child(&mut self) {
        self.ask("exit 0");
        assert_eq!(self.stdout.next(SOON), "parent");
    }

    /// Makes the process execute the program again.
    pub(crate) fn exec(&mut self) {
        self.ask("exec");
        assert_eq!(self.stdout.next(SOON), "ready");
    }

    /// Ends the program with this status.
    pub(crate) fn exit(mut self, status: i32) {
        self.ask(&format!("exit {status}"));
        assert_eq!(self.process.end(SOON).code(), Some(status));
    }

    /// Kills the program, like a user or the OOM killer.
    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        let status = self.process.end(SOON);
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    }

    fn ask(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn expect_done(&mut self) {
        assert_eq!(self.stdout.next(LONG), "done");
    }

    fn table(&mut self, question: &str) -> Vec<String> {
        self.ask(question);
        std::iter::from_fn(|| Some(self.stdout.next(SOON)).filter(|line| line != "end")).collect()
    }
}

/// The only child of a process, if there is exactly one.
fn only_child(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    (!children.trim().is_empty()).then(|| children.trim().parse().unwrap())
}

/// Runs a scenario under jjleak; the report must equal the program's accounting.
pub(crate) fn assert_exact(scenario: &str) -> Document {
    assert_exact_with(scenario, &[])
}

/// The same with further options.
pub(crate) fn assert_exact_with(scenario: &str, options: &[&str]) -> Document {
    let (report, accounts) = reported_and_recorded(scenario, &[&["--format", "json"], options].concat());
    accounts.assert_reported(&report);
    report
}

/// Runs a scenario under jjleak with these options. Returns the last JSON report and the program's accounting.
pub(crate) fn reported_and_recorded(scenario: &str, options: &[&str]) -> (Document, Accounts) {
    let mut ledger = Ledger::start();
    ledger.set_up(scenario);
    let jjleak = ledger.attach(options);
    ledger.run(scenario);
    (jjleak.interrupt().assert_done().report(), ledger.accounts())
}
