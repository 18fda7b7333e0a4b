//! Threads that allocate concurrently, free each other's blocks, and end.

use std::collections::{BTreeMap, BTreeSet};

use jjleak::render::json::{Document, ThreadDocument};

use crate::support::accounts::{Account, Accounts, assert_nothing_lost, call_site};
use crate::support::jjleak::Ended;
use crate::support::ledger::{Ledger, reported_and_recorded};
use crate::support::privilege::require_bpf;

#[test]
fn ten_million_operations_of_four_threads_are_counted_to_the_byte() {
    require_bpf!();

    // Reports are taken throughout.
    let (report, recorded) = reported_and_recorded("threads", &["0.2", "--format", "json"]);

    assert_nothing_lost(&report);
    recorded.assert_reported(&report);
    assert!(report.allocated.objects == 5_000_000 && report.live.objects == 5_000);
}

#[test]
fn nothing_is_torn_when_jjleak_attaches_to_busy_threads() {
    require_bpf!();

    // They free everything in the end, so that a block that is still live is one whose free was missed.
    let (report, _) = reported_and_recorded("churn", &["--format", "json"]);

    assert_nothing_lost(&report);
    assert_eq!((report.live.bytes, report.live.objects), (0, 0));
    assert!(report.allocated.objects > 0);
}

#[test]
fn blocks_of_threads_that_ended_are_still_counted() {
    require_bpf!();

    let (report, recorded) = reported_and_recorded("ending_threads", &["--format", "json"]);

    assert_nothing_lost(&report);
    // At a thread's end the C library passes its cache of free blocks to `free`: the only frees that the program does not
    // account.
    assert!(report.unknown_frees > 0);
    assert_eq!(report.notes["freed_by_c_library"], report.unknown_frees);
    assert_eq!(Accounts { unknown_frees: 0, ..Accounts::of(&report) }, recorded);
}

/// Allocations of each thread in the scenario `ledgers`, according to a report.
fn by_thread(report: &Document) -> BTreeMap<ThreadDocument, Account> {
    let mut threads = BTreeMap::<_, Account>::new();
    for stack in report.stacks.iter().filter(|stack| call_site(stack) == "site_thread") {
        let thread = stack.thread.clone().expect("a stack without its thread");
        threads.entry(thread).or_default().add(stack);
    }
    threads
}

#[test]
fn what_each_thread_allocated_is_reported_to_the_byte_also_of_those_that_have_ended() {
    require_bpf!();
    for options in [&["--threads"][..], &["--threads", "-C"]] {
        let mut ledger = Ledger::start();
        ledger.set_up("ledgers");
        let jjleak = ledger.attach(&[options, &["--format", "json"]].concat());
        ledger.run("ledgers");
        let report = jjleak.interrupt().assert_done().report();

        assert_nothing_lost(&report);
        assert_eq!(by_thread(&report), ledger.thread_accounts(), "with {options:?}");
        assert_eq!(Accounts::of(&report).sites["site_thread"], ledger.accounts().sites["site_thread"]);
    }
}

#[test]
fn threads_make_no_difference_unless_they_are_asked_for() {
    require_bpf!();
    let mut ledger = Ledger::start();
    ledger.set_up("ledgers");
    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("ledgers");
    let report = jjleak.interrupt().assert_done().report();
    assert!(report.stacks.iter().all(|stack| stack.thread.is_none()) && !report.threads);
    assert_eq!(Accounts::of(&report).sites["site_thread"], ledger.accounts().sites["site_thread"]);
}

#[test]
fn every_format_shows_the_threads_and_a_saved_profile_keeps_them() {
    require_bpf!();
    let mut ledger = Ledger::start();
    ledger.set_up("ledgers");
    let formats = ["--format", "text,json,svg,html,pprof,collapsed", "--out", "."];
    let jjleak = ledger.attach(&[&["--threads", "--outstanding"], &formats[..]].concat());
    ledger.run("ledgers");
    let ended = jjleak.interrupt().assert_done();
    let accounts = ledger.thread_accounts();
    let file = |extension: &str| ended.file(&format!("jjleak-{}.{extension}", ledger.pid()));
    let text = |extension: &str| std::fs::read_to_string(file(extension)).unwrap();
    let labels: BTreeSet<_> =
        accounts.keys().map(|thread| format!("{} (tid {})", thread.name, thread.id)).collect();

    for extension in ["txt", "svg", "html", "collapsed"] {
        for label in &labels {
            // A text lists the stacks with the most live bytes.
            assert!(
                extension == "txt" && !label.starts_with("lasting") || text(extension).contains(label),
                "{label}"
            );
        }
    }
    let mut sums = BTreeMap::<String, u64>::new();
    for line in text("collapsed").lines().filter(|line| line.contains("site_thread;")) {
        let (stack, bytes) = line.rsplit_once(' ').unwrap();
        *sums.entry(stack.split(';').next().unwrap().to_owned()).or_default() +=
            bytes.parse::<u64>().unwrap();
    }
    let recorded = accounts
        .iter()
        .map(|(thread, account)| (format!("{} (tid {})", thread.name, thread.id), account.live_bytes));
    assert_eq!(sums, recorded.collect());

    let pprof = file("pb.gz");
    let pprof = pprof.to_str().unwrap();
    let read_back = Ended::of(["report", pprof, "--threads", "--format", "json"]).assert_done().stdout;
    assert_eq!(text("json").lines().last(), read_back.lines().last());
    let folded = Ended::of(["report", pprof, "--format", "json"]).assert_done().report();
    assert!(folded.stacks.iter().all(|stack| stack.thread.is_none()));
    assert_eq!(folded.live, ended_report(&read_back).live);
}

fn ended_report(json: &str) -> Document {
    serde_json::from_str(json.trim_end()).unwrap()
}
