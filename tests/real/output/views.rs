//! Forms of output: combined sums, single blocks, a trace.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;

use crate::support::accounts::{assert_nothing_lost, losses};
use crate::support::ledger::{Ledger, reported_and_recorded};
use crate::support::privilege::require_bpf;

#[test]
fn combined_sums_are_exact() {
    require_bpf!();

    let (report, recorded) = reported_and_recorded("storm", &["-C", "--format", "json"]);

    assert_nothing_lost(&report);
    recorded.assert_reported(&report);
    assert!(report.stacks.iter().all(|stack| (stack.oldest_ms, stack.newest_ms) == (0, 0)));
}

#[test]
fn combined_sums_of_busy_threads_come_back_to_nothing() {
    require_bpf!();

    let (report, _) = reported_and_recorded("churn", &["-C", "0.1", "--format", "json"]);

    assert_nothing_lost(&report);
    assert_eq!((report.live.bytes, report.live.objects), (0, 0));
    assert!(report.allocated.objects > 0);
}

#[test]
fn combined_sums_are_of_what_found_room() {
    require_bpf!();
    let options = ["-C", "--max-live", "1000", "--format", "json"];

    let (report, recorded) = reported_and_recorded("hundred_thousand", &options);

    assert_eq!(report.live.objects + report.lost["live_table_full"], recorded.live().objects);
    assert_eq!(report.live.bytes + report.lost["live_table_full_bytes"], recorded.live().bytes);
}

#[test]
fn combined_sums_begin_anew_at_exec() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["-C", "--format", "json"]);
    ledger.run("malloc");
    ledger.exec();
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(report.live.objects, 0);
}

#[test]
fn blocks_are_listed_one_by_one() {
    require_bpf!();

    let (report, recorded) = reported_and_recorded("calloc", &["-a", "--format", "json"]);

    let stacks = report.stacks.iter().filter(|stack| stack.live.objects > 0);
    for stack in stacks {
        let blocks = stack.allocations.as_ref().unwrap();
        assert_eq!(blocks.len() as u64, stack.live.objects);
        assert_eq!(blocks.iter().map(|block| block.size).sum::<u64>(), stack.live.bytes);
        assert!(blocks.is_sorted_by(|one, next| one.size >= next.size));
        let oldest = blocks.iter().map(|block| block.age_ms).max();
        assert_eq!(oldest, Some(stack.oldest_ms));
        assert!(blocks.iter().all(|block| block.address.starts_with("0x")));
    }
    recorded.assert_reported(&report);
}

#[test]
fn as_many_blocks_are_listed_as_somebody_reads_and_the_others_are_counted() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["-a"]);
    ledger.run("hundred_thousand");
    let text = jjleak.interrupt().assert_done().stdout;

    assert_eq!(text.matches("\taddr = ").count(), 100);
    assert!(text.contains("\tand 99900 more allocations from this stack"), "{text}");
}

#[test]
fn nothing_is_as_old_as_an_hour() {
    require_bpf!();

    let (report, recorded) = reported_and_recorded("malloc", &["-o", "3600000", "--format", "json"]);

    assert_eq!((report.older_ms, report.live.objects), (Some(3_600_000), 0));
    assert_eq!(report.allocated, recorded.allocated());
}

/// Sums of a trace: live blocks by address, bytes and objects allocated.
fn replay(text: &str) -> (BTreeMap<String, u64>, u64, u64) {
    let (mut live, mut bytes, mut objects) = (BTreeMap::new(), 0, 0);
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once(" alloc exited, size = ") {
            let (size, address) = rest.split_once(", result = ").unwrap();
            let size: u64 = size.parse().unwrap();
            live.insert(address.to_owned(), size);
            (bytes, objects) = (bytes + size, objects + 1);
        } else if let Some((_, rest)) = line.split_once(" free entered, address = ") {
            let (address, size) = rest.split_once(", size = ").unwrap();
            assert_eq!(live.remove(address), Some(size.parse().unwrap()), "{line}");
        }
    }
    (live, bytes, objects)
}

#[test]
fn a_trace_reports_every_allocation_and_free() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["-t", "--format", "json"]);
    for scenario in ["malloc", "calloc", "realloc_grow", "realloc_fail", "realloc_zero"] {
        ledger.run(scenario);
    }
    let ended = jjleak.interrupt().assert_done();

    let (report, recorded) = (ended.report(), ledger.accounts());
    assert_nothing_lost(&report);
    let (live, bytes, objects) = replay(&ended.stdout);
    assert_eq!((bytes, objects), (recorded.allocated().bytes, recorded.allocated().objects));
    assert_eq!((live.values().sum(), live.len() as u64), (recorded.live().bytes, recorded.live().objects));
    assert_eq!(ended.reports().len(), 1, "a trace has a report at its end only");
    recorded.assert_reported(&report);
}

#[test]
fn a_trace_that_cannot_keep_up_says_how_much_it_lost_and_the_figures_stay_exact() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["-t", "--format", "json"]);
    // Nothing reads the lines meanwhile.
    jjleak.signal(Signal::SIGSTOP);
    ledger.run("hundred_thousand");
    jjleak.signal(Signal::SIGCONT);
    let ended = jjleak.interrupt().assert_done();

    let report = ended.report();
    let (_, _, told) = replay(&ended.stdout);
    assert_eq!(losses(&report).keys().copied().collect::<Vec<_>>(), ["trace_lost"]);
    assert_eq!(told + report.lost["trace_lost"], 100_000);
    ledger.accounts().assert_reported(&report);
}

#[test]
fn growth_is_what_came_since_the_report_before() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["--sort", "growth", "0.1", "--format", "json"]);
    ledger.run("hundred_thousand");
    let reports = jjleak.interrupt().assert_done().reports();

    let grown: i64 = reports.iter().flat_map(|report| &report.stacks).map(|stack| stack.growth_bytes).sum();
    assert_eq!(grown.cast_unsigned(), ledger.accounts().live().bytes);
}
