//! What being profiled costs is told, before and while it is paid.

use jjleak::render::json::Document;
use serde_json::Value;

use crate::support::jjleak::{Ended, Jjleak};
use crate::support::ledger::{Ledger, reported_and_booked};
use crate::support::privilege::require_bpf;

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
    let mut command = std::process::Command::new(crate::support::jjleak::PROGRAM);
    command.args(["--estimate", "-p", &pid, "3600", "--format", "json"]).stdout(std::process::Stdio::piped());

    let mut jjleak = Jjleak::start(command);
    jjleak.wait_for("jjleak: counting");
    ledger.run("hundred_thousand");
    let ended = jjleak.interrupt().assert_done();

    let estimate: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    let figure = |name: &str| estimate[name].as_f64().unwrap();
    let allocations = figure("allocations_per_s") * figure("over_s");
    assert!((99_999.5..100_100.).contains(&allocations), "{allocations}");
    assert!(figure("ns_per_allocation") > figure("ns_per_free"), "{estimate}");
    assert!(figure("of_core") > 0.);
    assert_eq!(ended.files(), [""; 0]);
}

#[test]
fn an_estimate_is_of_one_process() {
    require_bpf!();

    let ended = Ended::of(["--estimate", "-p", "1", "-p", "2"]);

    ended.assert_failed(2, "one process", "--help");
}
