//! Allocation calls that never return: a signal handler jumps out of them. What comes after them must be counted.

use std::collections::BTreeMap;

use crate::support::books::losses;
use crate::support::ledger::assert_exact;
use crate::support::privilege::require_bpf;

/// Tests that play a scenario in which so many calls are abandoned.
macro_rules! abandoned {
    ($($name:ident: $scenario:literal, $count:literal;)+) => {
        $(
            #[test]
            fn $name() {
                require_bpf!();
                let report = assert_exact($scenario);
                assert_eq!(losses(&report), BTreeMap::from([("stale_pending", $count)]));
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
