//! Allocators other than glibc's: exact where they are followed, and where they are not, no target is harmed and the
//! report says so.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::books::{Books, assert_nothing_lost, losses};
use crate::support::bounded::{LONG, SOON};
use crate::support::compile::{self, LedgerBuild};
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::{require_archive, require_bpf, require_library, require_program};
use crate::support::process::Process;

const JEMALLOC: &str = "libjemalloc.so.2";
const TCMALLOC: &str = "libtcmalloc_minimal.so.4";
const MIMALLOC: &str = "libmimalloc.so.2";

/// Every function and the corners of its contract.
const SCENARIOS: &[&str] = &[
    "malloc",
    "malloc_zero",
    "malloc_fail",
    "free_null",
    "calloc",
    "calloc_overflow",
    "realloc_grow",
    "realloc_shrink",
    "realloc_fail",
    "realloc_null",
    "realloc_zero",
    "realloc_earlier",
    "reallocarray",
    "reallocarray_overflow",
    "posix_memalign",
    "posix_memalign_error",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "beyond_4_gib",
    "storm",
];

/// Plays scenarios under one jjleak: its report must equal the program's books, and nothing may be lost.
fn assert_exact(mut ledger: Ledger, scenarios: &[&str], attached_to: &[&str]) {
    ledger.set_up("realloc_earlier");
    let jjleak = ledger.attach(&["--format", "json"]);
    for scenario in scenarios {
        ledger.run(scenario);
    }
    let ended = jjleak.interrupt().assert_done();
    let report = ended.report();

    ledger.books().assert_reported(&report);
    assert_nothing_lost(&report);
    assert_attached_to(&ended, attached_to);
}

fn assert_attached_to(ended: &Ended, allocators: &[&str]) {
    let line = ended.stderr.iter().find(|line| line.starts_with("jjleak: attached")).unwrap();
    for allocator in allocators {
        assert!(line.contains(allocator), "not attached to {allocator}: {line}");
    }
}

#[test]
fn a_preloaded_jemalloc_is_exact() {
    require_library!(JEMALLOC);
    let attached_to = ["of jemalloc in libjemalloc.so.2", "of glibc in libc.so.6"];

    assert_exact(Ledger::start_preloading(JEMALLOC), SCENARIOS, &attached_to);
}

#[test]
fn a_preloaded_tcmalloc_is_exact() {
    require_library!(TCMALLOC);
    let attached_to = ["of tcmalloc in libtcmalloc_minimal.so.4", "of glibc in libc.so.6"];

    assert_exact(Ledger::start_preloading(TCMALLOC), SCENARIOS, &attached_to);
}

#[test]
fn a_preloaded_mimalloc_is_exact() {
    require_library!(MIMALLOC);
    let attached_to = ["of mimalloc in libmimalloc.so.2", "of glibc in libc.so.6"];

    assert_exact(Ledger::start_preloading(MIMALLOC), SCENARIOS, &attached_to);
}

#[test]
fn musl_is_exact_beside_a_program_and_inside() {
    require_program!("musl-gcc");

    let program = compile::ledger_as(LedgerBuild::Musl);
    assert_exact(Ledger::start_as(&program), SCENARIOS, &["of musl in libc.so"]);
    let program = compile::ledger_as(LedgerBuild::StaticMusl);
    assert_exact(Ledger::start_as(&program), SCENARIOS, &["of musl in ledger-StaticMusl"]);
}

#[test]
fn a_static_program_with_glibc_is_exact() {
    require_bpf!();
    for build in [LedgerBuild::Static, LedgerBuild::StaticPie] {
        let program = compile::ledger_as(build);
        assert_exact(Ledger::start_as(&program), SCENARIOS, &[&format!("of glibc in ledger-{build:?}")]);
    }
}

#[test]
fn an_allocator_linked_into_a_program_is_exact() {
    for (build, archive, family) in [
        (LedgerBuild::Jemalloc, "libjemalloc_pic.a", "jemalloc"),
        (LedgerBuild::Tcmalloc, "libtcmalloc_minimal.a", "tcmalloc"),
    ] {
        require_archive!(archive);
        let program = compile::ledger_as(build);
        let scenarios = [SCENARIOS, &["operators"]].concat();
        let attached_to = format!("of {family} in ledger-{build:?}");
        assert_exact(Ledger::start_as(&program), &scenarios, &[&attached_to, "of glibc in libc.so.6"]);
    }
}

