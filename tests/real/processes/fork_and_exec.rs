//! Children of the profiled process, which are accounted separately, programs that replace another by exec, and programs whose
//! file is gone.

use std::fs;
use std::process::Command;

use crate::support::accounts::{Accounts, assert_nothing_lost, losses};
use crate::support::bounded::{self, SOON};
use crate::support::compile::{self, Wrapper};
use crate::support::ledger::{Ledger, assert_exact, reported_and_recorded};
use crate::support::privilege::{require_bpf, require_library};
use crate::support::probes::{self, Text};

#[test]
fn a_forked_child_does_not_change_the_accounting() {
    require_bpf!();
    assert_nothing_lost(&assert_exact("fork"));
}

#[test]
fn a_child_that_shares_memory_and_runs_another_program_does_not_change_the_accounting() {
    require_bpf!();
    assert_nothing_lost(&assert_exact("vfork"));
}

#[test]
fn a_child_that_shares_memory_is_reported() {
    require_bpf!();
    let report = reported_and_recorded("vfork_allocating", &["--format", "json"]).0;
    assert_eq!(report.notes["shared_memory_child"], 1);
}

#[test]
fn the_probes_go_out_of_a_forked_child_and_stay_in_its_parent() {
    let _quiet = probes::quiet();
    require_bpf!();
    let mut ledger = Ledger::start();
    let functions = ledger.allocation_functions();
    let text_of = |pid| Text::in_process(pid, functions.clone());
    let before = text_of(ledger.pid());

    let jjleak = ledger.attach(&["--format", "json"]);
    let probed = text_of(ledger.pid());
    let child = ledger.fork();
    bounded::until(SOON, "a child without probes", || text_of(child) == before);
    assert_eq!(text_of(ledger.pid()), probed);
    ledger.end_child();
    ledger.run("malloc");
    let report = jjleak.interrupt().assert_done().report();

    assert_ne!(probed, before);
    assert_eq!(report.notes["fork"], 1);
    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn a_new_program_in_the_same_process_has_its_own_accounting() {
    require_bpf!();
    let mut ledger = Ledger::start();

    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("malloc");
    ledger.exec();
    ledger.run("calloc");
    let report = jjleak.interrupt().assert_done().report();

    ledger.accounts().assert_reported(&report);
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

    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn an_allocator_that_is_loaded_later_is_counted_from_when_its_probes_are_there_and_is_reported_as_late() {
    require_library!("libjemalloc.so.2");
    // The library has thread-local variables that require static TLS.
    let mut command = Command::new(compile::ledger());
    let mut ledger = Ledger::spawn(command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=1048576"));

    let mut jjleak = ledger.attach(&["--format", "json"]);
    ledger.load("libjemalloc.so.2");
    while !jjleak.wait_for(" WARN ").contains("has an allocator that is counted only from now on") {}
    ledger.run("loaded");
    let report = jjleak.interrupt().assert_done().report();

    let accounts = ledger.accounts();
    let loaded = &accounts.sites["site_loaded"];
    let mut reported = Accounts::of(&report);
    reported.sites.retain(|name, _| name == "site_loaded");
    assert_eq!(loaded.allocated_objects, 100);
    assert_eq!(reported.sites.get("site_loaded"), Some(loaded));
    assert_eq!(losses(&report).into_keys().collect::<Vec<_>>(), ["late_probes"]);
}

#[test]
fn calls_that_a_library_passes_on_count_once_even_before_jjleak_knows_that_the_library_is_mapped() {
    require_bpf!();
    let library = compile::wrapper(Wrapper::Calling);
    let mut ledger = Ledger::start();

    let mut jjleak = ledger.attach(&["--follow", "--format", "json"]);
    ledger.load(library.to_str().unwrap());
    while !jjleak.wait_for(" WARN ").contains("has an allocator that is counted only from now on") {}
    // The next program finds the probes in the library.
    ledger.exec();
    ledger.run("malloc");
    ledger.load(library.to_str().unwrap());
    ledger.run("loaded");
    let report = jjleak.interrupt().assert_done().report();

    // The dynamic loader allocates too.
    let mut counted = Accounts::of(&report);
    counted.sites.retain(|site, _| site.starts_with("site_"));
    assert_eq!(counted, ledger.accounts());
    assert_eq!(losses(&report).into_keys().collect::<Vec<_>>(), ["late_probes"], "of the first program");
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

    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
}
