//! Every function and the corner cases of its contract, in every mode with exact figures.

use crate::accounting::families::SCENARIOS;
use crate::support::accounts::assert_nothing_lost;
use crate::support::jjleak::NEVER_REACHED;
use crate::support::ledger::Ledger;
use crate::support::privilege::require_bpf;

/// Runs all scenarios under one jjleak with these options.
fn assert_exact_in(mode: &[&str]) {
    let mut ledger = Ledger::start();
    ledger.set_up("realloc_earlier");
    let jjleak = ledger.attach(&[&["--format", "json"], mode].concat());
    for scenario in SCENARIOS {
        ledger.run(scenario);
    }
    let report = jjleak.interrupt().assert_done().report();

    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
    assert_eq!((report.windows, report.live_error), (None, None), "{mode:?} is no estimate");
}

#[test]
fn sums_that_the_kernel_combines_are_exact_for_every_function() {
    require_bpf!();
    assert_exact_in(&["-C"]);
}

#[test]
fn sampling_everything_is_exact_for_every_function() {
    require_bpf!();
    assert_exact_in(&["-s", "1"]);
}

#[test]
fn where_children_are_followed_every_function_is_exact() {
    require_bpf!();
    assert_exact_in(&["--follow"]);
}

#[test]
fn below_a_bound_that_is_not_reached_every_function_is_exact() {
    require_bpf!();
    assert_exact_in(&["--max-overhead", NEVER_REACHED]);
}

#[test]
fn where_mappings_are_counted_every_function_is_exact() {
    require_bpf!();
    assert_exact_in(&["--mmap"]);
}
