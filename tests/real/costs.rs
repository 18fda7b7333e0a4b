//! What being profiled costs is told, before and while it is paid.

use std::io::Write;
use std::process::{Command, Stdio};

use jjleak::render::json::Document;
use serde_json::Value;

use crate::support::bounded::{LONG, SOON};
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::ledger::{Ledger, reported_and_booked};
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

#[test]
fn reports_say_what_being_profiled_costs() {
    require_bpf!();

    let (report, booked): (Document, _) = reported_and_booked("hundred_thousand", &["--format", "json"]);

    let cost = report.cost.expect("a process that runs has a cost");
    assert!(cost.estimate);
    let calls = cost.calls_per_s * cost.over_s;
    #[expect(clippy::cast_precision_loss, reason = "a hundred thousand")]
    let booked = booked.allocated().objects as f64;
    assert!((calls / booked - 1.).abs() < 0.01, "{calls} of {booked}");
}

#[test]
fn an_estimate_counts_the_calls_of_a_process_and_profiles_nothing() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let pid = ledger.pid().to_string();
    let mut command = Command::new(crate::support::jjleak::PROGRAM);
    command.args(["--estimate", "-p", &pid, "3600", "--format", "json"]).stdout(Stdio::piped());

    let mut jjleak = Jjleak::start(command);
    jjleak.wait_for("jjleak: counting");
    ledger.run("hundred_thousand");
    let ended = jjleak.interrupt().assert_done();

    let estimate: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    let figure = |name: &str| estimate[name].as_f64().unwrap();
    let allocations = figure("allocations_per_s") * figure("over_s");
    // It has been 1.7 % short once, on a busy machine; why is not known.
    assert!((95_000. ..100_100.).contains(&allocations), "{allocations}");
    // Which is more is a matter of how warm caches are: a malloc that is probed inside has one breakpoint, as a free has.
    assert!(figure("ns_per_allocation") > 0. && figure("ns_per_free") > 0., "{estimate}");
    assert!(figure("of_core") > 0.);
    assert_eq!(ended.files(), [""; 0]);
}

#[test]
fn an_estimate_is_of_one_process() {
    require_bpf!();

    let ended = Ended::of(["--estimate", "-p", "1", "-p", "2"]);

    ended.assert_failed(2, "one process", "--help");
}

/// What jjleak reports with these options of a program that leaks at a steady pace, and how many bytes it has leaked.
fn paced(options: &[&str], milliseconds: u32) -> (Document, u64) {
    let mut program =
        Process::spawn(Command::new(compile::paced()).stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = Lines::of("the paced program", program.stdout.take().unwrap());
    let mut stdin = program.stdin.take().unwrap();
    assert_eq!(said.next(SOON), "ready");
    let pid = program.id().to_string();
    let jjleak = Jjleak::attached(["-p", &pid, "3600", "--format", "json"].iter().chain(options));
    writeln!(stdin, "{milliseconds}").unwrap();
    let leaked = said.next(LONG).parse().unwrap();
    let report = jjleak.interrupt().assert_done().report();
    (report, leaked)
}

/// Further off than this many standard errors is one estimate in five million.
const FAR: f64 = 5.2;

#[test]
#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn below_a_bound_figures_are_estimates_from_windows_that_know_their_error() {
    require_bpf!();

    let (report, leaked) = paced(&["--max-overhead", "20"], 25_000);

    let windows = report.windows.expect("counting everything costs more than that");
    assert!(windows >= 3, "{windows} windows");
    let error = report.live_error.unwrap();
    let off = (report.live.bytes as f64 - leaked as f64) / error.bytes as f64;
    println!(
        "{} for {leaked}, standard error {}, {windows} windows: {off:.2}",
        report.live.bytes, error.bytes
    );
    assert!(off.abs() < FAR, "off by {off}");
    assert!(error.bytes < leaked, "of no use: {error:?}");
    assert!(report.lost.values().all(|count| *count == 0), "{:?}", report.lost);
    assert!(report.verdicts.is_empty(), "estimates are not judged");
    assert_below(&report, 0.2);
}

/// What the kernel has counted of calls, at their prices, is less than this share of what the process took itself.
fn assert_below(report: &Document, share: f64) {
    /// A report can come when a window is over whose cost is not saved up. On a busy machine, probes are taken out late, which
    /// costs as much as a window.
    const MARGIN: f64 = 1.5;
    let cost = report.cost.expect("a process that runs has a cost");
    let of_cpu = cost.of_cpu.expect("what calls take is known");
    let of_own = of_cpu / (1. - of_cpu);
    println!("{of_own:.3} of {share}, with {:?} windows: {cost:?}", report.windows);
    assert!(of_own < MARGIN * share, "{of_own}: {cost:?}");
}

#[test]
fn a_bound_that_is_never_reached_changes_nothing() {
    require_bpf!();

    let (report, leaked) = paced(&["--max-overhead", "1000"], 3_000);

    assert_eq!((report.windows, report.live_error), (None, None));
    assert_eq!(report.live.bytes, leaked);
}
