//! Verdicts on a program with three leaks, two caches and heavy churn, which records the growth of each leak.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use jjleak::render::json::{Document, VerdictDocument};

use crate::support::bounded::SOON;
use crate::support::compile;
use crate::support::jjleak::Jjleak;
use crate::support::lines::Lines;
use crate::support::privilege::{require_bpf, require_time};
use crate::support::process::Process;

/// Longer than any run takes.
const WHOLE_RUN: Duration = Duration::from_secs(300);

/// Settings of a run: rounds of the program, in milliseconds, and the minimum age of judged allocations, in seconds.
struct Run {
    rounds: u32,
    every_ms: u32,
    /// Number of threads that end in each round.
    threads: u32,
    settle: &'static str,
    interval: &'static str,
}

impl Run {
    /// Returns jjleak's text and JSON reports, and the leaks of the program in bytes per second, by function.
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

/// The verdicts of one kind, by function.
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
    // The second line says what resident memory grows by, if it does.
    let mut rest = text.lines().skip(1).skip_while(|line| line.starts_with("RSS +"));
    assert!(rest.next().unwrap().starts_with("leaking: forget_message [verdicts]"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("Look at forget_message [verdicts]"), "{text}");
    assert!(!text.contains("stacks with outstanding allocations:"), "{text}");
}

#[test]
fn three_leaks_beside_two_caches_and_churn_are_reported_and_only_they() {
    require_bpf!();
    // The caches are full after a third of the time.
    let run = Run { rounds: 600, every_ms: 12, threads: 0, settle: "0.4", interval: "0.2" };
    let (text, report, leaked) = run.watch();
    assert_the_three_leak(&text, &report);
    // Independent of the pace: the ratios of the leaks match the program's record.
    let leaking = of_kind(&report, "leaking");
    let pace = |function: &str| leaking[function].rate.unwrap().bytes_per_s / leaked[function];
    for function in leaked.keys() {
        let ratio = pace(function) / pace("forget_message");
        assert!((0.95..1.05).contains(&ratio), "{function}: {ratio}\n{text}");
    }
}

#[test]
fn leaks_are_reported_also_where_threads_end_all_the_time() {
    require_bpf!();
    let run = Run { rounds: 600, every_ms: 12, threads: 1, settle: "0.4", interval: "0.2" };
    let (text, report, _) = run.watch();
    // Far more than the leaks keep: it cannot be excluded that a full cache replaces the leaking blocks.
    let by_library = report.notes["freed_by_c_library"];
    assert!(by_library > 20_000 && report.unknown_frees - by_library < 1000, "{text}");
    assert_the_three_leak(&text, &report);
}

/// Reports on a program that executes `order` with files, folders and addresses that the C library allocates.
fn of_what_the_library_allocates(order: &str) -> (String, Document) {
    let mut program =
        Process::spawn(Command::new(compile::kept_by_library()).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("the program", program.stdout.take().unwrap());
    assert_eq!(said.next(SOON), "ready");
    let pid = program.id().to_string();
    let formats = ["--format", "text,json", "--out", "./"];
    let jjleak = Jjleak::attached([&["-p", &pid, "0.2", "--settle", "0.4"][..], &formats].concat());
    let mut stdin = program.stdin.take().unwrap();
    writeln!(stdin, "{order}").unwrap();
    assert_eq!(said.next(WHOLE_RUN), "done");
    let ended = jjleak.interrupt().assert_done();
    let json = std::fs::read_to_string(ended.file(&format!("jjleak-{pid}.json"))).unwrap();
    let text = std::fs::read_to_string(ended.file(&format!("jjleak-{pid}.txt"))).unwrap();
    (text, serde_json::from_str(json.lines().last().unwrap()).unwrap())
}

/// The functions of the program that make the C library allocate.
const OF_LIBRARY: [&str; 3] = ["find_address", "open_file", "open_folder"];

#[test]
fn what_takes_the_place_of_old_objects_of_the_c_librarys_is_not_called_a_leak() {
    require_bpf!();
    // Fewer than the program had opened before: none of the new ones is closed.
    let rounds = 600;
    let (text, report) = of_what_the_library_allocates(&format!("replace {rounds} 12"));

    assert!(of_kind(&report, "leaking").is_empty(), "{text}");
    let growing = of_kind(&report, "growing");
    assert!(OF_LIBRARY.iter().all(|function| growing.contains_key(function)), "{text}");
    assert!(text.contains("blocks from before jjleak attached are freed"), "{text}");
    // Frees for threads that end are distinguished from closed files, folders, and addresses.
    let of_program = report.unknown_frees - report.notes["freed_by_c_library"];
    let freed = report.unknown_frees;
    assert!((3 * rounds..4 * rounds).contains(&of_program), "{of_program} of {freed}\n{text}");
}

#[test]
fn what_the_c_library_allocates_and_nobody_closes_is_a_leak_of_its_caller() {
    require_bpf!();
    let (text, report) = of_what_the_library_allocates("keep 600 12");
    let leaking = of_kind(&report, "leaking");
    assert_eq!(leaking.into_keys().collect::<Vec<_>>(), OF_LIBRARY, "{text}");
}

/// Correct verdicts of a program's call sites, by function.
type Labels = Vec<(&'static str, &'static [&'static str])>;

/// Verdicts on call sites that hold memory and do not leak: for any call site without a label.
const HARMLESS: &[&str] = &["cache_like", "start_up", "steady_churn"];

fn labels_of_leaks_and_caches() -> Labels {
    let leaks = ["forget_handle", "forget_message", "forget_string"].map(|leak| (leak, &["leaking"][..]));
    let others: [(_, &[_]); 3] = [
        ("warm_cache", &["cache_like", "start_up"]),
        ("recent_cache", &["cache_like", "steady_churn"]),
        ("churn", &["steady_churn"]),
    ];
    [&leaks[..], &others].concat()
}

/// The label of each call site of a report, and the verdict on it.
fn judged(report: &Document, labels: &Labels) -> Vec<(String, &'static str, String)> {
    let function = |verdict: &VerdictDocument| verdict.call_site.split(' ').next().unwrap().to_owned();
    let is_known = |site: &str| report.verdicts.iter().any(|verdict| function(verdict) == site);
    let found = report.verdicts.iter().map(|verdict| (function(verdict), verdict.kind.clone()));
    // There is no verdict on a site that has never held memory.
    let missing = labels.iter().filter(|(site, _)| !is_known(site));
    let missing = missing.map(|(site, _)| ((*site).to_owned(), "steady_churn".to_owned()));
    let label = |(site, verdict): (String, String)| {
        let may_be =
            labels.iter().find(|(labelled, _)| *labelled == site).map_or(HARMLESS, |(_, may_be)| may_be);
        // If several verdicts are correct, any of them is accepted.
        let is = may_be.iter().find(|kind| **kind == verdict).unwrap_or(&may_be[0]);
        (site, *is, verdict)
    };
    found.chain(missing).map(label).collect()
}

#[test]
fn verdicts_on_labelled_programs_are_precise_and_complete() {
    require_bpf!();
    let leaks_and_caches = |threads: u32| {
        let run = Run { rounds: 600, every_ms: 12, threads, settle: "0.4", interval: "0.2" };
        (run.watch().1, labels_of_leaks_and_caches())
    };
    let of_library = |order: &str, kind: &'static [&'static str]| {
        (of_what_the_library_allocates(order).1, OF_LIBRARY.map(|site| (site, kind)).to_vec())
    };
    let runs: [(_, &(dyn Fn() -> (Document, Labels) + Sync)); 4] = [
        ("leaks, caches and churn", &|| leaks_and_caches(0)),
        ("the same where threads end", &|| leaks_and_caches(1)),
        ("old files are replaced", &|| of_library("replace 600 12", &["growing"])),
        ("files are never closed", &|| of_library("keep 600 12", &["leaking"])),
    ];
    let all: Vec<_> = thread::scope(|scope| {
        let runs = runs.map(|(name, run)| (name, scope.spawn(run)));
        runs.into_iter()
            .flat_map(|(name, run)| {
                let (report, labels) = run.join().unwrap();
                judged(&report, &labels).into_iter().map(move |judged| (name, judged))
            })
            .collect()
    });

    println!("{:<28}{:<20}{:<14}judged", "program", "call site", "is");
    for (program, (site, is, taken)) in &all {
        println!("{program:<28}{site:<20}{is:<14}{taken}");
    }
    println!("\n{:<16}{:>6}{:>12}{:>9}", "verdict", "sites", "precision", "recall");
    for verdict in ["leaking", "growing", "cache_like", "start_up", "steady_churn"] {
        let count = |which: &dyn Fn(&str, &str) -> bool| {
            f64::from(
                u32::try_from(all.iter().filter(|(_, (_, is, taken))| which(is, taken)).count()).unwrap(),
            )
        };
        let right = count(&|is, taken| is == verdict && taken == verdict);
        let (sites, taken) = (count(&|is, _| is == verdict), count(&|_, taken| taken == verdict));
        let (precision, recall) = (right / taken.max(1.), right / sites.max(1.));
        println!("{verdict:<16}{sites:>6}{precision:>12.3}{recall:>9.3}");
        assert!(taken == 0. || precision >= 0.95, "{verdict} is not: {all:#?}");
        assert!(sites == 0. || recall >= 0.95, "{verdict} is missed: {all:#?}");
    }
}

/// The number behind these words, and its unit.
fn figure_after<'text>(text: &'text str, words: &str) -> (f64, &'text str) {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("no {words:?}:\n{text}"));
    let mut figure = rest.split([' ', '/', ':']);
    (figure.next().unwrap().parse().unwrap(), figure.next().unwrap())
}

/// A figure with its unit in a text, in MiB.
fn mebibytes_after(text: &str, words: &str) -> f64 {
    let (number, unit) = figure_after(text, words);
    match unit {
        "GiB" => number * 1024.,
        "MiB" => number,
        unit => panic!("{unit}: {text}"),
    }
}

#[test]
fn the_forecast_is_by_resident_memory_and_what_leaks_is_one_finding() {
    require_bpf!();
    let mut program =
        Process::spawn(Command::new(compile::paced()).stdin(Stdio::piped()).stdout(Stdio::piped()));
    assert_eq!(Lines::of("the paced program", program.stdout.take().unwrap()).next(SOON), "ready");
    // One site leaks 12 MB/s, one keeps 1 MB, one frees all.
    writeln!(program.stdin.as_mut().unwrap(), "mixed 60000 12 3 3 200").unwrap();
    let pid = program.id().to_string();
    let options = ["1", "15", "--settle", "1", "--format", "text", "--out", "./"];
    let ended = Jjleak::attached([&["-p", &pid][..], &options].concat()).end().assert_done();
    let text = std::fs::read_to_string(ended.file(&format!("jjleak-{pid}.txt"))).unwrap();

    assert!(text.lines().count() <= 25, "{text}");
    assert_eq!(text.matches("\nleaking: ").count(), 1, "{text}");
    assert!(text.contains("\nleaking: leak [paced] "), "{text}");
    // On a busy machine, 15 reports take longer.
    let (_, since) = text.split_once("\nRSS +").unwrap();
    let (seconds, unit) = figure_after(since, " in ");
    assert_eq!(unit, "s", "{text}");
    let grown = mebibytes_after(&text, "\nRSS +") * 60. / seconds;
    let forecast = mebibytes_after(&text, "resident memory grows by ");
    assert!((0.8..1.25).contains(&(forecast / grown)), "{forecast} of {grown}\n{text}");
}

#[test]
fn in_two_minutes_the_rates_of_leaks_are_reported_within_five_per_cent() {
    require_bpf!();
    require_time!("takes two minutes (--long)");
    let run = Run { rounds: 1250, every_ms: 100, threads: 0, settle: "15", interval: "5" };
    let (text, report, leaked) = run.watch();
    assert_the_three_leak(&text, &report);
    for (function, verdict) in of_kind(&report, "leaking") {
        let ratio = verdict.rate.unwrap().bytes_per_s / leaked[function];
        assert!((0.95..1.05).contains(&ratio), "{function}: {ratio}\n{text}");
    }
}
