//! `jjleak memory`: rows add up, and the cause of growth is named.

use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};

use serde_json::Value;

use super::diagnoses::grow;
use crate::support::bounded::SOON;
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// Scans a process twice.
fn scanned(pid: u32) -> Vec<Value> {
    let ended = Ended::of(["memory", "-p", &pid.to_string(), "2", "1", "--format", "json"]).assert_done();
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Starts the program that leaks at a steady pace for so many milliseconds. Its input must stay open.
fn leaking(milliseconds: u32) -> (Process, ChildStdin) {
    leaking_in(compile::paced(), milliseconds)
}

fn leaking_in(program: &Path, milliseconds: u32) -> (Process, ChildStdin) {
    let mut command = Command::new(program);
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("the paced program", process.stdout.take().unwrap());
    let mut stdin = process.stdin.take().unwrap();
    assert_eq!(said.next(SOON), "ready");
    writeln!(stdin, "run {milliseconds}").unwrap();
    (process, stdin)
}

fn sum_of_rows(report: &Value) -> u64 {
    report["rows"].as_array().unwrap().iter().map(|row| row["resident_bytes"].as_u64().unwrap()).sum()
}

#[test]
fn a_native_leak_is_the_cause_of_growth() {
    let (process, _stdin) = leaking(6_000);

    let reports = scanned(process.id());

    let [first, last] = &reports[..] else { panic!("two scans: {reports:?}") };
    for report in [first, last] {
        assert_eq!(sum_of_rows(report), report["rss_bytes"].as_u64().unwrap());
        assert_eq!(report["unknown"], Value::Array(Vec::new()), "{report}");
    }
    assert_eq!(first["diagnosis"], Value::Array(Vec::new()));
    let cause = &last["diagnosis"][0];
    assert_eq!(cause["cause"], "native_leak", "{last}");
    assert!(cause["confidence"].as_f64().unwrap() > 0.9, "{cause}");
    assert_eq!(cause["to_do"], format!("jjleak -p {}", process.id()));
}

/// Starts a program that answers each line with one, and asks it once.
fn answering(command: &mut Command) -> (Process, ChildStdin, Lines) {
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("the program", process.stdout.take().unwrap());
    let mut stdin = process.stdin.take().unwrap();
    assert_eq!(said.next(SOON), "ready");
    writeln!(stdin, "more").unwrap();
    said.next(SOON);
    (process, stdin, said)
}

/// Scans a process, lets it allocate more, and scans it again; also returns its answer.
fn scanned_around(process: &Process, stdin: &mut ChildStdin, said: &mut Lines) -> ([Value; 2], String) {
    let mut command = Command::new(PROGRAM);
    command.args(["memory", "-p", &process.id().to_string(), "2", "1", "--format", "json"]);
    let mut jjleak = Process::spawn(command.stdout(Stdio::piped()));
    let mut reports = Lines::of("jjleak memory", jjleak.stdout.take().unwrap());
    let mut next = || serde_json::from_str(&reports.next(SOON)).unwrap();
    let first = next();
    writeln!(stdin, "more").unwrap();
    let answer = said.next(SOON);
    ([first, next()], answer)
}

/// Resident bytes of a row.
fn row(report: &Value, kind: &str, name: &str) -> u64 {
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["kind"] == kind && row["name"] == name);
    row.map_or(0, |row| row["resident_bytes"].as_u64().unwrap())
}

#[test]
fn large_blocks_between_the_memory_of_others_are_mallocs() {
    // Python maps areas for its own objects beside them, and the kernel merges all in one mapping.
    let script = "import sys\nkept = []\nprint('ready', flush=True)\nfor line in sys.stdin:\n    \
                  for n in range(50):\n        kept.append(bytearray(1_000_000))\n        \
                  kept.append([str(i) * 3 for i in range(3000 * (n % 7))])\n    print('done', flush=True)";
    let (process, mut stdin, mut said) = answering(Command::new("/usr/bin/python3").args(["-c", script]));

    let ([first, last], _) = scanned_around(&process, &mut stdin, &mut said);

    for (report, blocks) in [(&first, 50), (&last, 100)] {
        assert_eq!(report["unknown"], Value::Array(Vec::new()), "{report}");
        let live = row(report, "malloc_live", "");
        assert!((blocks * 1_000_000..blocks * 1_150_000).contains(&live), "{report}");
    }
    assert_eq!(last["diagnosis"][0]["cause"], "native_leak", "{last}");
}

