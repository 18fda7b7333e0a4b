//! The report as text.

use std::cmp::Reverse;
use std::fmt::Write;

use super::{Change, MemoryReport};
use crate::diagnosis::{by_kind, signed};
use crate::memory::hotspot::NativeCategory;
use crate::memory::{Kind, ProcessScan};
use crate::render::{approximate, duration, grouped, percent, printable};

/// Maximum number of rows, so that a report fits a terminal of 25 lines.
const MAX_ROWS: usize = 15;
/// Maximum number of causes.
const MAX_FINDINGS: usize = 2;
/// Maximum number of kinds in the first line.
const MAX_NAMED: usize = 3;
/// Maximum number of categories of a JVM's native memory.
const MAX_CATEGORIES: usize = 4;
/// Maximum length of a name in a row.
const MAX_NAME_CHARS: usize = 48;

/// Writes the report: a line that says what has grown, then rows with humane and exact sizes.
#[must_use]
pub fn text(report: &MemoryReport<'_>) -> String {
    let mut text = headline(report);
    for finding in report.findings().iter().take(MAX_FINDINGS) {
        for line in finding.lines() {
            let _ = writeln!(text, "{line}");
        }
    }
    let changes = report.changes();
    let (shown, folded) = changes.split_at(changes.len().min(MAX_ROWS));
    for change in shown {
        row(&mut text, report, change);
    }
    if !folded.is_empty() {
        let resident = folded.iter().map(|change| change.resident).sum();
        let _ = writeln!(text, "  {:>11}  {} more rows", approximate(resident), folded.len());
    }
    for line in parts_of_malloc(report.scan) {
        let _ = writeln!(text, "{line}");
    }
    for unknown in report.unknown() {
        let _ = writeln!(text, "unknown: {}", printable(&unknown));
    }
    text
}

/// The process, what is resident, and what has grown; a line each for that and for the rest.
pub(super) fn headline(report: &MemoryReport<'_>) -> String {
    let process = report.process;
    let scan = &report.scan.scan;
    let mut line =
        format!("{} (pid {}): RSS {}", printable(&process.comm), process.pid, approximate(scan.resident));
    if let Some((first, elapsed)) = report.first {
        let _ = write!(line, ", {} in {}", signed(report.grown()), duration(elapsed));
        let grown = by_kind(first, report.scan);
        let named =
            grown.iter().take(MAX_NAMED).map(|(kind, grown)| format!("{} {}", kind.words(), signed(*grown)));
        let named: Vec<_> = named.collect();
        if !named.is_empty() {
            let _ = write!(line, ": {}", named.join(", "));
        }
    }
    let _ = write!(
        line,
        "\nPSS {}, swap {}, page tables {}, {} thread{}",
        approximate(scan.proportional),
        approximate(scan.swapped),
        approximate(report.scan.page_tables),
        report.scan.threads,
        if report.scan.threads == 1 { "" } else { "s" }
    );
    if let Some(limit) = &report.scan.limit {
        let whose = if limit.is_cgroup { "its control group" } else { "the machine" };
        let (left, all) = (approximate(limit.available), approximate(limit.limit));
        let _ = write!(line, "; {whose} has {left} left of {all}");
    }
    line.push('\n');
    line
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
        approximate(change.resident),
        grouped(change.resident)
    );
}

/// Known figures of a kind besides its resident memory.
pub(super) fn details(scan: &ProcessScan, kind: Kind) -> Option<String> {
    match kind {
        Kind::JavaHeap => {
            let heap = &scan.jvm.as_ref()?.heap;
            let (used, committed) = (heap.used.ok()?, heap.committed.ok()?);
            Some(format!("{} used of {} committed", approximate(used), approximate(committed)))
        }
        Kind::MallocLive => {
            let usage = scan.malloc.as_ref()?;
            let live = &usage.live;
            if usage.is_by_lists {
                return Some(approximate(live.bytes));
            }
            Some(format!("{} in {} chunks", approximate(live.bytes), grouped(live.count)))
        }
        Kind::MallocFree => Some("a trim would return most of it".to_owned())
            .filter(|_| scan.malloc.as_ref().is_some_and(|usage| usage.free.trimmable > usage.free.kept)),
        _ => None,
    }
}

/// Parts of a JVM's malloc: lines for direct buffers, if there are any, and for what the JVM itself has.
pub(super) fn parts_of_malloc(scan: &ProcessScan) -> Vec<String> {
    direct_buffers(scan).into_iter().chain(native_memory(scan)).collect()
}

fn direct_buffers(scan: &ProcessScan) -> Option<String> {
    let direct = scan.jvm.as_ref()?.direct.as_ref().ok()?;
    let netty = direct.netty.ok().filter(|bytes| *bytes > 0);
    if direct.count == 0 && netty.is_none() {
        return None;
    }
    let netty = netty.map_or(String::new(), |bytes| format!("; Netty's own: {}", approximate(bytes)));
    Some(format!(
        "direct buffers (part of malloc): {} of at most {} in {} buffers{netty}",
        approximate(direct.reserved),
        approximate(direct.most),
        grouped(direct.count)
    ))
}

/// Sizes of a JVM's tables, and its largest categories of native memory, if it counts them.
fn native_memory(scan: &ProcessScan) -> Option<String> {
    let jvm = scan.jvm.as_ref()?;
    let tables = jvm.tables.ok().map(|tables| {
        let (symbols, strings) = (grouped(tables.symbols.items), grouped(tables.strings.items));
        format!("{symbols} symbols, {strings} interned strings")
    });
    let categories = jvm.native.iter().flatten().next().map(|categories| {
        let mut largest: Vec<_> = categories.iter().collect();
        largest.sort_by_key(|category| Reverse(category.of_malloc()));
        let words = |category: &NativeCategory| {
            format!("{} {}", printable(&category.name), approximate(category.of_malloc()))
        };
        let named: Vec<_> = largest.into_iter().take(MAX_CATEGORIES).map(words).collect();
        format!("by Native Memory Tracking {}", named.join(", "))
    });
    let parts: Vec<_> = tables.into_iter().chain(categories).collect();
    (!parts.is_empty()).then(|| format!("the JVM's own (part of malloc): {}", parts.join("; ")))
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
