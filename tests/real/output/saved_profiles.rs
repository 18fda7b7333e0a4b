//! Saved profiles: jjleak and third-party tools read them back unchanged, and jjleak reads those of other tools; parts of
//! profiles, and comparisons of two.

use std::path::{Path, PathBuf};
use std::process::Command;

use jjleak::render::difference::json::DifferenceDocument;
use jjleak::render::json::Document;
use tempfile::TempDir;

use crate::support::accounts::{Accounts, call_site};
use crate::support::jjleak::Ended;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// A profile as saved and as reported, and the program's accounting.
struct Saved {
    folder: TempDir,
    report: Document,
    accounts: Accounts,
    pid: u32,
}

impl Saved {
    /// Profiles a scenario.
    fn of(scenario: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::start();
        ledger.set_up(scenario);
        let out = folder.path().to_str().unwrap();
        let options = [&["--format", "pprof,json", "--out", out], options].concat();
        let jjleak = ledger.attach(&options);
        ledger.run(scenario);
        jjleak.interrupt().assert_done();
        let pid = ledger.pid();
        let text = std::fs::read_to_string(folder.path().join(format!("jjleak-{pid}.json"))).unwrap();
        let report = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        Self { report, accounts: ledger.accounts(), pid, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join(format!("jjleak-{}.pb.gz", self.pid))
    }

    /// Output of `jjleak report` for it.
    fn read_back(&self, options: &[&str]) -> Ended {
        reported(&self.file(), options)
    }
}

fn reported(file: &Path, options: &[&str]) -> Ended {
    Ended::of([&["report", file.to_str().unwrap()], options].concat()).assert_done()
}

fn differences(before: &Path, after: &Path, options: &[&str]) -> Ended {
    let files = ["diff", before.to_str().unwrap(), after.to_str().unwrap()];
    Ended::of([&files[..], options].concat()).assert_done()
}

/// Output of Go's own tool for a profile.
fn go_pprof(arguments: &[&str], file: &Path) -> String {
    let output = Command::new("go").args(["tool", "pprof"]).args(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_saved_profile_is_reported_as_it_was_when_it_was_taken() {
    require_bpf!();
    for options in [&[][..], &["-a"], &["--sample-rate", "3"], &["-o", "1"], &["-C"]] {
        let saved = Saved::of("storm", options);
        let read_back = saved.read_back(&["--format", "json"]);
        assert_eq!(read_back.report(), saved.report, "with {options:?}");
        assert!(read_back.stderr.is_empty(), "{:?}", read_back.stderr);
    }
}

#[test]
fn a_saved_profile_is_the_same_report_to_the_byte_verdicts_included() {
    require_bpf!();
    for options in [&[][..], &["--threads"]] {
        let mut ledger = Ledger::start();
        // Enough snapshots for verdicts, at sufficient intervals.
        let formats = ["--settle", "0.1", "0.2", "8", "--format", "text,json,html,pprof", "--out", "."];
        let jjleak = ledger.attach(&[options, &formats].concat());
        ledger.run("storm");
        let ended = jjleak.end().assert_done();
        let file = |extension| ended.file(&format!("jjleak-{}.{extension}", ledger.pid()));
        let read_back = |format| {
            let pprof = file("pb.gz");
            let again = ["report", pprof.to_str().unwrap(), "--format", format, "--out", "/dev/stdout"];
            Ended::of(again.iter().chain(options)).assert_done().stdout
        };
        let saved = |extension| std::fs::read_to_string(file(extension)).unwrap();

        assert!(saved("txt").contains("watched for") && !saved("txt").contains("Top "), "{}", saved("txt"));
        assert_eq!(read_back("html"), saved("html"));
        assert_eq!(read_back("json").lines().last(), saved("json").lines().last());
        let pprof = file("pb.gz");
        let text = Ended::of(["report", pprof.to_str().unwrap()].iter().chain(options)).assert_done().stdout;
        assert_eq!(text, saved("txt"));
    }
}

#[test]
fn the_go_tool_reads_what_jjleak_wrote() {
    require_bpf!();
    let saved = Saved::of("storm", &[]);
    let total = |index: &str| {
        let text = go_pprof(&["-top", "-unit=B", &format!("-sample_index={index}")], &saved.file());
        let (_, rest) = text.split_once(" of ").unwrap_or_else(|| panic!("no sum in {text}"));
        rest.split([' ', 'B']).next().unwrap().parse::<u64>().unwrap()
    };
    let (live, allocated) = (saved.accounts.live(), saved.accounts.allocated());
    assert_eq!((total("inuse_space"), total("inuse_objects")), (live.bytes, live.objects));
    assert_eq!((total("alloc_space"), total("alloc_objects")), (allocated.bytes, allocated.objects));

    let traces = go_pprof(&["-traces"], &saved.file());
    assert!(saved.accounts.sites.keys().all(|site| traces.contains(site.as_str())), "{traces}");
    let comments = go_pprof(&["-comments"], &saved.file());
    assert!(comments.contains(&format!("pid={}", saved.pid)), "{comments}");
}

#[test]
fn what_the_go_tool_writes_anew_keeps_all_figures() {
    require_bpf!();
    let saved = Saved::of("storm", &[]);
    let rewritten = saved.folder.path().join("rewritten.pb.gz");
    go_pprof(&["-proto", "-output", rewritten.to_str().unwrap()], &saved.file());

    let report = reported(&rewritten, &["--format", "json"]).report();

    assert_eq!((report.live, report.allocated), (saved.report.live, saved.report.allocated));
    assert_eq!((report.process, report.lost), (saved.report.process, saved.report.lost));
}

#[test]
fn a_go_programs_heap_profile_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heap.pb.gz");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/heap.go");
    let mut go = Command::new("go");
    go.args(["run", source]).arg(&file).env("GOCACHE", folder.path().join("cache"));
    assert!(go.status().unwrap().success());

    let ended = reported(&file, &["--format", "json", "--focus", "main.leak"]);

    let report = ended.report();
    let blocks: Vec<_> = report.stacks.iter().filter(|stack| stack.live.objects == 100).collect();
    let [stack] = blocks[..] else { panic!("not one stack of 100 blocks: {report:#?}") };
    // Go rounds 1,000 up to a size class.
    assert_eq!((stack.live.bytes, stack.frames[0].symbol.as_str()), (102_400, "main.leak"));
    assert_eq!(stack.status, "foreign");
    assert!(ended.stderr[0].contains("live bytes are its inuse_space"), "{:?}", ended.stderr);
}

#[test]
fn a_part_of_a_profile_is_what_matches() {
    require_bpf!();
    let saved = Saved::of("storm", &[]);
    let (site, account) = saved.accounts.sites.iter().find(|(_, account)| account.live_objects > 0).unwrap();
    let part = |option: &str| saved.read_back(&["--format", "json", option, &format!("^{site}$")]).report();

    let (focused, ignored) = (part("--focus"), part("--ignore"));

    assert!(focused.stacks.iter().all(|stack| call_site(stack) == site));
    assert_eq!(focused.live.bytes, account.live_bytes);
    assert_eq!(ignored.live.bytes, saved.report.live.bytes - account.live_bytes);
    assert!(
        focused.shown.unwrap().contains(&format!("{} of {}", account.live_bytes, saved.report.live.bytes))
    );
    let none = saved.read_back(&["--focus", "no such function"]);
    assert!(none.stdout.contains("Nothing outstanding in what is shown."), "{}", none.stdout);
    let collapsed = saved.read_back(&["--format", "collapsed", "--out", "/dev/stdout", "--inverted"]);
    assert!(
        collapsed.stdout.lines().all(|line| line.contains("lloc") && !line.starts_with('_')),
        "{}",
        collapsed.stdout
    );
}

#[test]
fn two_runs_of_a_program_differ_by_what_it_did_in_one_of_them() {
    require_bpf!();
    let (before, after) = (Saved::of("storm", &[]), Saved::of("storm", &[]));
    let same = differences(&before.file(), &after.file(), &[]);
    assert!(same.stdout.contains("Nothing has changed: "), "{}", same.stdout);

    let other = Saved::of("depths", &[]);
    let ended = differences(&before.file(), &other.file(), &["--format", "json"]);
    let document: DifferenceDocument = serde_json::from_str(&ended.stdout).unwrap();

    let bytes = |report: &Document| i64::try_from(report.live.bytes).unwrap();
    assert_eq!(document.change.bytes, bytes(&other.report) - bytes(&before.report));
    let of = |change: &str| document.stacks.stacks.iter().filter(|stack| stack.change == change).count();
    assert!(of("gone") > 0 && of("new") > 0, "{document:#?}");
    let drawn = differences(&before.file(), &other.file(), &["--format", "svg"]);
    let svg = std::fs::read_to_string(drawn.file("jjleak.diff.svg")).unwrap();
    assert!(svg.contains("(new: +") && svg.contains("(gone: -") && svg.contains(">shrank<"));
}

#[test]
fn what_a_baseline_holds_is_left_out_of_live_reports() {
    require_bpf!();
    let baseline = Saved::of("storm", &[]);
    let file = baseline.file();
    let same = Saved::of("storm", &["--baseline", file.to_str().unwrap()]);
    assert_eq!((same.report.live.bytes, same.report.live.objects), (0, 0));
    assert!(same.report.shown.unwrap().starts_with("only allocations that are not in "));

    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(&["--format", "json", "--baseline", file.to_str().unwrap()]);
    ledger.run("storm");
    ledger.run("storm");
    let twice = jjleak.interrupt().assert_done().report();
    let accounts = ledger.accounts();
    assert_eq!(twice.live.bytes, accounts.live().bytes - baseline.report.live.bytes);
    assert_eq!(twice.allocated.bytes, accounts.allocated().bytes - baseline.report.allocated.bytes);
}

#[test]
fn a_baseline_of_the_very_process_is_refused() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::start();
    ledger.set_up("storm");
    let jjleak = ledger.attach(&["--format", "pprof", "--out", folder.path().to_str().unwrap()]);
    ledger.run("storm");
    jjleak.interrupt().assert_done();
    let pid = ledger.pid().to_string();
    let file = folder.path().join(format!("jjleak-{pid}.pb.gz"));
    Ended::of(["-p", &pid, "--baseline", file.to_str().unwrap()]).assert_failed(
        2,
        "is a profile of this same process",
        "omit --baseline",
    );
}

#[test]
fn a_profile_that_was_recorded_without_threads_is_not_shown_by_threads() {
    require_bpf!();
    let saved = Saved::of("malloc", &[]);
    Ended::of(["report", saved.file().to_str().unwrap(), "--threads"]).assert_failed(
        2,
        "does not record which thread allocated",
        "record the profile with --threads",
    );
}

#[test]
fn files_that_are_no_profiles_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::write(&text, "no profile").unwrap();
    let text = text.to_str().unwrap();
    Ended::of(["report", text]).assert_failed(2, "not a pprof profile", "--format pprof");
    Ended::of(["report", "/no/such"]).assert_failed(1, "cannot read /no/such", "readable file");
    Ended::of(["diff", text, text, "--format", "pprof"]).assert_failed(2, "--format pprof", "choose");
}
