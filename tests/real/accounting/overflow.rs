//! Full tables: everything that does not fit is counted, so that entries and losses add up to the total.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::support::accounts::{Accounts, losses};
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::ledger::{Ledger, reported_and_recorded};
use crate::support::privilege::require_bpf;

const SMALL: &[&str] = &["--max-live", "1000", "--format", "json"];

#[test]
fn what_lives_and_what_was_lost_are_all_there_is() {
    require_bpf!();

    let (report, recorded) = reported_and_recorded("hundred_thousand", SMALL);

    let lost = |name: &str| report.lost[name];
    assert!(report.live.objects >= 1_000, "{} found room", report.live.objects);
    assert!(lost("live_table_full") > 90_000, "{:?}", losses(&report));
    assert_eq!(report.live.objects + lost("live_table_full"), recorded.live().objects);
    assert_eq!(report.live.bytes + lost("live_table_full_bytes"), recorded.live().bytes);
    assert_eq!(report.allocated, recorded.allocated());
    assert_eq!(report.unknown_frees, 0);
}

#[test]
fn frees_of_lost_blocks_are_counted_too() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(SMALL);
    ledger.run("hundred_thousand");
    ledger.run("halve");
    let (report, recorded) = (jjleak.interrupt().assert_done().report(), ledger.accounts());

    // No block is older than the profile, so that each unknown free is of a lost block.
    let still_lost = report.lost["live_table_full"] - report.unknown_frees;
    assert!(report.unknown_frees > 40_000);
    assert_eq!(report.live.objects + still_lost, recorded.live().objects);
    let lost_bytes = report.lost["live_table_full_bytes"];
    assert!((report.live.bytes..=report.live.bytes + lost_bytes).contains(&recorded.live().bytes));
    assert_eq!(report.allocated, recorded.allocated());
}

#[test]
fn a_table_holds_at_least_what_was_asked_for() {
    require_bpf!();

    let (report, recorded) =
        reported_and_recorded("hundred_thousand", &["--max-live", "100000", "--format", "json"]);

    assert_eq!(losses(&report).len(), 0, "{:?}", losses(&report));
    recorded.assert_reported(&report);
}

#[test]
fn bytes_stay_exact_when_the_stack_table_is_full() {
    require_bpf!();

    let options = ["--max-stacks", "100", "--format", "json"];
    let (report, recorded) = reported_and_recorded("many_stacks", &options);

    assert_eq!((report.live, report.allocated), (recorded.live(), recorded.allocated()));
    let kept: Vec<_> = report.stacks.iter().filter(|stack| stack.status != "lost").collect();
    assert!((100..=256).contains(&kept.len()), "{} stacks", kept.len());
    let under_none: u64 =
        report.stacks.iter().filter(|stack| stack.status == "lost").map(|stack| stack.live.objects).sum();
    assert_eq!(report.lost["stack_table_full"], under_none);
    assert_eq!(kept.iter().map(|stack| stack.live.objects).sum::<u64>() + under_none, 4096);
}

#[test]
fn bytes_stay_exact_when_the_frames_of_new_stacks_do_not_find_room() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["--frame-buffer", "4096", "--format", "json"]);
    // Nothing reads the frames meanwhile.
    jjleak.signal(Signal::SIGSTOP);
    ledger.run("many_stacks");
    jjleak.signal(Signal::SIGCONT);
    let (report, recorded) = (jjleak.interrupt().assert_done().report(), ledger.accounts());

    assert_eq!((report.live, report.allocated), (recorded.live(), recorded.allocated()));
    let without_frames = report.stacks.iter().filter(|stack| stack.frames.is_empty()).count() as u64;
    assert!(without_frames > 3_000, "{without_frames} stacks without frames");
    assert_eq!(report.lost["frame_storage_full"], without_frames);
}

#[test]
fn strict_runs_fail_on_loss() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["--max-live", "1000", "--strict", "--format", "json"]);
    ledger.run("hundred_thousand");
    let ended = jjleak.interrupt();

    assert_eq!(ended.status.code(), Some(5));
    assert!(Accounts::of(&ended.report()).live().objects >= 1_000);
}

#[test]
fn capacities_that_cannot_be_are_usage_errors() {
    for (flag, value) in [("--max-live", "0"), ("--max-stacks", "99999999"), ("--frame-buffer", "lots")] {
        let ended: Ended = Jjleak::start({
            let mut command = Command::new(PROGRAM);
            command.args(["-p", "1", flag, value]);
            command
        })
        .end();
        ended.assert_failed(2, flag, "jjleak --help");
    }
}