/// Plays what a program in Rust does: in total, its report must equal the program's books.
fn assert_rust_exact(command: &mut Command, attached_to: &[&str]) {
    let mut ledger = Ledger::spawn(command);
    ledger.run("warm-up");
    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("work");
    let ended = jjleak.interrupt().assert_done();
    let report = ended.report();

    let books = ledger.books();
    assert_eq!((report.live, report.allocated), (books.live(), books.allocated()));
    assert!(books.live().objects > 500);
    assert_nothing_lost(&report);
    assert_attached_to(&ended, attached_to);
}

#[test]
fn jemalloc_in_a_rust_program_is_exact_under_its_prefix() {
    require_bpf!();
    let program = compile::rust_ledger(false);

    let attached_to = ["of jemalloc in rust-ledger", "of glibc in libc.so.6"];
    assert_rust_exact(&mut Command::new(program), &attached_to);
}

#[test]
fn jemalloc_in_a_rust_program_is_exact_in_the_place_of_malloc() {
    require_bpf!();
    let program = compile::rust_ledger(true);

    assert_rust_exact(&mut Command::new(program), &["of jemalloc in rust-ledger"]);
}

#[test]
fn three_allocators_in_one_process_are_exact() {
    require_library!(MIMALLOC);
    let program = compile::rust_ledger(false);

    let attached_to =
        ["of jemalloc in rust-ledger", "of mimalloc in libmimalloc.so.2", "of glibc in libc.so.6"];
    assert_rust_exact(Command::new(program).env("LD_PRELOAD", MIMALLOC), &attached_to);
}

#[test]
fn jemallocs_own_functions_are_exact() {
    require_library!(JEMALLOC);

    assert_exact(Ledger::start_preloading(JEMALLOC), &["mallocx", "rallocx"], &["of jemalloc"]);
}

#[test]
fn a_resize_in_place_is_exact() {
    require_library!(JEMALLOC);
    let mut ledger = Ledger::start_preloading(JEMALLOC);

    ledger.set_up("xallocx");
    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("xallocx");
    let report = jjleak.interrupt().assert_done().report();

    ledger.books().assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn mimallocs_and_tcmallocs_own_functions_are_exact() {
    for library in [MIMALLOC, TCMALLOC] {
        require_library!(library);
        let mut ledger = Ledger::start_preloading(library);

        ledger.set_up("own");
        let jjleak = ledger.attach(&["--format", "json"]);
        ledger.run("own");
        let report = jjleak.interrupt().assert_done().report();

        ledger.books().assert_reported(&report);
        assert_nothing_lost(&report);
    }
}

#[test]
fn a_heap_that_is_destroyed_is_counted_as_not_followed() {
    require_library!(MIMALLOC);
    let mut ledger = Ledger::start_preloading(MIMALLOC);

    ledger.set_up("heap_destroy");
    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("heap_destroy");
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!(losses(&report), BTreeMap::from([("unseen_free", 1)]));
}

/// Runs a program of binutils in a folder.
fn binutils(folder: &Path, command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).current_dir(folder).status().unwrap();
    assert!(status.success(), "{command}");
}

