//! `jjleak memory`.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ArgGroup;
use jiff::Timestamp;
use regex::Regex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use super::Failure;
use super::args::parse_interval;
use super::failure::OTHER;
use super::signals;
use crate::diagnosis::ARENA_TIME;
use crate::memory::{Libraries, ProcessScan};
use crate::notices;
use crate::processes::{self, Pid, Process, Wanted, running};
use crate::reports::memory::{MemoryReport, html, html_table, json, table, text};

/// Maximum time for reading the arenas of malloc in many processes: of all together, and of each once that is used up.
const ARENA_TIME_OF_ALL: Duration = Duration::from_secs(2);
const LEAST_ARENA_TIME: Duration = Duration::from_millis(20);

/// Show what the resident memory of a process is used for, and what grows
///
/// Reads processes from outside: no probe, no stop, and nothing in them runs. Every resident page is in one row, and the rows add
/// up to the process's RSS.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("scanned").required(true).args(["pid", "name", "system_wide"]))]
pub(super) struct MemoryArgs {
    /// Process to scan
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,

    /// Scan all processes whose name or executable's path matches, as a table
    #[arg(short, long, value_name = "REGEX")]
    name: Option<Regex>,

    /// Scan all processes, as a table
    #[arg(long)]
    system_wide: bool,

    /// Seconds between scans [default: one scan]
    #[arg(value_name = "INTERVAL", value_parser = parse_interval)]
    interval: Option<Duration>,

    /// Number of reports after the first scan [default: until Ctrl-C or the end of the process]
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// After the last report, run the next step that it names, if that is a command of jjleak
    #[arg(long, requires_all = ["pid", "interval", "count"])]
    diagnose: bool,

    /// Format; JSON has a document for each process and report, HTML a page for the last report
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json", "html"])]
    format: String,
}

/// A process with its first and its last scan.
struct Scanned {
    process: Process,
    first: ProcessScan,
    began: Instant,
    last: Option<ProcessScan>,
}

impl Scanned {
    fn report(&self) -> MemoryReport<'_> {
        MemoryReport {
            process: &self.process,
            taken_at: Timestamp::now(),
            scan: self.last.as_ref().unwrap_or(&self.first),
            first: self.last.as_ref().map(|_| (&self.first, self.began.elapsed())),
        }
    }
}

/// Scans the processes that the arguments name.
pub(super) fn scan(args: &MemoryArgs) -> Result<(), Failure> {
    let interrupt = signals::watch().map_err(|error| failed(&error))?;
    let runtime = Builder::new_current_thread().enable_time().build().map_err(|error| failed(&error))?;
    let waits = Waits { runtime, interrupt: &interrupt, interval: args.interval };
    match (args.pid, &args.name) {
        (Some(pid), _) => scan_one(args, pid, &waits),
        (None, Some(name)) => scan_many(args, &Wanted::Named(name.clone()), &waits),
        (None, None) => scan_many(args, &Wanted::All, &waits),
    }
}

fn scan_one(args: &MemoryArgs, pid: u32, waits: &Waits<'_>) -> Result<(), Failure> {
    let pid = Pid::new(pid).ok_or_else(|| Failure::new(OTHER, "PID 0", "name a process"))?;
    let process = Process::open(pid)?;
    let first = ProcessScan::of(pid, ARENA_TIME)?;
    let mut scanned = Scanned { process, first, began: Instant::now(), last: None };
    args.follow(waits, |turn| {
        if !turn.is_first {
            scanned.last = Some(ProcessScan::of(pid, ARENA_TIME)?);
        }
        let report = scanned.report();
        Ok(match args.format.as_str() {
            "json" => json(&report),
            "html" if turn.is_last => html(&report),
            "html" => String::new(),
            _ => text(&report),
        })
    })?;
    if args.diagnose { run_next_step(&scanned.report()) } else { Ok(()) }
}

/// Runs the next step of the likeliest cause, in place of this program.
fn run_next_step(report: &MemoryReport<'_>) -> Result<(), Failure> {
    let findings = report.findings();
    let to_do = findings.first().map(|finding| finding.to_do.as_str()).unwrap_or_default();
    let Some(arguments) = to_do.strip_prefix("jjleak ") else {
        notices::print("the next step is no command of jjleak");
        return Ok(());
    };
    notices::print(&format!("running: {to_do}"));
    let error = Command::new("/proc/self/exe").args(arguments.split(' ')).exec();
    Err(Failure::new(OTHER, format!("cannot run {to_do}: {error}"), "run it by hand"))
}

fn scan_many(args: &MemoryArgs, wanted: &Wanted, waits: &Waits<'_>) -> Result<(), Failure> {
    let mut known: Vec<Scanned> = Vec::new();
    let mut libraries = Libraries::default();
    let began = Instant::now();
    args.follow(waits, |turn| {
        let mut unreadable = 0;
        let mut earlier = std::mem::take(&mut known);
        let table_began = Instant::now();
        for process in running().filter(|process| wanted.is_wanted(process)) {
            let before = earlier.iter().position(|scanned| scanned.process == process);
            let arena_time = ARENA_TIME_OF_ALL.saturating_sub(table_began.elapsed()).max(LEAST_ARENA_TIME);
            match (ProcessScan::with(process.pid, arena_time, &mut libraries), before) {
                (Ok(scan), Some(before)) => {
                    known.push(Scanned { last: Some(scan), ..earlier.swap_remove(before) });
                }
                (Ok(first), None) => {
                    known.push(Scanned { process, first, began: Instant::now(), last: None });
                }
                (Err(processes::Error::Gone(_) | processes::Error::NoProgram(_)), _) => {}
                (Err(error), _) => {
                    unreadable += 1;
                    tracing::debug!("pid {}: {error}", process.pid);
                }
            }
        }
        if known.is_empty() && unreadable == 0 {
            return Err(Failure::new(
                OTHER,
                "no process matches",
                "see the names with: ps -e -o pid,comm,exe",
            ));
        }
        let reports: Vec<_> = known.iter().map(Scanned::report).collect();
        let elapsed = (!turn.is_first).then(|| began.elapsed());
        Ok(match args.format.as_str() {
            "json" => reports.iter().map(json).collect(),
            "html" if turn.is_last => html_table(&reports, elapsed, unreadable),
            "html" => String::new(),
            _ => table(&reports, elapsed, unreadable),
        })
    })
}

/// Place of a scan among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    is_first: bool,
    is_last: bool,
}

impl MemoryArgs {
    /// Writes a report now, and another one after each interval.
    fn follow(
        &self,
        waits: &Waits<'_>,
        mut report: impl FnMut(Turn) -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let reports = if self.interval.is_some() { self.count.unwrap_or(u64::MAX) } else { 0 };
        for number in 0..=reports {
            let is_interrupted = number > 0 && waits.wait();
            let turn = Turn { is_first: number == 0, is_last: is_interrupted || number == reports };
            // If the reader has gone away, nobody needs the rest.
            if io::stdout().write_all(report(turn)?.as_bytes()).is_err() || turn.is_last {
                break;
            }
        }
        Ok(())
    }
}

/// Time between scans.
struct Waits<'a> {
    runtime: Runtime,
    interrupt: &'a Notify,
    interval: Option<Duration>,
}

impl Waits<'_> {
    /// Waits for the next scan. Returns true if it is the last.
    fn wait(&self) -> bool {
        self.runtime.block_on(async {
            tokio::select! {
                () = tokio::time::sleep(self.interval.unwrap_or_default()) => false,
                () = self.interrupt.notified() => true,
            }
        })
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::new(OTHER, format!("cannot scan: {error}"), "try again")
}
