//! Threads that allocate at the same time, free each other's blocks, and end.

use crate::support::books::{Books, assert_nothing_lost};
use crate::support::ledger::reported_and_booked;
use crate::support::privilege::require_bpf;

#[test]
fn ten_million_operations_of_four_threads_are_counted_to_the_byte() {
    require_bpf!();

    // Reports are taken all the while.
    let (report, booked) = reported_and_booked("threads", &["0.2", "--format", "json"]);

    assert_nothing_lost(&report);
    booked.assert_reported(&report);
    assert!(report.allocated.objects == 5_000_000 && report.live.objects == 5_000);
}

#[test]
fn nothing_is_torn_when_jjleak_attaches_to_busy_threads() {
    require_bpf!();

    // They free everything in the end, so what is still live then is a block whose free was missed.
    let (report, _) = reported_and_booked("churn", &["--format", "json"]);

    assert_nothing_lost(&report);
    assert_eq!((report.live.bytes, report.live.objects), (0, 0));
    assert!(report.allocated.objects > 0);
}

#[test]
fn blocks_of_threads_that_ended_are_still_counted() {
    require_bpf!();

    let (report, booked) = reported_and_booked("ending_threads", &["--format", "json"]);

    assert_nothing_lost(&report);
    // At a thread's end the C library passes its cache of free blocks to `free`: the only frees not in the books.
    assert!(report.unknown_frees > 0);
    assert_eq!(report.notes["freed_by_c_library"], report.unknown_frees);
    assert_eq!(Books { unknown_frees: 0, ..Books::of(&report) }, booked);
}