/// The call sites are not named: the program has no symbols. In total, its report must equal its books.
fn assert_totals_exact(program: &Path) {
    let mut ledger = Ledger::start_as(program);
    let jjleak = ledger.attach(&["--format", "json"]);
    for scenario in SCENARIOS.iter().filter(|scenario| **scenario != "realloc_earlier") {
        ledger.run(scenario);
    }
    let report = jjleak.interrupt().assert_done().report();

    let books = ledger.books();
    assert_eq!((report.live, report.allocated), (books.live(), books.allocated()));
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

/// Plays one scenario under jjleak with these options: its report must equal the program's books.
fn assert_exact_with(options: &[&str], scenario: &str) {
    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(&[options, &["--format", "json"]].concat());
    ledger.run(scenario);
    let report = jjleak.interrupt().assert_done().report();

    ledger.books().assert_reported(&report);
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

/// Plays scenarios of C++ under one jjleak. What throwing an exception allocates is accounted, too, under the C++
/// library's function, and stands not in the program's books. Returns how many exceptions there were.
fn assert_operators_exact(library: &str, scenarios: &[&str]) -> u64 {
    let mut ledger = Ledger::start_as_preloading(compile::cplusplus_ledger(), library);
    let jjleak = ledger.attach(&["--format", "json"]);
    for scenario in scenarios {
        ledger.run(scenario);
    }
    let report = jjleak.interrupt().assert_done().report();

    let mut reported = Books::of(&report);
    let thrown = reported.sites.remove("__cxa_allocate_exception").unwrap_or_default();
    assert_eq!(reported, ledger.books(), "under {library}");
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

/// Debian's mimalloc, built as C, aborts instead of throwing, and knows no new handler.
#[test]
fn operator_new_that_throws_or_calls_back_is_exact() {
    for library in [JEMALLOC, TCMALLOC] {
        require_library!(library);
        assert_eq!(assert_operators_exact(library, &["operators_handler"]), 0);
        assert!(assert_operators_exact(library, &["operators_throw"]) > 0);
        assert!(assert_operators_exact(library, &["operators_handler_throws"]) > 0);
    }
}

/// A return probe on an `operator new` that throws would end the program: the unwinder does not know the kernel's
/// trampoline that stands for the return address.
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

/// Some 32 MiB of values, beside which what redis needs for a connection is nothing.
const KEYS: usize = 2_000;

/// A redis-server that listens on a socket of its own, and a connection to it.
struct Redis {
    process: Process,
    connection: BufReader<UnixStream>,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// With its header of 5 bytes and a zero at the end, a string of this length is 16 KiB: as large for redis, which
    /// counts what jemalloc gives, as for jjleak, which counts what redis asks for.
    const VALUE: usize = 16384 - 6;

    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--daemonize", "no"]);
        let mut process = Process::spawn(command.current_dir(folder.path()).stdout(Stdio::piped()));
        let mut log = Lines::of("redis-server", process.stdout.take().unwrap());
        while !log.next(SOON).to_lowercase().contains("ready to accept connections") {}
        let connection = UnixStream::connect(folder.path().join("redis.sock")).unwrap();
        connection.set_read_timeout(Some(LONG)).unwrap();
        Self { process, connection: BufReader::new(connection), _folder: folder }
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.connection.get_mut(), "{command}\r").unwrap();
        let mut line = String::new();
        self.connection.read_line(&mut line).unwrap();
        let Some(length) = line.strip_prefix('$') else { return line };
        let mut bulk = vec![0; length.trim().parse::<usize>().unwrap() + 2];
        self.connection.read_exact(&mut bulk).unwrap();
        String::from_utf8(bulk).unwrap()
    }

    fn set(&mut self, keys: std::ops::Range<usize>) {
        let value = "v".repeat(Self::VALUE);
        for key in keys {
            assert_eq!(self.ask(&format!("SET key:{key} {value}")), "+OK\r\n");
        }
    }

    fn used_memory(&mut self) -> f64 {
        let info = self.ask("INFO memory");
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        used.parse().unwrap()
    }

    fn attach(&self) -> Jjleak {
        Jjleak::attached(["-p", &self.process.id().to_string(), "--format", "json"])
    }
}

#[test]
fn the_keys_of_a_redis_server_are_what_it_says_they_are() {
    require_program!("redis-server");
    let mut redis = Redis::start();

    let jjleak = redis.attach();
    let before = redis.used_memory();
    redis.set(0..KEYS);
    let held = redis.used_memory() - before;
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    #[expect(clippy::cast_precision_loss, reason = "some tens of megabytes")]
    let live = report.live.bytes as f64;
    assert!((live / held - 1.0).abs() < 0.01, "{live} bytes live, redis says {held}");

    let jjleak = redis.attach();
    redis.set(KEYS..2 * KEYS);
    assert_eq!(redis.ask("FLUSHALL"), "+OK\r\n");
    let report = jjleak.interrupt().assert_done().report();

    assert_nothing_lost(&report);
    #[expect(clippy::cast_precision_loss, reason = "some tens of megabytes")]
    let (live, allocated) = (report.live.bytes as f64, report.allocated.bytes as f64);
    assert!(live < 0.01 * held && allocated > held, "{live} bytes live of {allocated} after FLUSHALL");
    assert!(report.unknown_frees >= KEYS as u64, "{} unknown frees", report.unknown_frees);
}
