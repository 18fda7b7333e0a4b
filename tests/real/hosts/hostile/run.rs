//! Profiles a hostile process, and an honest one beside it.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use jjleak::symbolize::child::VERB;
use tempfile::TempDir;

use super::entry::Entry;
use crate::support::bounded::{SOON, comes};
use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::process::{Process, status_if_running};

/// Environment variable with a jjleak whose outcome is only reported.
pub(super) const OTHER: &str = "JJLEAK_HOSTILE_BINARY";
/// Maximum of the resident memory of jjleak and of the process that reads symbols, together.
pub(super) const MAX_MEMORY_KIB: u64 = 256 << 10;
/// Maximum time from start to end, on a machine that is busy with other tests.
const MAX_TIME: Duration = Duration::from_secs(120);
/// The same for another jjleak, and its limit of memory in KiB.
const OTHER_SECONDS: u64 = 20;
const OTHER_MEMORY_KIB: u64 = 4 << 20;
/// Time for which a hostile process is profiled.
const A_WHILE: Duration = Duration::from_secs(1);
/// Interval of reading how much memory processes use.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Outcome of an entry.
pub(super) struct Outcome {
    pub(super) seconds: f64,
    pub(super) memory_kib: u64,
    /// Messages of jjleak.
    pub(super) said: Vec<String>,
}

/// A hostile process in a folder of its own.
pub(crate) struct Hostile {
    process: Process,
    folder: TempDir,
}

impl Hostile {
    pub(super) fn start(entry: &Entry, program: Option<&Path>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = match program {
            Some(program) => entry.prepare(folder.path(), program),
            None => entry.command(folder.path()),
        };
        let mut process = Process::spawn(command.stdout(Stdio::piped()).stdin(Stdio::null()));
        let mut said = Lines::of(entry.name, process.stdout.take().unwrap());
        assert_eq!(said.next(SOON), "ready");
        Self { process, folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // Each may be a file, a folder or absent.
        let map = PathBuf::from(format!("/tmp/perf-{}.map", self.process.id()));
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&map).or_else(|_| fs::remove_dir(&map));
    }
}

/// Profiles a hostile process and an honest one. Fails if that costs too much, or if the honest one is miscounted.
pub(super) fn profile(entry: &Entry) -> Outcome {
    let hostile = Hostile::start(entry, None);
    let mut ledger = Ledger::start();
    let pids = [hostile.pid(), ledger.pid()].map(|pid| pid.to_string());
    let begin = Instant::now();
    let jjleak = Jjleak::attached(["-p", &pids[0], "-p", &pids[1], "--format", "json"]);
    ledger.open_accounts();
    let peak = Peak::of(jjleak.pid());
    ledger.run("malloc");
    let accounts = ledger.accounts();
    // The duration of the profile: stacks of the hostile process come in meanwhile, and none tells that it is the last.
    thread::sleep(A_WHILE);
    let ended = jjleak.interrupt().assert_done();
    let (seconds, memory_kib) = (begin.elapsed().as_secs_f64(), peak.kib());
    accounts.assert_reported(&ended.report_on(ledger.pid()));
    let said = ended.stderr.clone();
    let is_seen = !entry.calls() || ended.report_on(hostile.pid()).allocated.objects > 0;
    assert!(is_seen, "{}: nothing is allocated through it", entry.name);
    let name = entry.name;
    println!("{name:?}: {seconds:.1} s, {memory_kib} KiB, {said:#?}");
    assert!(memory_kib <= MAX_MEMORY_KIB, "{name}: {memory_kib} KiB, {said:#?}");
    assert!(begin.elapsed() <= MAX_TIME, "{name}: {seconds} s, {said:#?}");
    let named = |line: &&String| {
        let folder = hostile.folder().to_str().unwrap();
        line.contains(entry.says) && (line.contains(folder) || line.contains(entry.name))
    };
    assert!(entry.says.is_empty() || said.iter().any(|line| named(&line)), "{name}: {said:#?}");
    assert!(said.iter().all(|line| line.chars().all(|letter| !letter.is_control())), "{name}: {said:#?}");
    // Its folder has another name each time.
    let folder = format!("{}/", hostile.folder().display());
    let said = said.into_iter().map(|line| line.replace(&folder, "")).collect();
    Outcome { seconds, memory_kib, said }
}

