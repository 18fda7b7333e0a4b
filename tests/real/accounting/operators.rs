//! C++ operators of allocators that implement them: figures are exact, and exceptions do no harm.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::accounting::families::{JEMALLOC, MIMALLOC, TCMALLOC};
use crate::support::accounts::{Accounts, assert_nothing_lost};
use crate::support::bounded::{LONG, SOON};
use crate::support::compile;
use crate::support::jjleak::Jjleak;
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::require_library;
use crate::support::process::Process;

/// Runs C++ scenarios under one jjleak. Allocations for throwing an exception are accounted under the C++ library's function,
/// and are not in the program's accounting. Returns the number of exceptions.
fn assert_operators_exact(library: &str, scenarios: &[&str]) -> u64 {
    let mut ledger = Ledger::start_as_preloading(compile::cplusplus_ledger(), library);
    let jjleak = ledger.attach(&["--format", "json"]);
    for scenario in scenarios {
        ledger.run(scenario);
    }
    let report = jjleak.interrupt().assert_done().report();

    let mut reported = Accounts::of(&report);
    let thrown = reported.sites.remove("__cxa_allocate_exception").unwrap_or_default();
    assert_eq!(reported, ledger.accounts(), "under {library}");
    assert_eq!(thrown.live_objects, 0, "under {library}");
    assert_nothing_lost(&report);
    thrown.allocated_objects
}

#[test]
fn operator_new_and_delete_are_exact_in_all_their_forms() {
    for library in [JEMALLOC, TCMALLOC, MIMALLOC] {
        require_library!(library);
        assert_operators_exact(library, &["operators"]);
    }
}

/// Debian's mimalloc, built as C, aborts instead of throwing, and has no new handler.
#[test]
fn operator_new_that_throws_or_calls_back_is_exact() {
    for library in [JEMALLOC, TCMALLOC] {
        require_library!(library);
        assert_eq!(assert_operators_exact(library, &["operators_handler"]), 0);
        assert!(assert_operators_exact(library, &["operators_throw"]) > 0);
        assert!(assert_operators_exact(library, &["operators_handler_throws"]) > 0);
    }
}

/// A return probe on an `operator new` that throws would end the program: the unwinder does not know the kernel's trampoline
/// that replaces the return address.
#[test]
fn bad_alloc_can_be_caught_while_jjleak_is_attached() {
    for library in [JEMALLOC, TCMALLOC] {
        require_library!(library);
        let mut command = Command::new(compile::exhaustion());
        command.env("LD_PRELOAD", library).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command);
        let mut stdin = process.stdin.take().unwrap();
        let mut stdout = Lines::of("exhaustion", process.stdout.take().unwrap());
        assert_eq!(stdout.next(SOON), "ready");

        let jjleak = Jjleak::attached(["-p", &process.id().to_string(), "--format", "json"]);
        writeln!(stdin).unwrap();
        for line in ["caught bad_alloc", "caught bad_alloc", "caught bad_alloc", "done"] {
            assert_eq!(stdout.next(LONG), line, "under {library}");
        }
        let report = jjleak.interrupt().assert_done().report();
        drop(stdin);

        assert_eq!(process.end(SOON).code(), Some(0), "under {library}");
        assert_nothing_lost(&report);
    }
}
