//! Verdicts on a program with three leaks, two caches and heavy churn, which knows by how much each leak grows.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use jjleak::render::json::{Document, VerdictDocument};

use crate::support::bounded::SOON;
use crate::support::compile;
use crate::support::jjleak::Jjleak;
use crate::support::lines::Lines;
use crate::support::privilege::{is_long, record, require_bpf};
use crate::support::process::Process;

/// Longer than any run takes.
const WHOLE_RUN: Duration = Duration::from_secs(300);

/// Rounds of the program, in milliseconds, and how old allocations have to be to be judged, in seconds.
struct Run {
    rounds: u32,
    every_ms: u32,
    /// Threads that end in each round.
    threads: u32,
    settle: &'static str,
    interval: &'static str,
}

impl Run {
    /// What jjleak says in text and JSON, and what the program has leaked, in bytes a second, by function.
    fn watch(&self) -> (String, Document, BTreeMap<String, f64>) {
        let mut program =
            Process::spawn(Command::new(compile::verdicts()).stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut said = Lines::of("the leaking program", program.stdout.take().unwrap());
        assert_eq!(said.next(SOON), "ready");
        let pid = program.id().to_string();
        let jjleak = Jjleak::attached([
            "-p",
            &pid,
            self.interval,
            "--settle",
            self.settle,
            "--format",
            "text,json",
            "--out",
            "./",
        ]);
        let mut stdin = program.stdin.take().unwrap();
        writeln!(stdin, "threads {}", self.threads).unwrap();
        writeln!(stdin, "pace {} {}", self.rounds, self.every_ms).unwrap();
        let (mut leaked, mut seconds) = (BTreeMap::new(), 1.);
        loop {
            let line = said.next(WHOLE_RUN);
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["leaked", bytes, "bytes", .., function] => {
                    leaked.insert(function.to_owned(), bytes.parse::<f64>().unwrap() / seconds);
                }
                ["lasted", lasted, "seconds"] => seconds = lasted.parse().unwrap(),
                _ => break,
            }
        }
        let ended = jjleak.interrupt().assert_done();
        let json = std::fs::read_to_string(ended.file(&format!("jjleak-{pid}.json"))).unwrap();
        let text = std::fs::read_to_string(ended.file(&format!("jjleak-{pid}.txt"))).unwrap();
        (text, serde_json::from_str(json.lines().last().unwrap()).unwrap(), leaked)
    }
}

/// The verdicts of a kind, by function.
fn of_kind<'a>(report: &'a Document, kind: &str) -> BTreeMap<&'a str, &'a VerdictDocument> {
    let of_kind = report.verdicts.iter().filter(|verdict| verdict.kind == kind);
    of_kind.map(|verdict| (verdict.call_site.split(' ').next().unwrap(), verdict)).collect()
}

fn assert_the_three_leak(text: &str, report: &Document) {
    let leaking: Vec<_> = of_kind(report, "leaking").into_keys().collect();
    assert_eq!(leaking, ["forget_handle", "forget_message", "forget_string"], "{text}");
    assert!(of_kind(report, "growing").is_empty(), "{text}");
    let first = text.lines().next().unwrap();
    assert!(first.contains(": 3 call sites leak, +"), "{text}");
    assert!(text.lines().nth(1).unwrap().starts_with("leaking: forget_message [verdicts]"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("Look at forget_message [verdicts]"), "{text}");
    assert!(!text.contains("stacks with outstanding allocations:"), "{text}");
}

#[test]
fn three_leaks_beside_two_caches_and_churn_are_told_and_only_they() {
    require_bpf!();
    // The caches are full after a third of the time.
    let run = Run { rounds: 600, every_ms: 12, threads: 0, settle: "0.4", interval: "0.2" };
    let (text, report, leaked) = run.watch();
    assert_the_three_leak(&text, &report);
    // However even time went by: what they leak is to each other as what has been leaked.
    let leaking = of_kind(&report, "leaking");
    let pace = |function: &str| leaking[function].rate.unwrap().bytes_per_s / leaked[function];
    for function in leaked.keys() {
        let ratio = pace(function) / pace("forget_message");
        assert!((0.95..1.05).contains(&ratio), "{function}: {ratio}\n{text}");
    }
}

#[test]
fn leaks_are_told_also_where_threads_end_all_the_time() {
    require_bpf!();
    let run = Run { rounds: 600, every_ms: 12, threads: 1, settle: "0.4", interval: "0.2" };
    let (text, report, _) = run.watch();
    // Far more than the leaks keep: a full cache would be in the place of what leaks, for all that is known.
    let by_library = report.notes["freed_by_c_library"];
    assert!(by_library > 20_000 && report.unknown_frees - by_library < 1000, "{text}");
    assert_the_three_leak(&text, &report);
}

#[test]
fn in_two_minutes_the_rates_of_leaks_are_told_within_five_per_cent() {
    require_bpf!();
    if !is_long() {
        record(
            "verdicts::in_two_minutes_the_rates_of_leaks_are_told_within_five_per_cent",
            "takes two minutes (--long)",
        );
        return;
    }
    let run = Run { rounds: 1250, every_ms: 100, threads: 0, settle: "15", interval: "5" };
    let (text, report, leaked) = run.watch();
    assert_the_three_leak(&text, &report);
    for (function, verdict) in of_kind(&report, "leaking") {
        let ratio = verdict.rate.unwrap().bytes_per_s / leaked[function];
        assert!((0.95..1.05).contains(&ratio), "{function}: {ratio}\n{text}");
    }
}
