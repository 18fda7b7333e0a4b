//! Table of several processes, a line each.

use std::cmp::Reverse;
use std::fmt::Write;
use std::time::Duration;

use super::MemoryReport;
use crate::diagnosis::{Cause, by_kind, signed};
use crate::memory::Kind;
use crate::render::{approximate, duration, printable};

/// Maximum number of processes in a table; JSON has all.
const MAX_PROCESSES: usize = 20;

/// Line of a table.
pub(super) struct Line<'report> {
    pub(super) report: &'report MemoryReport<'report>,
    /// The kind of memory that has grown most, or without growth the largest.
    pub(super) kind: String,
    /// The cause; empty if the process has hardly grown.
    pub(super) cause: &'static str,
}

/// Lines of processes: those that grow most first, then the largest.
pub(super) fn lines<'report>(reports: &'report [MemoryReport<'_>]) -> Vec<Line<'report>> {
    let mut lines: Vec<_> = reports.iter().map(line).collect();
    lines.sort_by_key(|line| {
        let grown = if line.cause.is_empty() { 0 } else { line.report.grown() };
        Reverse((grown, line.report.scan.scan.resident))
    });
    lines
}

fn line<'report>(report: &'report MemoryReport<'_>) -> Line<'report> {
    let worst = report.findings().into_iter().next().filter(|worst| worst.cause != Cause::None);
    let kind = match (&worst, report.first) {
        (Some(_), Some((first, _))) => by_kind(first, report.scan)
            .first()
            .map(|(kind, grown)| format!("{} {}", kind.words(), signed(*grown))),
        _ => largest_kind(report).map(|(kind, bytes)| format!("{} {}", kind.words(), approximate(bytes))),
    };
    Line { report, kind: kind.unwrap_or_default(), cause: worst.map_or("", |worst| worst.cause.words()) }
}

fn largest_kind(report: &MemoryReport<'_>) -> Option<(Kind, u64)> {
    report.scan.scan.by_kind().into_iter().max_by_key(|(_, bytes)| *bytes)
}

/// First line: all processes together.
pub(super) fn total(reports: &[MemoryReport<'_>], elapsed: Option<Duration>) -> String {
    let resident = reports.iter().map(|report| report.scan.scan.resident).sum();
    let shared = reports.iter().map(|report| report.scan.scan.proportional).sum();
    let grown = reports.iter().map(MemoryReport::grown).sum();
    let mut total =
        format!("{} processes: RSS {}, PSS {}", reports.len(), approximate(resident), approximate(shared));
    if let Some(elapsed) = elapsed {
        let _ = write!(total, ", RSS {} in {}", signed(grown), duration(elapsed));
    }
    total
}

/// Writes processes as a table. `elapsed` is the time since the first table; `unreadable` processes are left out.
#[must_use]
pub fn table(reports: &[MemoryReport<'_>], elapsed: Option<Duration>, unreadable: usize) -> String {
    let mut text = total(reports, elapsed);
    let lines = lines(reports);
    let (shown, folded) = lines.split_at(lines.len().min(MAX_PROCESSES));
    let _ =
        writeln!(text, "\n{:>11} {:>12} {:>11}  {:>8} {:15}  memory", "RSS", "growth", "PSS", "pid", "name");
    for line in shown {
        let scan = &line.report.scan.scan;
        let grown = line.report.first.map_or(String::new(), |_| signed(line.report.grown()));
        let cause = if line.cause.is_empty() { String::new() } else { format!("; cause: {}", line.cause) };
        let _ = writeln!(
            text,
            "{:>11} {grown:>12} {:>11}  {:>8} {:15}  {}{cause}",
            approximate(scan.resident),
            approximate(scan.proportional),
            line.report.process.pid.to_string(),
            printable(&line.report.process.comm),
            line.kind,
        );
    }
    if !folded.is_empty() {
        let resident = folded.iter().map(|line| line.report.scan.scan.resident).sum();
        let _ = writeln!(text, "{:>11} {} more processes", approximate(resident), folded.len());
    }
    if unreadable > 0 {
        let _ = writeln!(text, "{unreadable} more processes could not be read");
    }
    text
}
