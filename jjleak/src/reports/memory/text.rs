//! The report as text.

use std::cmp::Reverse;
use std::fmt::Write;

use super::{Change, MemoryReport};
use crate::diagnosis::Finding;
use crate::memory::{Kind, ProcessScan};
use crate::render::{duration, grouped, humane_bytes, percent, printable};

/// Maximum number of rows, so that a report fits a terminal of 25 lines.
const MAX_ROWS: usize = 16;
/// Maximum number of causes.
const MAX_FINDINGS: usize = 2;
/// Maximum number of kinds in the first line.
const MAX_NAMED: usize = 3;
/// Maximum length of a name in a row.
const MAX_NAME_CHARS: usize = 48;

/// Writes the report: a line that says what has grown, then rows with humane and exact sizes.
#[must_use]
pub fn text(report: &MemoryReport<'_>) -> String {
    let mut text = headline(report);
    for finding in report.findings().iter().take(MAX_FINDINGS) {
        write_finding(&mut text, finding);
    }
    let changes = report.changes();
    let (shown, folded) = changes.split_at(changes.len().min(MAX_ROWS));
    for change in shown {
        row(&mut text, report, change);
    }
    if !folded.is_empty() {
        let resident = folded.iter().map(|change| change.resident).sum();
        let _ = writeln!(text, "  {:>11}  {} more rows", humane(resident), folded.len());
    }
    for unknown in &report.scan.unknown {
        let _ = writeln!(text, "unknown: {}", printable(unknown));
    }
    text
}

/// A line for the cause, and one for the next step.
fn write_finding(text: &mut String, finding: &Finding) {
    let share = if finding.confidence > 0. {
        format!(" ({:.0} % of the growth)", finding.confidence * 100.)
    } else {
        String::new()
    };
    let _ = writeln!(text, "cause: {}{share}: {}", finding.cause.words(), finding.evidence.join("; "));
    if !finding.to_do.is_empty() {
        let _ = writeln!(text, "to do: {}", finding.to_do);
    }
}

fn headline(report: &MemoryReport<'_>) -> String {
    let process = report.process;
    let scan = &report.scan.scan;
    let mut line =
        format!("{} (pid {}): RSS {}", printable(&process.comm), process.pid, humane(scan.resident));
    if let Some((_, elapsed)) = report.first {
        let _ = write!(line, ", {} in {}", signed(report.grown()), duration(elapsed));
        let grown = by_kind(&report.changes());
        let named =
            grown.iter().take(MAX_NAMED).map(|(kind, grown)| format!("{} {}", kind.words(), signed(*grown)));
        let named: Vec<_> = named.collect();
        if !named.is_empty() {
            let _ = write!(line, ": {}", named.join(", "));
        }
    }
    let _ = write!(
        line,
        "\nPSS {}, swap {}, {} threads",
        humane(scan.proportional),
        humane(scan.swapped),
        report.scan.threads
    );
    line.push('\n');
    line
}

/// Kinds that have changed, those that have changed most first.
fn by_kind(changes: &[Change<'_>]) -> Vec<(Kind, i64)> {
    let mut sums = std::collections::BTreeMap::<Kind, i64>::new();
    for change in changes {
        *sums.entry(change.kind).or_default() += change.grown;
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, grown)| *grown != 0).collect();
    sums.sort_by_key(|(_, grown)| Reverse(grown.unsigned_abs()));
    sums
}

fn row(text: &mut String, report: &MemoryReport<'_>, change: &Change<'_>) {
    let share = percent(change.resident, report.scan.scan.resident);
    let grown = report.first.map_or(String::new(), |_| signed(change.grown));
    let mut name = change.kind.words().to_owned();
    let own = details(report.scan, change.kind).unwrap_or_else(|| change.name.to_owned());
    if !own.is_empty() && own != name {
        let _ = write!(name, ": {}", shortened(&printable(&own)));
    }
    let _ = writeln!(
        text,
        "  {:>11} {share:>5.1} % {grown:>12}  {name}  ({} bytes)",
        humane(change.resident),
        grouped(change.resident)
    );
}

/// Known figures of a kind besides its resident memory.
fn details(scan: &ProcessScan, kind: Kind) -> Option<String> {
    match kind {
        Kind::JavaHeap => {
            let heap = &scan.jvm.as_ref()?.heap;
            let (used, committed) = (heap.used.ok()?, heap.committed.ok()?);
            Some(format!("{} used of {} committed", humane(used), humane(committed)))
        }
        Kind::MallocLive => {
            let live = &scan.malloc.as_ref()?.live;
            Some(format!("{} in {} chunks", humane(live.bytes), grouped(live.count)))
        }
        Kind::MallocFree => Some("a trim would return most of it".to_owned())
            .filter(|_| scan.malloc.as_ref().is_some_and(|usage| usage.free.trimmable > usage.free.kept)),
        _ => None,
    }
}

/// The end of a long name.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= MAX_NAME_CHARS {
        return name.to_owned();
    }
    let end: String = name.chars().skip(count - MAX_NAME_CHARS).collect();
    format!("...{end}")
}

fn humane(bytes: u64) -> String {
    humane_bytes(bytes).unwrap_or_else(|| format!("{bytes} B"))
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", humane(bytes.unsigned_abs()))
}
