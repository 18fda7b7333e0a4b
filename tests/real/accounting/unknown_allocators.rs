//! Allocators of no known family: figures are exact for those that a file exports as `malloc` and so on; those that cannot be
//! followed are named among the losses.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::accounting::families::{SCENARIOS, assert_attached_to, assert_exact};
use crate::support::accounts::{assert_nothing_lost, losses};
use crate::support::compile::{self, LedgerBuild, Wrapper};
use crate::support::ledger::Ledger;
use crate::support::privilege::{require_archive, require_bpf, require_library};

const ADDRESS_SANITIZER: &str = "libasan.so.8";

/// The ledger program with the sanitizer's allocator, set to return null on failure as others do.
fn sanitized() -> Ledger {
    let options = "detect_leaks=0:allocator_may_return_null=1";
    Ledger::spawn(
        Command::new(compile::ledger()).env("LD_PRELOAD", ADDRESS_SANITIZER).env("ASAN_OPTIONS", options),
    )
}

fn strip(program: &Path) {
    assert!(Command::new("strip").arg(program).status().unwrap().success());
}

#[test]
fn address_sanitizers_allocator_is_exact() {
    require_library!(ADDRESS_SANITIZER);

    assert_exact(sanitized(), SCENARIOS, &["of AddressSanitizer in libasan.so.8", "of glibc in libc.so.6"]);
}

#[test]
fn a_call_that_a_wrapper_passes_on_counts_once() {
    require_bpf!();
    for wrapper in [Wrapper::Calling, Wrapper::Jumping] {
        let library = compile::wrapper(wrapper);
        let mut ledger = Ledger::start_preloading(library.to_str().unwrap());

        let jjleak = ledger.attach(&["--format", "json"]);
        for scenario in SCENARIOS.iter().filter(|scenario| **scenario != "realloc_earlier") {
            ledger.run(scenario);
        }
        let ended = jjleak.interrupt().assert_done();
        let report = ended.report();

        ledger.accounts().assert_reported(&report);
        assert_nothing_lost(&report);
        assert_eq!(report.unknown_frees, 0, "a free that is passed on is one free");
        assert_attached_to(
            &ended,
            &["functions of an unknown allocator in libwrapper", "of glibc in libc.so.6"],
        );
    }
}

#[test]
fn a_stripped_program_with_an_allocator_inside_is_exact_by_what_it_exports() {
    require_archive!("libjemalloc_pic.a");
    let folder = tempfile::tempdir().unwrap();
    let program = compile::copy(&compile::ledger_as(LedgerBuild::Jemalloc), folder.path());
    strip(&program);
    let mut ledger = Ledger::start_as(&program);

    let jjleak = ledger.attach(&["--format", "json"]);
    for scenario in SCENARIOS.iter().filter(|scenario| **scenario != "realloc_earlier") {
        ledger.run(scenario);
    }
    let ended = jjleak.interrupt().assert_done();
    let (report, accounts) = (ended.report(), ledger.accounts());

    assert_eq!((report.live, report.allocated), (accounts.live(), accounts.allocated()));
    assert_nothing_lost(&report);
    assert_attached_to(&ended, &["functions of an unknown allocator in ledger-Jemalloc"]);
}

#[test]
fn a_malloc_that_cannot_be_followed_is_a_loss() {
    require_bpf!();
    let library = compile::wrapper(Wrapper::Indirect);
    let mut ledger = Ledger::start_preloading(library.to_str().unwrap());

    let jjleak = ledger.attach(&["--format", "json", "--strict"]);
    ledger.run("malloc");
    let ended = jjleak.interrupt();

    assert_eq!(losses(&ended.report()), BTreeMap::from([("unfollowed_allocator", 1)]));
    assert_eq!(ended.status.code(), Some(5));
    let told = ended.stderr.join("\n");
    assert!(told.contains("malloc: its symbol is resolved at run time (IFUNC)"), "{told}");
}

#[test]
fn a_malloc_that_the_kernel_does_not_probe_is_a_loss_and_all_others_are_exact() {
    require_bpf!();
    let library = compile::unprobeable();
    let mut ledger = Ledger::start_preloading(library.to_str().unwrap());

    let jjleak = ledger.attach(&["--format", "json", "--strict"]);
    ledger.run("malloc");
    let ended = jjleak.interrupt();

    ledger.accounts().assert_reported(&ended.report());
    assert_eq!(losses(&ended.report()), BTreeMap::from([("unfollowed_allocator", 1)]));
    assert_eq!(ended.status.code(), Some(5));
    let said = ended.stderr.join("\n");
    assert!(said.contains("libunprobeable.so") && said.contains("the kernel refuses probes"), "{said}");
}

#[test]
fn an_allocator_without_symbols_is_a_loss_and_the_doctor_names_it() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let program = compile::copy(&compile::rust_ledger(false), folder.path());
    strip(&program);
    let mut ledger = Ledger::start_as(&program);
    ledger.run("warm-up");
    let pid = ledger.pid().to_string();

    let jjleak = ledger.attach(&["--format", "json", "--strict"]);
    let ended = jjleak.interrupt();
    let doctor = Command::new(crate::support::jjleak::PROGRAM).args(["doctor", "-p", &pid]).output().unwrap();

    assert_eq!(losses(&ended.report()), BTreeMap::from([("unfollowed_allocator", 1)]));
    assert_eq!(ended.status.code(), Some(5));
    let told = String::from_utf8(doctor.stdout).unwrap();
    assert!(told.contains("jemalloc: the file has no symbols for its functions"), "{told}");
}