#[test]
fn the_heap_of_a_go_program_is_what_its_runtime_says() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/stacks/heap_size.go");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let program = folder.join("go-heap-size");
    let mut go = Command::new("go");
    go.args(["build", "-ldflags", "-s -w", "-o"]).arg(&program).arg(source);
    go.env("GOTOOLCHAIN", "local").env("GOCACHE", folder.join("go-cache")).env("GOFLAGS", "");
    assert!(go.status().unwrap().success());
    let (process, mut stdin, mut said) = answering(&mut Command::new(program));

    let ([first, last], answer) = scanned_around(&process, &mut stdin, &mut said);

    let [kept, reserved] = answer.split(' ').map(|bytes| bytes.parse().unwrap()).collect::<Vec<u64>>()[..]
    else {
        panic!("{answer}")
    };
    // What was touched, and what the runtime has.
    let heap = row(&last, "anonymous", "Go heap");
    assert!((kept..=reserved + (1 << 20)).contains(&heap), "{kept} {heap} {reserved}\n{last}");
    assert_eq!(sum_of_rows(&last), last["rss_bytes"].as_u64().unwrap());
    let stacks = |report| row(report, "thread_stacks", "native threads");
    assert!(stacks(&first) < 1 << 20 && stacks(&last) < 1 << 20, "{last}");
    let cause = &last["diagnosis"][0];
    assert_eq!(cause["cause"], "own_pool", "{last}");
    assert!(cause["to_do"].as_str().unwrap().contains("/debug/pprof/heap"), "{cause}");
}

/// Its heap is never the same for as long as a scan takes, and what is at the top is freed and allocated again.
#[test]
fn a_native_leak_is_the_cause_of_growth_in_a_program_that_allocates_all_the_time() {
    let mut command = Command::new(grow());
    let mut process =
        Process::spawn(command.args(["busy", "1000"]).stdin(Stdio::piped()).stdout(Stdio::piped()));
    Lines::of("the program", process.stdout.take().unwrap()).skip_to("ready", SOON);
    writeln!(process.stdin.as_mut().unwrap()).unwrap();

    let reports = scanned(process.id());

    let [_, last] = &reports[..] else { panic!("two scans: {reports:?}") };
    assert_eq!(last["unknown"], Value::Array(Vec::new()), "{last}");
    assert_eq!(last["diagnosis"][0]["cause"], "native_leak", "{last}");
}

#[test]
fn a_native_leak_is_the_cause_of_growth_in_a_static_program() {
    let (process, _stdin) = leaking_in(compile::static_paced(), 6_000);

    let reports = scanned(process.id());

    assert_eq!(reports[1]["diagnosis"][0]["cause"], "native_leak", "{}", reports[1]);
}

#[test]
fn a_report_on_allocations_says_how_much_of_the_growth_they_are() {
    require_bpf!();
    let (process, _stdin) = leaking(10_000);

    let ended = Ended::of(["-p", &process.id().to_string(), "3", "1"]).assert_done();

    let growth = ended.stdout.lines().nth(1).unwrap();
    assert!(growth.starts_with("RSS +"), "{}", ended.stdout);
    let percent = growth.strip_suffix(" % of it").and_then(|rest| rest.rsplit(' ').next());
    let percent = percent.unwrap_or_else(|| panic!("{growth}"));
    // Chunks have headers, and the last page of the heap is not full.
    assert!((80..=100).contains(&percent.parse::<u32>().unwrap()), "{growth}");
}

#[test]
fn a_process_that_waits_does_not_grow() {
    let process = Process::spawn(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()));

    let reports = scanned(process.id());

    // Its control group is that of other tests, which read and write files.
    let causes = reports[1]["diagnosis"].as_array().unwrap().iter().map(|it| it["cause"].as_str().unwrap());
    assert!(
        causes.into_iter().all(|cause| ["none", "page_cache", "kernel"].contains(&cause)),
        "{}",
        reports[1]
    );
}

#[test]
fn a_process_that_does_not_exist_is_an_error() {
    let ended = Ended::of(["memory", "-p", "4194303"]);
    assert_eq!(ended.status.code(), Some(4), "{:#?}", ended.stderr);
}

