//! The report as a page: the cause first, then rows.

use std::time::Duration;

use maud::{Markup, html as markup};

use super::table::{lines, total};
use super::text::{details, headline, parts_of_malloc};
use super::{Change, MemoryReport};
use crate::diagnosis::signed;
use crate::processes::GroupMemory;
use crate::render::{approximate, grouped, percent, plain_page, printable};

/// Width of a bar of all memory, in the units of the picture.
const WIDTH: f64 = 100.;

/// Writes a page of one process.
#[must_use]
pub fn html(report: &MemoryReport<'_>) -> String {
    let process = &report.process;
    let headline = headline(report);
    let header = markup! {
        h1 { (printable(&process.comm)) " " small { "pid " (process.pid) } }
        p.sub { "memory at " (report.taken_at.strftime("%F %T UTC")) }
    };
    let (first, rest) = headline.split_once('\n').unwrap_or((&headline, ""));
    let main = markup! {
        section #conclusion {
            h2 { (first) }
            p.note { (rest.trim_end()) }
            @for finding in report.findings() {
                @for line in finding.lines() { p { (printable(&line)) } }
            }
        }
        (rows(report))
        @if let Some(group) = &report.scan.control_group { (control_group(group)) }
        @let unknown = report.unknown();
        @if !unknown.is_empty() {
            section {
                h2 { "Unknown" }
                @for unknown in unknown { p.note { (printable(&unknown)) } }
            }
        }
    };
    plain_page(&format!("memory of {}", process.comm), &header, &main)
}

/// Writes a page of several processes.
#[must_use]
pub fn html_table(reports: &[MemoryReport<'_>], elapsed: Option<Duration>, unreadable: usize) -> String {
    let header = markup! { h1 { "Memory of processes" } };
    let main = markup! {
        section #conclusion {
            h2 { (total(reports, elapsed)) }
            @if unreadable > 0 { p.note { (unreadable) " more processes could not be read" } }
            table.memory {
                tr {
                    th.number { "RSS" } th.number { "growth" } th.number { "PSS" } th.number { "pid" } th { "name" } th { "memory" }
                }
                @for line in lines(reports) {
                    @let scan = &line.report.scan.scan;
                    tr {
                        td.number { (approximate(scan.resident)) }
                        td.number { @if line.report.first.is_some() { (signed(line.report.grown())) } }
                        td.number { (approximate(scan.proportional)) }
                        td.number { (line.report.process.pid) }
                        td { (printable(&line.report.process.comm)) }
                        td { (line.kind) @if !line.cause.is_empty() { "; cause: " (line.cause) } }
                    }
                }
            }
        }
    };
    plain_page("memory", &header, &main)
}

fn rows(report: &MemoryReport<'_>) -> Markup {
    let all = report.scan.scan.resident;
    markup! {
        section #rows {
            h2 { "Resident memory by use" }
            table.memory {
                tr { th.number { "resident" } th { "" } th.number { "growth" } th { "use" } }
                @for change in report.changes() { (row(report, &change, all)) }
            }
            @for line in parts_of_malloc(report.scan) { p.note { (line) } }
            p.note { "Every resident page is in one row; the rows add up to RSS." }
        }
    }
}

fn row(report: &MemoryReport<'_>, change: &Change<'_>, all: u64) -> Markup {
    let share = percent(change.resident, all);
    let own = details(report.scan, change.kind).unwrap_or_else(|| change.name.to_owned());
    markup! {
        tr {
            td.number title={ (grouped(change.resident)) " bytes" } { (approximate(change.resident)) }
            td.share {
                svg viewBox={ "0 0 " (WIDTH) " 10" } preserveAspectRatio="none" aria-hidden="true" {
                    rect.all width=(WIDTH) height="10" {}
                    rect.of width=(format!("{:.1}", share * WIDTH / 100.)) height="10" {}
                }
            }
            td.number { @if report.first.is_some() { (signed(change.grown)) } }
            td { (change.kind.words()) @if !own.is_empty() && own != change.kind.words() { ": " (printable(&own)) } }
        }
    }
}

fn control_group(group: &GroupMemory) -> Markup {
    let rows = [
        ("all", group.current),
        ("anonymous", group.anonymous),
        ("page cache and files", group.file),
        ("shared memory", group.shared),
        ("sockets", group.sockets),
        ("slab", group.slab),
        ("kernel stacks", group.kernel_stacks),
        ("page tables", group.page_tables),
    ];
    markup! {
        section #group {
            h2 { "Control group" }
            table.memory {
                @for (name, bytes) in rows { tr { td.number { (approximate(bytes)) } td { (name) } } }
            }
        }
    }
}
