//! Many distinct stacks, and stacks with more frames than jjleak keeps.

use jjleak_common::stack::MAX_FRAMES;

use crate::support::accounts::{assert_nothing_lost, call_site};
use crate::support::ledger::assert_exact;
use crate::support::privilege::require_bpf;

#[test]
fn every_depth_is_a_stack_of_its_own() {
    require_bpf!();

    let report = assert_exact("depths");

    assert_nothing_lost(&report);
    let lengths: Vec<_> = report.stacks.iter().map(|stack| stack.frames.len()).collect();
    assert_eq!(lengths.len(), 200);
    assert!(report.stacks.iter().all(|stack| stack.live.objects == 1 && stack.status != "too_deep"));
}

#[test]
fn a_stack_that_is_too_deep_says_so_and_keeps_its_call_site() {
    require_bpf!();

    let report = assert_exact("too_deep");

    assert_nothing_lost(&report);
    let (cut, whole): (Vec<_>, Vec<_>) = report.stacks.iter().partition(|stack| stack.status == "too_deep");
    // Recursions 130 and 490 deep fit; those 600, 1000 and 5000 deep have the same innermost frames.
    assert_eq!((cut.len(), whole.len()), (1, 2));
    assert_eq!((cut[0].frames.len(), cut[0].live.objects), (MAX_FRAMES, 3));
    assert!(report.stacks.iter().all(|stack| call_site(stack) == "site_deep"));
}

#[test]
fn stacks_of_the_same_shape_are_distinguished() {
    require_bpf!();

    let report = assert_exact("twins");

    assert_nothing_lost(&report);
    let objects_under = |caller| {
        let stacks = report.stacks.iter();
        let under = stacks.filter(|stack| stack.frames.iter().any(|frame| frame.symbol == caller));
        under.map(|stack| stack.live.objects).collect::<Vec<_>>()
    };
    assert_eq!(objects_under("left_twin"), [334]);
    assert_eq!(objects_under("right_twin"), [666]);
}
