//! Several processes at once: the selected ones, their children, and those that start while jjleak runs. Each is accounted
//! separately.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use jjleak::render::json::Document;

use crate::support::accounts::{Accounts, assert_nothing_lost, losses};
use crate::support::bounded::{self, LONG, SOON};
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// The report must equal the accounting of a forked child: its frees of the parent's blocks count as inherited.
fn assert_reported_of_child(accounts: &Accounts, report: &Document) {
    let of_child = Accounts { unknown_frees: 0, ..accounts.clone() };
    of_child.assert_reported(report);
    assert_eq!(report.notes["inherited_free"], accounts.unknown_frees);
    assert_nothing_lost(report);
}

#[test]
fn processes_that_are_named_together_have_their_own_accounting() {
    require_bpf!();
    let (mut one, mut other) = (Ledger::start(), Ledger::start());
    let (first, second) = (one.pid(), other.pid());

    let jjleak =
        Jjleak::attached(["-p", &first.to_string(), "-p", &second.to_string(), "--format", "json,svg"]);
    one.open_accounts();
    other.open_accounts();
    one.run("malloc");
    other.run("calloc");
    let (of_one, of_other) = (one.accounts(), other.accounts());
    one.exit(0);
    other.run("calloc");
    let of_other_later = other.accounts();
    let ended = jjleak.interrupt().assert_done();

    of_one.assert_reported(&ended.report_on(first));
    of_other_later.assert_reported(&ended.report_on(second));
    assert_ne!(of_other, of_other_later);
    assert_eq!(ended.report_on(first).ended.as_deref(), Some("exit status unknown"));
    assert_eq!(ended.files(), ["jjleak.svg"]);
    let svg = fs::read_to_string(ended.file("jjleak.svg")).unwrap();
    for pid in [first, second] {
        assert!(svg.contains(&format!("ledger (pid {pid})")), "no frame for process {pid}");
    }
}

#[test]
fn a_followed_child_has_its_own_accounting_and_knows_what_it_inherited() {
    require_bpf!();
    let mut ledger = Ledger::start();
    ledger.set_up("free_earlier");

    let jjleak = ledger.attach(&["--follow", "--format", "json"]);
    ledger.run("malloc");
    let of_parent = ledger.accounts();
    let child = ledger.fork();
    ledger.open_accounts();
    ledger.run("free_earlier");
    ledger.run("calloc");
    let of_child = ledger.accounts();
    ledger.end_child();
    let parent = ledger.pid();
    let ended = jjleak.interrupt().assert_done();

    assert!(of_child.unknown_frees > 0, "the child frees nothing that it has inherited");
    assert_reported_of_child(&of_child, &ended.report_on(child));
    of_parent.assert_reported(&ended.report_on(parent));
    assert_eq!(ended.report_on(child).process.forked_from, Some(parent));
}

#[test]
fn a_child_of_a_process_that_has_been_watched_for_long_is_observed_closely_from_its_beginning() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let parent = ledger.pid();
    let mut command = Command::new(PROGRAM);
    command.args(["--follow", "-p", &parent.to_string(), "--format", "json", "0.1"]).stdout(writer);
    let jjleak = Jjleak::start(command).until_attached();
    let mut lines = Lines::of("jjleak's reports", reader);
    let mut looks_at = |pid: u32, number: usize| -> Vec<u32> {
        let reports = std::iter::repeat_with(|| serde_json::from_str::<Document>(&lines.next(SOON)).unwrap());
        reports.filter(|report| report.process.pid == pid).map(|report| report.looks).take(number).collect()
    };
    // Enough for snapshots to have become rare.
    let of_parent = looks_at(parent, 60);
    assert!(of_parent[59] <= 48, "{of_parent:?}");
    let child = ledger.fork();
    assert_eq!(looks_at(child, 10), (1..=10).collect::<Vec<_>>());
    ledger.end_child();
    jjleak.interrupt().assert_done();
}

#[test]
fn children_of_children_and_the_programs_they_run_are_followed() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["--follow", "--format", "json"]);
    let child = ledger.fork();
    ledger.open_accounts();
    ledger.run("malloc");
    let of_child = ledger.accounts();
    let grandchild = ledger.fork();
    ledger.exec();
    ledger.run("calloc");
    let of_grandchild = ledger.accounts();
    ledger.end_child();
    ledger.end_child();
    let ended = jjleak.interrupt().assert_done();

    assert_reported_of_child(&of_child, &ended.report_on(child));
    let report = ended.report_on(grandchild);
    assert_eq!((report.process.forked_from, report.notes["exec"]), (None, 1));
    of_grandchild.assert_reported(&report);
}

