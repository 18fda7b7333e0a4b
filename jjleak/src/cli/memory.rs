//! `jjleak memory`.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::runtime::Builder;
use tokio::sync::Notify;

use super::Failure;
use super::args::parse_interval;
use super::failure::OTHER;
use super::signals;
use crate::diagnosis::ARENA_TIME;
use crate::memory::ProcessScan;
use crate::processes::{Pid, Process};
use crate::reports::memory::{MemoryReport, json, text};

/// Show what the resident memory of a process is used for, and what grows
///
/// Reads the process from outside: no probe, no stop, and nothing in it runs. Every resident page is in one row, and the rows add
/// up to the process's RSS.
#[derive(Debug, clap::Args)]
pub(super) struct MemoryArgs {
    /// Process to scan
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: u32,

    /// Seconds between scans [default: one scan]
    #[arg(value_name = "INTERVAL", value_parser = parse_interval)]
    interval: Option<Duration>,

    /// Number of reports after the first scan [default: until Ctrl-C or the end of the process]
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Format
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    format: String,
}

/// Scans the process that the arguments name.
pub(super) fn scan(args: &MemoryArgs) -> Result<(), Failure> {
    let interrupt = signals::watch().map_err(|error| failed(&error))?;
    let pid = Pid::new(args.pid).ok_or_else(|| Failure::new(OTHER, "PID 0", "name a process"))?;
    let process = Process::open(pid)?;
    let first = ProcessScan::of(pid, ARENA_TIME)?;
    let begun = Instant::now();
    let write = |scan: &ProcessScan, first: Option<(&ProcessScan, Duration)>| {
        let report = MemoryReport { process: &process, taken_at: Timestamp::now(), scan, first };
        let report = if args.format == "json" { json(&report) } else { text(&report) };
        // If the reader has gone away, nobody needs the rest.
        io::stdout().write_all(report.as_bytes()).is_ok()
    };
    if !write(&first, None) {
        return Ok(());
    }
    let Some(interval) = args.interval else { return Ok(()) };
    let runtime = Builder::new_current_thread().enable_time().build().map_err(|error| failed(&error))?;
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        let is_interrupted = runtime.block_on(wait(interval, &interrupt));
        let scan = ProcessScan::of(pid, ARENA_TIME)?;
        if !write(&scan, Some((&first, begun.elapsed()))) || is_interrupted {
            break;
        }
    }
    Ok(())
}

/// Waits for the next scan. Returns true if it is the last.
async fn wait(interval: Duration, interrupt: &Notify) -> bool {
    tokio::select! {
        () = tokio::time::sleep(interval) => false,
        () = interrupt.notified() => true,
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::new(OTHER, format!("cannot scan: {error}"), "try again")
}