/// Outcome with another jjleak, in words.
pub(super) fn by_other(entry: &Entry, program: &Path) -> String {
    let hostile = Hostile::start(entry, None);
    let limited = format!("ulimit -v {OTHER_MEMORY_KIB}; exec \"$0\" \"$@\"");
    let mut command = Command::new("timeout");
    command.args(["--signal=INT", "--kill-after=17", "3", "sh", "-c", &limited]).arg(program);
    command.args(["-p", &hostile.pid().to_string()]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command);
    let said = Lines::of("another jjleak", process.stderr.take().unwrap());
    let begin = Instant::now();
    let peak = Peak::of(process.id());
    // timeout(1) kills it; killing timeout would leave it running.
    let limit = Duration::from_secs(2 * OTHER_SECONDS);
    let has_ended = comes(limit, || process.try_wait().unwrap().is_some());
    assert!(has_ended, "{}: timeout(1) does not end", entry.name);
    let status = process.wait().unwrap();
    let (seconds, mib) = (begin.elapsed().as_secs_f64(), peak.kib() >> 10);
    // timeout(1) ends with 128 and the signal, or by it.
    if status.code().is_none_or(|code| code == 137) {
        return format!("does not end in {OTHER_SECONDS} s; {mib} MiB");
    }
    let last = said.all(SOON).pop().unwrap_or_default();
    match status.code() {
        Some(0 | 124) => format!("{seconds:.1} s, {mib} MiB"),
        code => format!("ends with {code:?}: {last}; {mib} MiB"),
    }
}

/// Highest resident memory of a process, and of the processes below it that are another program or read symbols.
pub(super) struct Peak {
    seen: std::sync::Arc<(AtomicBool, AtomicU64)>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Peak {
    pub(super) fn of(pid: u32) -> Self {
        let seen = std::sync::Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
        let ours = seen.clone();
        let thread = thread::spawn(move || {
            let (is_over, most) = &*ours;
            let mut by_process = BTreeMap::new();
            while !is_over.load(Ordering::Relaxed) {
                read(pid, true, &mut by_process);
                let of_jjleak = by_process.get(&pid).copied().unwrap_or_default();
                let others = by_process.iter().filter(|(other, _)| **other != pid);
                let of_child = others.map(|(_, kib)| *kib).max().unwrap_or_default();
                most.store(of_jjleak + of_child, Ordering::Relaxed);
                // The kernel does not announce peaks of a process and its children.
                thread::sleep(POLL_INTERVAL);
            }
        });
        Self { seen, thread: Some(thread) }
    }

    /// The sum so far; ends.
    pub(super) fn kib(mut self) -> u64 {
        self.seen.0.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.seen.1.load(Ordering::Relaxed)
    }
}

/// Adds the peaks of a process and of its children, as far as they still run.
fn read(pid: u32, is_first: bool, peaks: &mut BTreeMap<u32, u64>) {
    let Ok(arguments) = fs::read_to_string(format!("/proc/{pid}/cmdline")) else { return };
    // Children that share jjleak's memory have its command line.
    if is_first || arguments.contains(VERB) || arguments.starts_with("sh\0") || arguments.contains("\0-p\0") {
        let Some(kib) = status_if_running(pid, "VmHWM:") else { return };
        peaks.insert(pid, kib);
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads.filter(|_| is_first || !arguments.contains(VERB)) {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().map(|child| child.parse().unwrap()) {
            let shares = is_first
                && status_if_running(child, "VmHWM:").is_some()
                && !has(child, VERB)
                && has(pid, PROGRAM);
            if !shares {
                read(child, false, peaks);
            }
        }
    }
}

fn has(pid: u32, argument: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(argument))
}

/// The other jjleak, if there is one.
pub(super) fn other() -> Option<PathBuf> {
    env::var_os(OTHER).map(PathBuf::from)
}
