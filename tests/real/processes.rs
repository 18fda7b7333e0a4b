//! Children of the profiled process, which have books of their own, programs that take the place of another, and
//! programs whose file is gone.

use std::fs;
use std::process::Command;

use crate::support::books::{Books, assert_nothing_lost, losses};
use crate::support::compile;
use crate::support::ledger::{Ledger, assert_exact};
use crate::support::privilege::{require_bpf, require_library};

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
fn a_program_whose_file_was_replaced_is_still_named() {
    require_bpf!();
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let copy = compile::copy(compile::ledger(), folder.path());
    let mut ledger = Ledger::start_as(&copy);
    fs::rename(compile::copy(compile::early(), other.path()), &copy).unwrap();

    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("malloc");
    let report = jjleak.interrupt().assert_done().report();

    ledger.books().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn an_allocator_that_is_loaded_later_is_counted_from_when_its_probes_are_there_and_said_to_be_late() {
    require_library!("libjemalloc.so.2");
    // The library has thread-local variables that want to be at a fixed place.
    let mut command = Command::new(compile::ledger());
    let mut ledger = Ledger::spawn(command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=1048576"));

    let mut jjleak = ledger.attach(&["--format", "json"]);
    ledger.load("libjemalloc.so.2");
    while !jjleak.wait_for(" WARN ").contains("has an allocator, which counts from now on") {}
    ledger.run("loaded");
    let report = jjleak.interrupt().assert_done().report();

    let books = ledger.books();
    let loaded = &books.sites["site_loaded"];
    let mut reported = Books::of(&report);
    reported.sites.retain(|name, _| name == "site_loaded");
    assert_eq!(loaded.allocated_objects, 100);
    assert_eq!(reported.sites.get("site_loaded"), Some(loaded));
    assert_eq!(losses(&report).into_keys().collect::<Vec<_>>(), ["late_probes"]);
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
