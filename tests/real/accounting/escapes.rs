//! Allocation calls that never return because a signal handler jumps out of them. Later calls must be counted.

use std::collections::BTreeMap;

use crate::support::accounts::{Accounts, losses};
use crate::support::ledger::{assert_exact, assert_exact_with, reported_and_recorded};
use crate::support::privilege::require_bpf;

/// Tests that run a scenario with this number of abandoned calls. With a probe inside malloc, little is known of a call that
/// never returns, and nothing is lost.
macro_rules! abandoned {
    ($($name:ident: $scenario:literal, $count:literal;)+) => {
        $(
            #[test]
            fn $name() {
                require_bpf!();
                let report = assert_exact_with($scenario, &["--entry-and-return"]);
                assert_eq!(losses(&report), BTreeMap::from([("stale_pending", $count)]));
                assert_exact($scenario);
            }
        )+
    };
}

abandoned! {
    calls_from_the_same_frame_count_after_a_jump: "same_depth", 2;
    calls_from_shallower_frames_count_after_a_jump: "shallower", 1;
    calls_from_deeper_frames_count_after_a_jump: "deeper", 1;
    a_block_whose_realloc_was_abandoned_lives_on: "escaped_realloc", 2;
    a_block_whose_realloc_was_abandoned_can_be_freed: "free_after_escaped_realloc", 1;
}

#[test]
fn a_block_lives_on_when_the_thread_that_was_resizing_it_is_gone() {
    require_bpf!();
    let (report, accounts) = reported_and_recorded("thread_ends_in_realloc", &["--format", "json"]);

    let site = &accounts.sites["site_malloc"];
    let mut reported = Accounts::of(&report);
    // Excludes the C library's allocations for the thread itself.
    reported.sites.retain(|name, _| name.starts_with("site_"));
    assert_eq!((site.live_objects, site.live_bytes), (1, 100));
    assert_eq!(reported, accounts);
}
