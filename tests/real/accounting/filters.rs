//! Size filters: excluded blocks are counted neither when allocated nor when freed.

use crate::support::accounts::assert_nothing_lost;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// Live bytes and objects after one allocation each of 1 to 100 bytes, under these options.
fn live_of_sizes_to_100(options: &[&str]) -> (u64, u64) {
    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(&[&["--format", "json"], options].concat());
    ledger.run("sizes");
    let report = jjleak.interrupt().assert_done().report();
    assert_nothing_lost(&report);
    (report.live.bytes, report.live.objects)
}

#[test]
fn sizes_from_the_smallest_to_the_largest_are_counted() {
    require_bpf!();
    assert_eq!(live_of_sizes_to_100(&["-z", "10", "-Z", "20"]), ((10..=20).sum(), 11));
}

#[test]
fn a_smallest_size_alone_has_no_upper_end() {
    require_bpf!();
    assert_eq!(live_of_sizes_to_100(&["--min-size", "91"]), ((91..=100).sum(), 10));
}

#[test]
fn blocks_that_are_left_out_are_freed_as_unknown_ones() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["-z", "1000000000", "--format", "json"]);
    ledger.run("realloc_grow");
    ledger.run("realloc_shrink");
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    assert_eq!((report.live.objects, report.allocated.objects), (0, 0));
    assert!(report.unknown_frees > 0);
}