#[test]
fn pages_that_are_mapped_several_times_are_no_more_memory() {
    let mut command = Command::new(compile::touched());
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("the touching program", process.stdout.take().unwrap());
    let mut stdin = process.stdin.take().unwrap();
    assert_eq!(said.next(SOON), "ready");
    let mut command = Command::new(PROGRAM);
    command.args(["memory", "-p", &process.id().to_string(), "2", "1", "--format", "json"]);
    let mut jjleak = Process::spawn(command.stdout(Stdio::piped()));
    let mut reports = Lines::of("jjleak memory", jjleak.stdout.take().unwrap());
    reports.next(SOON);

    writeln!(stdin, "views 2000").unwrap();

    let last: Value = serde_json::from_str(&reports.next(SOON)).unwrap();
    let causes: Vec<_> = last["diagnosis"].as_array().unwrap().iter().map(|it| &it["cause"]).collect();
    assert_eq!(causes[..2], ["shared_memory", "mapped_again"], "{last}");
}

#[test]
fn processes_of_a_name_are_lines_of_a_table_and_a_page() {
    let (process, _stdin) = leaking(8_000);
    let name = compile::paced().to_str().unwrap();
    let with_format =
        |format| Ended::of(["memory", "--name", name, "2", "1", "--format", format]).assert_done().stdout;

    let (table, page) = (with_format("text"), with_format("html"));

    // The second table is the last part; other tests run the same program.
    let (_, last) = table.rsplit_once("processes: RSS ").unwrap();
    let pid = format!(" {} ", process.id());
    let line = last.lines().find(|line| line.contains(&pid)).unwrap_or_else(|| panic!("{table}"));
    assert!(line.contains('+') && line.contains("cause: native memory"), "{table}");
    assert!(page.starts_with("<!DOCTYPE html>") && page.matches("<!DOCTYPE").count() == 1, "{page}");
    assert!(page.contains(&process.id().to_string()) && page.contains("cause: native memory"), "{page}");
}

#[test]
fn the_next_step_follows_the_diagnosis_if_it_is_asked_for() {
    require_bpf!();
    let (process, _stdin) = leaking(12_000);
    let pid = process.id().to_string();
    let mut command = Command::new(PROGRAM);
    command.args(["memory", "-p", &pid, "2", "1", "--diagnose"]).stdout(Stdio::piped());
    let mut jjleak = Jjleak::start(command);
    let running = jjleak.wait_for("jjleak: running");
    let ended = jjleak.until_attached().interrupt().assert_done();
    assert_eq!(running, format!("jjleak: running: jjleak -p {pid}"));
    assert!(
        ended.stdout.contains("cause: native memory") && ended.stdout.contains("holds most"),
        "{}",
        ended.stdout
    );
}

#[test]
fn what_malloc_has_and_what_a_trim_gives_back_are_as_glibc_says() {
    for holes in ["1", "5", "9"] {
        let mut program = Command::new(compile::trim());
        let mut process = Process::spawn(program.arg(holes).stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut said = Lines::of("the program with free memory", process.stdout.take().unwrap());
        let ready = said.next(SOON);
        let [in_use, free, _] = numbers(&ready)[..] else { panic!("{ready}") };

        let ended = Ended::of(["memory", "-p", &process.id().to_string(), "--format", "json"]).assert_done();
        writeln!(process.stdin.as_mut().unwrap()).unwrap();
        let trimmed = numbers(&said.next(SOON))[0];

        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        let detail = |kind: &str, name: &str| {
            let rows = report["rows"].as_array().unwrap();
            let row = rows.iter().find(|row| row["kind"] == kind).unwrap_or_else(|| panic!("{report}"));
            row["details"][name].as_u64().unwrap()
        };
        // mallinfo2(3) counts what threads keep in their caches as in use.
        let live = detail("malloc_live", "live_bytes") + detail("malloc_live", "cached_bytes");
        assert_eq!(live, in_use, "{holes} holes");
        let trimmable = detail("malloc_free", "trimmable_bytes");
        assert!(trimmable <= free, "{holes} holes: {trimmable} of {free}");
        assert!(trimmable.abs_diff(trimmed) <= trimmed / 100, "{holes} holes: {trimmable}, then {trimmed}");
    }
}

/// The numbers of a line.
fn numbers(line: &str) -> Vec<u64> {
    line.split(' ').filter_map(|word| word.parse().ok()).collect()
}
