//! The cost of profiling is reported, before and during a run.

use std::process::{Command, Stdio};

use jjleak::render::json::Document;
use serde_json::Value;

use crate::support::jjleak::{Ended, Jjleak};
use crate::support::ledger::{Ledger, reported_and_recorded};
use crate::support::privilege::require_bpf;

#[test]
fn reports_say_what_being_profiled_costs() {
    require_bpf!();

    let (report, recorded): (Document, _) = reported_and_recorded("hundred_thousand", &["--format", "json"]);

    let cost = report.cost.expect("a process that runs has a cost");
    assert!(cost.estimate);
    let calls = cost.calls_per_s * cost.over_s;
    #[expect(clippy::cast_precision_loss, reason = "a hundred thousand")]
    let recorded = recorded.allocated().objects as f64;
    assert!((calls / recorded - 1.).abs() < 0.01, "{calls} of {recorded}");
}

#[test]
fn an_estimate_counts_the_calls_of_a_process_and_profiles_nothing() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let pid = ledger.pid().to_string();
    let mut command = Command::new(crate::support::jjleak::PROGRAM);
    command.args(["--estimate", "-p", &pid, "3600", "--format", "json", "-v"]).stdout(Stdio::piped());

    let mut jjleak = Jjleak::start(command);
    jjleak.wait_for("jjleak: counting");
    ledger.run("hundred_thousand");
    let ended = jjleak.interrupt().assert_done();

    let estimate: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    let figure = |name: &str| estimate[name].as_f64().unwrap();
    let counted = |name: &str| figure(name) * figure("over_s");
    // The program's own allocations are a few more, for its I/O.
    let allocations = counted("allocations_per_s");
    assert!((99_999.5..100_100.).contains(&allocations), "{allocations}");
    let frees = counted("frees_per_s");
    let breakpoints = (counted("breakpoints_per_s") - frees) / allocations;
    let each = breakpoints_of_new_block(&ended);
    assert!((breakpoints - each).abs() < 0.01, "{breakpoints} instead of {each}");
    // Either may be larger, depending on the caches: a malloc with an inner probe has one breakpoint, like a free.
    assert!(figure("ns_per_allocation") > 0. && figure("ns_per_free") > 0., "{estimate}");
    assert!(figure("of_core") > 0.);
    assert_eq!(ended.files(), [""; 0]);
}

/// Number of breakpoints in a `malloc` that returns a block which was never freed, given the probed places in jjleak's messages:
/// one, or two if some calls also have a probe where they end. These calls do, because no block comes from a cache.
fn breakpoints_of_new_block(ended: &Ended) -> f64 {
    let is_malloc = |line: &str| {
        let Some((begin, _)) = line.split_once(" at file offset ") else { return false };
        let names = begin.rsplit(' ').next().unwrap_or_default();
        names.split('/').any(|name| name == "malloc")
    };
    let sites: Vec<_> = ended.stderr.iter().filter(|line| is_malloc(line)).collect();
    assert!(!sites.is_empty(), "malloc is not probed: {:#?}", ended.stderr);
    let has_second = |site: &&String| site.contains("(Size,") || site.contains("(Entry(Allocate),");
    if sites.iter().any(has_second) { 2. } else { 1. }
}

#[test]
fn an_estimate_is_of_one_process() {
    require_bpf!();

    let ended = Ended::of(["--estimate", "-p", "1", "-p", "2"]);

    ended.assert_failed(2, "one process", "--help");
}
