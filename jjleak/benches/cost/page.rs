//! The page that is made of a report, in Markdown that can be read as it is.

use std::fmt::Write as _;

use crate::report::{Fact, Matrix, Report, Section};
use crate::timings::Figure;
use crate::tools::{BPFTRACE, UNTRACED};

const INTRODUCTION: &str = "`cargo xtask bench` writes this page and [cost.json](cost.json) anew: all of it in one run, on one \
machine. Figures are medians; behind each stands in brackets how far its quartiles lie apart, in per cent of it. Every tool \
gets the same programs in turns. [What it means](../overhead.md).";

pub(crate) fn page(report: &Report) -> String {
    let machine = &report.machine;
    let mut page = format!("# What it costs\n\n{INTRODUCTION}\n\n");
    let kind = if machine.is_virtual { "a virtual machine" } else { "a machine" };
    let _ = writeln!(
        page,
        "{}, {kind} with {} cores ({}), {} MiB; Linux {}, {}, {}. {:.0} s in all.\n",
        report.date,
        machine.cores,
        machine.cpu,
        machine.memory_mib,
        machine.kernel,
        machine.distribution,
        machine.libc,
        report.took_s,
    );
    let _ = writeln!(page, "Compared: {}.\n", machine.versions.join("; "));
    if report.quick {
        page.push_str("**A quick run: whether it works, and no figures to keep.**\n\n");
    }
    if report.is_noisy() {
        let noise: Vec<_> = report
            .noise
            .iter()
            .map(|noise| {
                format!(
                    "{:.0} % spread of the same work, {:.0} % stolen, load {:.1}",
                    noise.spread_percent, noise.stolen_percent, noise.load
                )
            })
            .collect();
        let _ = writeln!(page, "**The machine was noisy** (before: {}).\n", noise.join("; after: "));
    }
    page.push_str(&wanted(report));
    for part in &report.sections {
        page.push_str(&section(part));
    }
    page.trim_end().to_owned() + "\n"
}

/// What was wanted, and what it is.
fn wanted(report: &Report) -> String {
    let facts: Vec<_> = report
        .sections
        .iter()
        .flat_map(|section| &section.facts)
        .filter(|fact| fact.wanted.is_some())
        .collect();
    let mut page = "## What was wanted\n\n| what | wanted | is | |\n|---|---|---|---|\n".to_owned();
    for fact in facts {
        let met = match fact.is_met() {
            Some(true) => "met",
            Some(false) => "**not met**",
            None => "not measured",
        };
        let _ = writeln!(
            page,
            "| {} | {} {} | {} | {met} |",
            fact.what,
            number(fact.wanted.unwrap_or_default()),
            fact.unit,
            fact.figure.map_or("-".to_owned(), cell),
        );
    }
    page.push('\n');
    page
}

pub(crate) fn section(section: &Section) -> String {
    let mut page = format!("## {}\n\n", section.title);
    if !section.says.is_empty() {
        let _ = writeln!(page, "{}\n", section.says);
    }
    if let Some(why) = &section.failure {
        let _ = writeln!(page, "Not measured: {why}\n");
    }
    if let Some(matrix) = &section.matrix {
        page.push_str(&table(matrix, &format!("{} by", matrix.unit), |row, workload| {
            row_figure(matrix, row, workload).map_or("-".to_owned(), cell)
        }));
        let _ = writeln!(page, "What is added to *{UNTRACED}*, as a multiple of what `{BPFTRACE}` adds:\n");
        page.push_str(&table(matrix, "added by", |row, workload| ratio(matrix, row, workload)));
        page.push_str(&failures(matrix));
    }
    if !section.facts.is_empty() {
        page.push_str(&facts(&section.facts));
    }
    page
}

fn row_figure(matrix: &Matrix, row: usize, workload: usize) -> Option<Figure> {
    matrix.tools[row].figures.get(workload).copied().flatten()
}

/// What a tool adds, beside what bpftrace adds.
fn ratio(matrix: &Matrix, row: usize, workload: usize) -> String {
    let added = |tool| matrix.added(tool, workload);
    let ratio = added(matrix.tools[row].tool).zip(added(BPFTRACE)).map(|(own, peer)| own / peer);
    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn table(matrix: &Matrix, corner: &str, cell: impl Fn(usize, usize) -> String) -> String {
    let mut page = format!("| {corner} | {} |\n|---|", matrix.workloads.join(" | "));
    page.push_str(&"---|".repeat(matrix.workloads.len()));
    page.push('\n');
    for (row, tool) in matrix.tools.iter().enumerate() {
        let cells: Vec<_> = (0..matrix.workloads.len()).map(|workload| cell(row, workload)).collect();
        let _ = writeln!(page, "| {} | {} |", tool.tool, cells.join(" | "));
    }
    page.push('\n');
    page
}

/// Why a tool has no figures.
fn failures(matrix: &Matrix) -> String {
    let mut page = String::new();
    for row in &matrix.tools {
        for why in &row.failures {
            let _ = writeln!(page, "- {}: {why}", row.tool);
        }
    }
    if !page.is_empty() {
        page.push('\n');
    }
    page
}

fn facts(facts: &[Fact]) -> String {
    let mut page = "| what | is | wanted |\n|---|---|---|\n".to_owned();
    for fact in facts {
        let wanted = fact.wanted.map_or(String::new(), |wanted| format!("{} {}", number(wanted), fact.unit));
        let figure = fact.figure.map_or("-".to_owned(), |figure| {
            let spread =
                if figure.timings > 1 { format!(" ({:.0} %)", figure.spread_percent) } else { String::new() };
            format!("{} {}{spread}", number(figure.median), fact.unit)
        });
        let _ = writeln!(page, "| {} | {figure} | {wanted} |", fact.what);
    }
    page.push('\n');
    page
}

fn cell(figure: Figure) -> String {
    if figure.timings < 2 {
        return number(figure.median);
    }
    format!("{} ({:.0} %)", number(figure.median), figure.spread_percent)
}

/// As many digits as mean something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000. => thousands(value),
        size if size >= 100. => format!("{value:.0}"),
        size if size >= 10. => format!("{value:.1}"),
        size if size >= 0.1 || size == 0. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Groups of three digits.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
