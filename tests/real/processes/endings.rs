//! Ways to end a run: by count, by signal, with the target. All but one give a final report, and each leaves the target
//! unchanged.

use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::accounts::assert_nothing_lost;
use crate::support::jjleak::Jjleak;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;
use crate::support::probes::{self, Text};

/// Reports once an hour: none comes before the final one.
const NO_INTERVAL: &str = "3600";

/// Time during which jjleak takes further signals for echoes of the first.
const ECHO: Duration = Duration::from_millis(500);

#[test]
fn count_ends_the_run_and_every_interval_has_its_report() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["1", "3", "--format", "json"]);
    ledger.run("malloc");
    let ended = jjleak.end().assert_done();

    let reports = ended.reports();
    assert_eq!(reports.len(), 3);
    ledger.accounts().assert_reported(&reports[2]);
    assert_nothing_lost(&reports[2]);
    assert_eq!((reports[2].schema, reports[2].process.pid), (2, ledger.pid()));
    assert_eq!((&*reports[2].process.comm, &*reports[2].process.kind), ("ledger", "native"));
}

#[test]
fn a_signal_brings_the_final_report_and_the_files() {
    let _quiet = probes::quiet();
    require_bpf!();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut ledger = Ledger::start();
        let before = Text::of(&mut ledger);

        let jjleak = ledger.attach(&[NO_INTERVAL, "--format", "json,svg"]);
        ledger.run("malloc");
        jjleak.signal(signal);
        let ended = jjleak.end().assert_done();

        ledger.accounts().assert_reported(&ended.report());
        assert_eq!(ended.files(), [format!("jjleak-{}.svg", ledger.pid())], "{signal}");
        before.assert_unchanged(&mut ledger);
    }
}

#[test]
fn a_second_signal_makes_jjleak_leave_at_once() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let before = Text::of(&mut ledger);
    // A report on this many stacks is larger than a pipe: its writer waits for a reader that never comes.
    let pid = ledger.pid().to_string();
    let mut jjleak = Jjleak::attached_unread(["-p", &pid, NO_INTERVAL, "--format", "json,svg"]);
    ledger.run("depths");

    jjleak.signal(Signal::SIGINT);
    jjleak.until_it_writes();
    // Earlier, it would count as an echo of the first: the time between the two is under test.
    thread::sleep(ECHO);
    jjleak.signal(Signal::SIGINT);
    let ended = jjleak.end();

    assert_eq!(ended.status.code(), Some(130), "{:#?}", ended.stderr);
    assert_eq!(ended.files(), [""; 0]);
    before.assert_unchanged(&mut ledger);
}

#[test]
fn a_jjleak_that_is_killed_leaves_no_probe_and_no_file() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let before = Text::of(&mut ledger);

    let jjleak = ledger.attach(&[NO_INTERVAL]);
    ledger.run("malloc");
    jjleak.signal(Signal::SIGKILL);
    let ended = jjleak.end();

    assert_eq!(ended.files(), [""; 0]);
    before.assert_unchanged(&mut ledger);
    ledger.run("malloc");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let pid = ledger.pid().to_string();

    let jjleak = Jjleak::attached_unread(["-p", &pid, NO_INTERVAL, "--format", "json,svg"]).without_stdout();
    ledger.run("depths");
    let ended = jjleak.interrupt().assert_done();

    assert_eq!(ended.files(), [format!("jjleak-{pid}.svg")]);
}

#[test]
fn a_target_that_exits_gets_its_final_report_with_names() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&[NO_INTERVAL, "--format", "json"]);
    ledger.run("storm");
    let accounts = ledger.accounts();
    ledger.exit(3);
    let report = jjleak.end().assert_done().report();

    accounts.assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn a_target_that_is_killed_gets_its_final_report_with_names() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&[NO_INTERVAL, "--format", "json"]);
    ledger.run("storm");
    let accounts = ledger.accounts();
    ledger.kill();
    let report = jjleak.end().assert_done().report();

    accounts.assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn probes_are_in_the_target_while_jjleak_runs_and_gone_after() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let before = Text::of(&mut ledger);

    let jjleak = ledger.attach(&[NO_INTERVAL]);
    let during = Text::of(&mut ledger);
    jjleak.interrupt().assert_done();

    assert_eq!(
        before.changed(&during),
        [
            "malloc",
            "calloc",
            "realloc",
            "reallocarray",
            "posix_memalign",
            "aligned_alloc",
            "memalign",
            "valloc",
            "pvalloc",
            "free"
        ]
    );
    before.assert_unchanged(&mut ledger);
}

#[test]
fn a_target_can_be_profiled_again() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let first = ledger.attach(&["--format", "json"]);
    ledger.run("hoard");
    let first = first.interrupt().assert_done().report();
    ledger.accounts().assert_reported(&first);

    // The second run does not know what the first has counted.
    let second = ledger.attach(&["--format", "json"]);
    ledger.run("free_earlier");
    let second = second.interrupt().assert_done().report();
    ledger.accounts().assert_reported(&second);
    assert_eq!(second.unknown_frees, 5);
}

#[test]
fn two_jjleaks_on_one_target_count_the_same() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let first = ledger.attach(&["--format", "json"]);
    let second = ledger.attach(&["--format", "json"]);
    ledger.run("storm");

    for jjleak in [first, second] {
        let report = jjleak.interrupt().assert_done().report();
        ledger.accounts().assert_reported(&report);
        assert_nothing_lost(&report);
    }
}

#[test]
fn strict_passes_when_nothing_is_lost_and_fails_when_something_is() {
    require_bpf!();
    for (scenario, code) in [("malloc", 0), ("same_depth", 5)] {
        let mut ledger = Ledger::start();
        ledger.set_up(scenario);

        // With a single probe inside malloc, a longjmp loses nothing.
        let jjleak = ledger.attach(&["--strict", "--format", "json", "--entry-and-return"]);
        ledger.run(scenario);
        let ended = jjleak.interrupt();

        assert_eq!(ended.status.code(), Some(code), "{scenario}: {:#?}", ended.stderr);
        ledger.accounts().assert_reported(&ended.report());
    }
}

#[test]
fn a_busy_target_can_be_attached_to_again_and_again() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let before = Text::of(&mut ledger);
    ledger.set_up("churn");

    for _ in 0..4 {
        let report = ledger.attach(&["--format", "json"]).interrupt().assert_done().report();
        assert_nothing_lost(&report);
    }

    before.assert_unchanged(&mut ledger);
    ledger.run("churn");
}
