//! A script for reports of bcc's memleak can read those of jjleak.

use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// One report, as a script for bcc parses it: the number in the header, then bytes, allocations and frames of each stack, with
/// the blocks in between.
#[derive(Debug, Default)]
struct Report {
    top: usize,
    stacks: Vec<(u64, u64, Vec<String>)>,
    blocks: Vec<(u64, u64)>,
}

/// Matches `[HH:MM:SS] Top N stacks with outstanding allocations:`, `\t<bytes> bytes in <n> allocations from stack`,
/// `\t\t<frame>` and `\taddr = <hex> size = <bytes>`, like regular expressions without an anchor at the end.
fn reports(text: &str) -> Vec<Report> {
    let mut reports = Vec::<Report>::new();
    for line in text.lines() {
        if let Some(top) = header(line) {
            reports.push(Report { top, ..Report::default() });
            continue;
        }
        let Some(report) = reports.last_mut() else { continue };
        if let Some(frame) = line.strip_prefix("\t\t") {
            report.stacks.last_mut().unwrap().2.push(frame.to_owned());
        } else if let Some(block) = line.strip_prefix("\taddr = ") {
            let words: Vec<_> = block.split(' ').collect();
            assert_eq!(words[1..3], ["size", "="], "{line}");
            report.blocks.push((u64::from_str_radix(words[0], 16).unwrap(), words[3].parse().unwrap()));
        } else if let Some(stack) = line.strip_prefix('\t') {
            let words: Vec<_> = stack.split(' ').collect();
            if let [bytes, "bytes", "in", objects, "allocations", "from", "stack", ..] = words[..] {
                report.stacks.push((bytes.parse().unwrap(), objects.parse().unwrap(), Vec::new()));
            }
        }
    }
    reports
}

fn header(line: &str) -> Option<usize> {
    let (time, rest) = line.strip_prefix('[')?.split_once("] Top ")?;
    let is_time =
        time.len() == 8 && time.split(':').all(|part| part.len() == 2 && part.parse::<u8>().is_ok());
    let (top, rest) = rest.split_once(' ')?;
    (is_time && rest == "stacks with outstanding allocations:").then(|| top.parse().unwrap())
}

/// The last report of a run with these options, and the live bytes and objects according to the program.
fn report(options: &[&str]) -> (Report, u64, u64) {
    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(options);
    ledger.run("calloc");
    ledger.run("realloc_shrink");
    let text = jjleak.interrupt().assert_done().stdout;
    let live = ledger.accounts().live();
    (reports(&text).pop().unwrap(), live.bytes, live.objects)
}

fn assert_read(report: &Report, bytes: u64, objects: u64) {
    assert_eq!(report.top, report.stacks.len());
    assert_eq!(report.stacks.iter().map(|stack| stack.0).sum::<u64>(), bytes);
    assert_eq!(report.stacks.iter().map(|stack| stack.1).sum::<u64>(), objects);
    for (_, _, frames) in &report.stacks {
        assert!(frames.iter().any(|frame| frame.starts_with("site_")), "{frames:?}");
    }
}

#[test]
fn a_report_of_outstanding_allocations_is_read() {
    require_bpf!();
    let (report, bytes, objects) = report(&["--outstanding"]);
    assert_read(&report, bytes, objects);
    assert!(report.blocks.is_empty());
}

#[test]
fn a_combined_report_is_read() {
    require_bpf!();
    let (report, bytes, objects) = report(&["-C"]);
    assert_read(&report, bytes, objects);
}

#[test]
fn a_report_with_its_blocks_is_read() {
    require_bpf!();
    let (report, bytes, objects) = report(&["-a"]);
    assert_read(&report, bytes, objects);
    assert_eq!(report.blocks.iter().map(|block| block.1).sum::<u64>(), bytes);
    assert_eq!(report.blocks.len() as u64, objects);
}