#[test]
fn of_children_that_end_text_has_a_line_each_and_their_reports_at_the_end() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let (parent, folder) = (ledger.pid(), tempfile::tempdir().unwrap());
    let text = folder.path().join("stdout");
    let read = || fs::read_to_string(&text).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["-p", &parent.to_string(), "--follow", "--outstanding", "3600"]);
    command.stdout(fs::File::create(&text).unwrap());
    let jjleak = Jjleak::start(command).until_attached();

    let mut lines = Vec::new();
    for scenario in ["malloc", "calloc", "nothing"] {
        let child = ledger.fork();
        ledger.open_accounts();
        if scenario != "nothing" {
            ledger.run(scenario);
            let live = ledger.accounts().live();
            let (bytes, objects) = (live.bytes, live.objects);
            lines.push((child, format!("{bytes} bytes lived in {objects} objects")));
        }
        ledger.end_child();
    }
    for (child, held) in &lines {
        let line = format!("ledger (pid {child}) has ended (exit status unknown): {held}");
        bounded::until(SOON, &line, || read().lines().any(|said| said == line));
    }
    let meanwhile = read();
    jjleak.interrupt().assert_done();

    let ended = |text: &str| text.lines().filter(|line| line.contains(" has ended (")).count();
    assert_eq!((ended(&meanwhile), ended(&read())), (2, 2), "{}", read());
    for (child, _) in lines {
        let reports = |text: &str| text.matches(&format!("ledger (pid {child}) over ")).count();
        assert_eq!((reports(&meanwhile), reports(&read())), (0, 1), "{}", read());
    }
}

#[test]
fn a_child_that_shares_memory_is_accounted_where_its_heap_is_also_when_it_is_followed() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["--follow", "--format", "json"]);
    ledger.run("vfork_allocating");
    ledger.run("vfork");
    let report = jjleak.interrupt().assert_done().report_on(ledger.pid());

    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn a_command_and_its_children_are_followed_from_their_first_allocation_to_their_end() {
    require_bpf!();
    let early = compile::early().to_str().unwrap();

    let ended =
        Ended::of(["--follow", "--format", "json", "--", "sh", "-c", &format!("{early} 3; {early} 4")])
            .assert_done();

    let early_ones: Vec<_> =
        ended.reports().into_iter().filter(|report| report.process.comm == "early").collect();
    assert_eq!(early_ones.len(), 2, "{:#?}", ended.stderr);
    let accounts = Accounts::parse(ended.stdout.lines());
    for report in early_ones {
        assert_eq!((report.live, report.allocated), (accounts.live(), accounts.allocated()));
        assert_nothing_lost(&report);
    }
}

#[test]
fn a_process_that_begins_later_is_counted_from_its_first_allocation_if_its_name_matches() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let mut earlier = Ledger::start_named(folder.path(), "jjleak-wanted");

    let jjleak = Jjleak::attached(["--name", "/jjleak-wanted$", "--format", "json"]);
    earlier.open_accounts();
    earlier.run("malloc");
    let mut later = Ledger::start_named(folder.path(), "jjleak-wanted");
    later.run("calloc");
    let mut unwanted = Ledger::start();
    unwanted.run("malloc");
    let ended = jjleak.interrupt().assert_done();

    earlier.accounts().assert_reported(&ended.report_on(earlier.pid()));
    later.accounts().assert_reported(&ended.report_on(later.pid()));
    assert!(ended.reports().iter().all(|report| report.process.pid != unwanted.pid()));
}

/// Number of processes that execute a matching program, each a little later than the one before: enough for some to do so at the
/// moment at which jjleak releases them as what they were before.
const BECOMING: usize = 200;

#[test]
fn a_process_that_becomes_a_wanted_program_is_never_missed_whatever_it_was_before() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("jjleak-became");
    fs::copy(fs::canonicalize("/bin/cat").unwrap(), &program).unwrap();
    let options = ["--name", "/jjleak-became$", "--format", "json", "--max-processes", "1024"];
    let jjleak = Jjleak::attached(options);

    let start = |index: usize| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "i=0; while [ $i -lt $1 ]; do i=$((i+1)); done; exec $0"]);
        command.arg(&program).arg((index * 10).to_string());
        Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()))
    };
    let processes: Vec<_> = (0..BECOMING).map(start).collect();
    for process in &processes {
        let exe = format!("/proc/{}/exe", process.id());
        bounded::until(LONG, "the program", || fs::read_link(&exe).unwrap() == program);
    }
    let ended = jjleak.interrupt().assert_done();

    let reports = ended.reports();
    let is_missed = |pid: &u32| reports.iter().all(|report| report.process.pid != *pid);
    let missed: Vec<_> = processes.iter().map(|process| process.id()).filter(is_missed).collect();
    // On a busy host, programs can start faster than they are released; those without a slot are counted.
    let told = reports.iter().filter_map(|report| losses(report).get("process_table_full").copied()).max();
    let told = usize::try_from(told.unwrap_or_default()).unwrap();
    assert!(
        missed.len() <= told,
        "{} of {BECOMING} were missed, and {told} told of: {missed:?}",
        missed.len()
    );
    // All do the same, and are counted from their first allocation on.
    let counted: BTreeSet<_> = reports.iter().map(|report| report.allocated.objects).collect();
    assert_eq!(counted.len(), 1, "{counted:?}");
}

#[test]
fn the_first_process_that_matches_is_counted_from_its_first_allocation_and_no_other_is_reported() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();

    let jjleak = Jjleak::attached(["--name", "/jjleak-first$", "--format", "json"]);
    let mut first = Ledger::start_named(folder.path(), "jjleak-first");
    first.run("malloc");
    for _ in 0..20 {
        Command::new("/bin/true").status().unwrap();
    }
    let ended = jjleak.interrupt().assert_done();

    let report = ended.report_on(first.pid());
    first.accounts().assert_reported(&report);
    let mut lost = losses(&report);
    // For unrelated processes of the host: on a busy one, they can start faster than they are released.
    lost.remove("process_table_full");
    assert!(lost.is_empty(), "{lost:?}");
    assert!(ended.reports().iter().all(|report| report.process.pid == first.pid()));
}
