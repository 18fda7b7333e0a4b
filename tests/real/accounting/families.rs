//! Allocators other than glibc's: figures are exact if the allocator is supported; if not, the target is unharmed and the report
//! says so.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::support::accounts::{assert_nothing_lost, losses};
use crate::support::bounded::{LONG, SOON};
use crate::support::compile::{self, LedgerBuild};
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::{require_archive, require_bpf, require_library, require_program};
use crate::support::process::Process;

pub(crate) const JEMALLOC: &str = "libjemalloc.so.2";
pub(crate) const TCMALLOC: &str = "libtcmalloc_minimal.so.4";
pub(crate) const MIMALLOC: &str = "libmimalloc.so.2";

/// Every function and the corner cases of its contract.
pub(crate) const SCENARIOS: &[&str] = &[
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

/// Runs scenarios under one jjleak: its report must equal the program's accounting, and nothing may be lost.
pub(crate) fn assert_exact(mut ledger: Ledger, scenarios: &[&str], attached_to: &[&str]) {
    ledger.set_up("realloc_earlier");
    let jjleak = ledger.attach(&["--format", "json"]);
    for scenario in scenarios {
        ledger.run(scenario);
    }
    let ended = jjleak.interrupt().assert_done();
    let report = ended.report();

    ledger.accounts().assert_reported(&report);
    assert_nothing_lost(&report);
    assert_attached_to(&ended, attached_to);
}

pub(crate) fn assert_attached_to(ended: &Ended, allocators: &[&str]) {
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

/// Runs the workload of a Rust program: in total, its report must equal the program's accounting.
fn assert_rust_exact(command: &mut Command, attached_to: &[&str]) {
    let mut ledger = Ledger::spawn(command);
    ledger.run("warm-up");
    let jjleak = ledger.attach(&["--format", "json"]);
    ledger.run("work");
    let ended = jjleak.interrupt().assert_done();
    let report = ended.report();

    let accounts = ledger.accounts();
    assert_eq!((report.live, report.allocated), (accounts.live(), accounts.allocated()));
    assert!(accounts.live().objects > 500);
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

    ledger.accounts().assert_reported(&report);
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

        ledger.accounts().assert_reported(&report);
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

/// About 32 MiB of values, compared with which redis's needs for a connection are negligible.
const KEYS: usize = 2_000;

/// A redis-server that listens on its own socket, and a connection to it.
struct Redis {
    process: Process,
    connection: BufReader<UnixStream>,
    _folder: tempfile::TempDir,
}

impl Redis {
    /// With its header of 5 bytes and a zero at the end, a string of this length takes 16 KiB both for redis, which counts the
    /// sizes that jemalloc provides, and for jjleak, which counts the requested sizes.
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
