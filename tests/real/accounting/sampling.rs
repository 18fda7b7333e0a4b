//! Sampling: estimates are right within their own standard errors, and blocks that were not sampled do not count as losses.

use jjleak::render::json::{Document, SamplingDocument, TotalsDocument};

use crate::support::accounts::{Accounts, assert_nothing_lost};
use crate::support::ledger::{Ledger, reported_and_recorded};
use crate::support::privilege::require_bpf;

/// Standard errors that one estimate in five million exceeds.
const FAR: f64 = 5.2;

#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn assert_near(estimate: u64, truth: u64, standard_error: u64) {
    let off = (estimate as f64 - truth as f64) / standard_error as f64;
    println!("{estimate} for {truth}, standard error {standard_error}: off by {off:.2}");
    assert!(off.abs() < FAR);
}

fn assert_estimates(report: &Document, recorded: &Accounts) {
    assert_nothing_lost(report);
    assert_eq!(report.unknown_frees, 0, "a block that was not taken is no unknown one");
    let error = report.live_error.expect("an estimate says how sure it is");
    // Precise enough to be useful.
    assert!(error.bytes > 0 && error.bytes < recorded.live().bytes / 5, "{error:?}");
    assert_near(report.live.bytes, recorded.live().bytes, error.bytes);
    assert_near(report.live.objects, recorded.live().objects, error.objects);
}

#[test]
fn one_in_ten_estimates_all() {
    require_bpf!();

    let (report, recorded) = reported_and_recorded("hundred_thousand", &["-s", "10", "--format", "json"]);

    assert_eq!(report.sampling, Some(SamplingDocument::Rate(10)));
    assert_estimates(&report, &recorded);
    // Nothing was freed, and both are sums over the same blocks.
    assert_eq!(report.allocated, report.live);
    let unsampled = report.notes["unsampled"];
    assert_eq!(report.live.objects / 10 + unsampled, recorded.live().objects);
}

#[test]
fn one_in_ten_thousand_bytes_estimates_all() {
    require_bpf!();
    let options = ["--sample-bytes", "10000", "--format", "json"];

    let (report, recorded) = reported_and_recorded("hundred_thousand", &options);

    assert_eq!(report.sampling, Some(SamplingDocument::Bytes(10_000)));
    assert_estimates(&report, &recorded);
    assert_eq!(report.allocated.bytes, report.live.bytes);
}

#[test]
fn frees_are_of_those_that_were_taken() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["-s", "10", "--format", "json"]);
    ledger.run("hundred_thousand");
    ledger.run("halve");
    let report = jjleak.interrupt().assert_done().report();

    assert_estimates(&report, &ledger.accounts());
    assert!(report.allocated.objects > report.live.objects * 3 / 2);
}

#[test]
fn every_function_at_random_is_estimated_and_nested_calls_are_not_counted_twice() {
    require_bpf!();

    let (report, recorded) = reported_and_recorded("storm", &["-s", "4", "--format", "json"]);

    // Bytes are excluded: a handful of blocks hold half of them, and may all be missed.
    assert_near(report.live.objects, recorded.live().objects, report.live_error.unwrap().objects);
    assert_nothing_lost(&report);
    let taken = report.allocated.objects / 4 + report.notes["unsampled"];
    assert_eq!(taken, recorded.allocated().objects);
}

#[test]
fn sampling_by_bytes_misses_no_block_that_matters() {
    require_bpf!();
    let options = ["--sample-bytes", "500", "--format", "json"];

    let (report, recorded) = reported_and_recorded("storm", &options);

    assert_estimates(&report, &recorded);
}

#[test]
fn a_rate_of_one_is_exact() {
    require_bpf!();

    let (report, recorded) = reported_and_recorded("storm", &["-s", "1", "--format", "json"]);

    assert_eq!((report.sampling, report.live_error), (None, None));
    recorded.assert_reported(&report);
}

#[test]
fn large_blocks_are_always_taken_when_sampling_by_bytes() {
    require_bpf!();
    let options = ["--sample-bytes", "1000", "--format", "json"];

    let (report, _) = reported_and_recorded("beyond_4_gib", &options);

    assert_eq!(report.live, TotalsDocument { bytes: 5 << 30, objects: 1 });
    assert_eq!(report.live_error, Some(TotalsDocument { bytes: 0, objects: 0 }));
}
