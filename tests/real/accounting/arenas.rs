//! glibc's arenas, read from outside, against glibc's own figures and the program's ledger.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use jjleak::jvm::ProcessMemory;
use jjleak::memory::glibc::{self, Arenas, ProcessPages, Unknown};
use jjleak::processes::{Mapping, Pid};

use crate::support::compile;
use crate::support::lines::Lines;
use crate::support::process::Process;

const LIMIT: Duration = Duration::from_secs(60);
/// Threads, and MiB that each allocates before it frees most of it.
const ARGUMENTS: [&str; 2] = ["3", "8"];
/// What glibc itself allocates for standard streams and threads.
const RUNTIME_BYTES: u64 = 32 << 10;
/// What the threads hold at most while they churn: 256 blocks of 20 KB each.
const CHURN_BYTES: u64 = 3 * 256 * 20_016;

/// The fixture, with its arenas filled.
struct Fixture {
    process: Process,
    lines: Lines,
}

impl Fixture {
    fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        let mut process =
            Process::spawn(command.args(ARGUMENTS).stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut lines = Lines::of("arenas", process.stdout.take().unwrap());
        assert_eq!(lines.next(LIMIT), "ready");
        Self { process, lines }
    }

    fn ask(&mut self, request: &str) -> Vec<u64> {
        writeln!(self.process.stdin.as_mut().unwrap(), "{request}").unwrap();
        self.lines.next(LIMIT).split(' ').filter_map(|number| number.parse().ok()).collect()
    }

    fn read(&self) -> Result<Arenas, Unknown> {
        let pid = Pid::new(self.process.id()).unwrap();
        let (memory, pages) = (ProcessMemory::open(pid).unwrap(), ProcessPages::open(pid).unwrap());
        glibc::read(&memory, &pages, &Mapping::all(pid).unwrap())
    }

    fn resident_pages(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.process.id())).unwrap();
        text.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

#[test]
fn arenas_equal_what_glibc_and_the_ledger_say() {
    for program in [compile::arenas(), compile::static_arenas()] {
        let mut fixture = Fixture::start(program);
        let [arena, mapped, mapped_bytes, used, fast, free, live, chunks] =
            fixture.ask("counts").try_into().unwrap();
        let resident = fixture.resident_pages();
        let arenas = fixture.read().unwrap();
        assert_eq!(fixture.resident_pages(), resident, "a scan makes nothing resident");
        let total = arenas.total().unwrap();
        assert_eq!(arenas.arenas.len(), 4);
        assert_eq!(total.bytes(), arena);
        assert_eq!(total.free.bytes(), free);
        assert_eq!(total.fast.bytes, fast);
        assert_eq!(total.live.bytes + total.cached.bytes + total.overhead, used);
        let own = total.live.bytes - live;
        assert!(own <= RUNTIME_BYTES && total.live.count >= chunks, "{own} bytes in {total:?}");
        let large = arenas.mapped.unwrap();
        assert_eq!((large.chunks.count, large.chunks.bytes), (mapped, mapped_bytes));
        assert_eq!(large.ranges.len(), 1);
    }
}

#[test]
fn a_trim_gives_back_what_was_predicted() {
    let mut fixture = Fixture::start(compile::arenas());
    let predicted = fixture.read().unwrap().total().unwrap().free.trimmable;
    let [before, after] = fixture.ask("trim").try_into().unwrap();
    let measured = before - after;
    println!("predicted {predicted}, measured {measured}");
    assert!(predicted.abs_diff(measured) * 20 <= measured, "{predicted} is not {measured} within 5 %");
    assert!(measured > 1 << 20);
    let rest = fixture.read().unwrap().total().unwrap();
    assert!(rest.free.trimmable * 20 <= measured, "{rest:?}");
}

#[test]
fn arenas_that_change_are_read_or_unknown() {
    let mut fixture = Fixture::start(compile::arenas());
    let live = fixture.ask("counts")[6];
    fixture.ask("churn");
    let mut known = 0;
    for _ in 0..20 {
        match fixture.read().and_then(|arenas| arenas.total()) {
            Ok(total) => {
                known += 1;
                let churned = total.live.bytes.saturating_sub(live);
                assert!(total.live.bytes >= live && churned <= CHURN_BYTES + RUNTIME_BYTES, "{total:?}");
            }
            Err(unknown) => assert_eq!(unknown, Unknown::Torn),
        }
    }
    println!("{known} of 20 scans succeeded");
    assert!(known > 0);
}
