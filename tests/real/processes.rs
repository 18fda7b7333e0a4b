//! Children of the profiled process, which have books of their own, programs that take the place of another, and
//! programs whose file is gone.

use std::fs;

use crate::support::books::assert_nothing_lost;
use crate::support::compile;
use crate::support::ledger::{Ledger, assert_exact};
use crate::support::privilege::require_bpf;

#[test]
fn a_forked_child_leaves_the_books_alone() {
    require_bpf!();
    assert_nothing_lost(&assert_exact("fork"));
}

#[test]
fn a_child_that_shares_memory_and_runs_another_program_leaves_the_books_alone() {
    require_bpf!();
    assert_nothing_lost(&assert_exact("vfork"));
}

#[test]
fn a_child_that_shares_memory_is_booked_where_its_heap_is() {
    require_bpf!();
    assert_nothing_lost(&assert_exact("vfork_allocating"));
}

#[test]
fn a_new_program_in_the_same_process_has_new_books() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("malloc");
    ledger.exec();
    ledger.run("calloc");
    let report = jjleak.interrupt().assert_done().report();

    ledger.books().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn a_program_whose_file_was_deleted_is_still_named() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let copy = compile::copy(compile::ledger(), folder.path());
    let mut ledger = Ledger::start_as(&copy);
    fs::remove_file(copy).unwrap();

    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("malloc");
    let report = jjleak.interrupt().assert_done().report();

    ledger.books().assert_reported(&report);
    assert_nothing_lost(&report);
}
