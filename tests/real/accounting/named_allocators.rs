//! Allocators that the user names, and those whose symbols are outside the file.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::accounting::families::{JEMALLOC, SCENARIOS, assert_attached_to};
use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::{LONG, SOON};
use crate::support::compile::{self, LedgerBuild};
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::{require_bpf, require_library, require_program};
use crate::support::process::Process;

/// Runs a program of binutils in a folder.
fn binutils(folder: &Path, command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).current_dir(folder).status().unwrap();
    assert!(status.success(), "{command}");
}

/// The program has no symbols and so no named call sites. In total, its report must equal its accounting.
fn assert_totals_exact(program: &Path) {
    let mut ledger = Ledger::start_as(program);
    let jjleak = ledger.attach(&["--format", "json"]);
    for scenario in SCENARIOS.iter().filter(|scenario| **scenario != "realloc_earlier") {
        ledger.run(scenario);
    }
    let report = jjleak.interrupt().assert_done().report();

    let accounts = ledger.accounts();
    assert_eq!((report.live, report.allocated), (accounts.live(), accounts.allocated()));
    assert_nothing_lost(&report);
}

#[test]
fn a_stripped_executable_is_exact_by_its_separate_debug_file() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let program = compile::copy(&compile::ledger_as(LedgerBuild::Static), folder.path());
    let name = program.file_name().unwrap().to_str().unwrap();
    fs::create_dir(folder.path().join(".debug")).unwrap();
    binutils(folder.path(), &format!("objcopy --only-keep-debug {name} .debug/symbols.debug"));
    binutils(folder.path(), &format!("objcopy --strip-all --add-gnu-debuglink=.debug/symbols.debug {name}"));

    assert_totals_exact(&program);
}

#[test]
fn a_stripped_executable_is_exact_by_its_mini_debug_info() {
    require_program!("xz");
    let folder = tempfile::tempdir().unwrap();
    let program = compile::copy(&compile::ledger_as(LedgerBuild::Static), folder.path());
    let name = program.file_name().unwrap().to_str().unwrap();
    binutils(folder.path(), &format!("objcopy --only-keep-debug --remove-section=.debug_* {name} mini"));
    binutils(folder.path(), "xz --check=crc64 mini");
    binutils(folder.path(), &format!("objcopy --strip-all --add-section=.gnu_debugdata=mini.xz {name}"));

    assert_totals_exact(&program);
}

#[test]
fn a_stripped_executable_without_symbols_is_refused_with_what_to_do() {
    require_bpf!();
    let folder = tempfile::tempdir().unwrap();
    let program = compile::copy(&compile::ledger_as(LedgerBuild::Static), folder.path());
    binutils(folder.path(), &format!("strip {}", program.file_name().unwrap().to_str().unwrap()));
    let ledger = Ledger::start_as(&program);

    let ended = Ended::of(["-p", &ledger.pid().to_string()]);

    assert_eq!(ended.status.code(), Some(1));
    let told = ended.stderr.join("\n");
    assert!(told.contains("maps no allocator that jjleak knows"), "{told}");
    assert!(told.contains("install its debug symbols, or name its functions (--allocators)"), "{told}");
}

/// Runs one scenario under jjleak with these options: its report must equal the program's accounting.
fn assert_exact_with(options: &[&str], scenario: &str) {
    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(&[options, &["--format", "json"]].concat());
    ledger.run(scenario);
    let report = jjleak.interrupt().assert_done().report();

    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn functions_with_a_prefix_are_exact() {
    require_bpf!();

    assert_exact_with(&["-S", "own_"], "prefixed");
}

/// The fixture's pool.
const POOL: &str = r#"
[[allocator]]
name = "pool"
file = "ledger"

[[allocator.function]]
name = "pool_get"
role = "allocate"
size = 2

[[allocator.function]]
name = "pool_array"
role = "allocate"
size = 2
count = 3
may_throw = true    # It does not, and is followed by its exits all the same.

[[allocator.function]]
name = "pool_place"
role = "allocate"
size = 1
pointer = 2
result = "pointee"

[[allocator.function]]
name = "pool_change"
role = "resize"
size = 2
pointer = 3

[[allocator.function]]
name = "pool_put"
role = "free"
pointer = 2
"#;

#[test]
fn functions_that_a_table_names_are_exact() {
    require_bpf!();
    let table = tempfile::NamedTempFile::new().unwrap();
    fs::write(&table, POOL).unwrap();

    assert_exact_with(&["--allocators", table.path().to_str().unwrap()], "pool");
}

#[test]
fn a_wrong_table_is_refused_with_its_line() {
    let table = tempfile::NamedTempFile::new().unwrap();
    fs::write(&table, POOL.replace("role = \"free\"", "role = \"release\"")).unwrap();

    let ended = Ended::of(["-p", "1", "--allocators", table.path().to_str().unwrap()]);

    assert_eq!(ended.status.code(), Some(2));
    let told = ended.stderr.join("\n");
    assert!(told.contains("line 33: unknown variant `release`"), "{told}");
    assert!(told.contains("correct the table as docs/allocators.md describes it"), "{told}");
}

#[test]
fn one_file_alone_is_profiled() {
    require_library!(JEMALLOC);
    let mut ledger = Ledger::start_preloading(JEMALLOC);

    let jjleak = ledger.attach(&["-O", "libc.so.6", "--format", "json"]);
    ledger.run("malloc");
    let ended = jjleak.interrupt().assert_done();

    assert_eq!(ended.report().allocated.objects, 0, "malloc is jemalloc's");
    assert_attached_to(&ended, &["functions of glibc in libc.so.6;"]);
}

/// libstdc++'s `operator new`, which calls the C library's `malloc`.
const OPERATOR_NEW: &str = r#"
[[allocator]]
name = "libstdc++"
file = "libstdc++.so.6"

[[allocator.function]]
name = "_Znwm"
role = "allocate"
size = 1
may_throw = true
"#;

#[test]
fn a_malloc_that_fails_in_an_operator_new_leaves_nothing_behind() {
    require_bpf!();
    let table = tempfile::NamedTempFile::new().unwrap();
    fs::write(&table, OPERATOR_NEW).unwrap();
    for ways in [&[][..], &["--entry-and-return"]] {
        let mut process =
            Process::spawn(Command::new(compile::exhaustion()).stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut stdin = process.stdin.take().unwrap();
        let mut stdout = Lines::of("exhaustion", process.stdout.take().unwrap());
        assert_eq!(stdout.next(SOON), "ready");
        let (pid, table) = (process.id().to_string(), table.path().to_str().unwrap());
        let options = ["-p", &pid, "--allocators", table, "--format", "json"];
        let jjleak = Jjleak::attached(options.iter().chain(ways));

        writeln!(stdin).unwrap();
        for line in ["caught bad_alloc", "caught bad_alloc", "caught bad_alloc", "done"] {
            assert_eq!(stdout.next(LONG), line);
        }
        let report = jjleak.interrupt().assert_done().report();
        drop(stdin);

        assert_eq!(process.end(SOON).code(), Some(0));
        assert_nothing_lost(&report);
    }
}
