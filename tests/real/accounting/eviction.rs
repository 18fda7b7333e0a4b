//! Stacks without live blocks leave the kernel side's table before it is full: nothing is lost, and all totals stay exact.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jjleak::render::json::{Document, StackDocument};

use crate::support::accounts::{Accounts, assert_nothing_lost, call_site, losses};
use crate::support::bounded::{LONG, SOON, until};
use crate::support::compile;
use crate::support::jjleak::Jjleak;
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::{require_bpf, require_time};
use crate::support::process::Process;
use crate::support::tables;

/// A table of 4,096 rows, of which a process has at most 2,048, for 20,000 stacks.
const SMALL: &[&str] = &["--max-stacks", "1000", "--max-live", "10000", "--format", "json"];
const PASSING: usize = 20_000;
/// Number of stacks that come at a time, and that there must be room for.
const AT_ONCE: usize = 200;
/// From 1,536 used rows on, stacks leave the table.
const MOST_IN_USE: usize = 1_600;
/// Of so many stacks, one keeps its block.
const ONE_KEPT: usize = 1_000;
/// After this time without allocations, a stack leaves the table whatever it is waiting for.
const IDLE: Duration = Duration::from_secs(10);
/// Stacks that keep their blocks, more than a process may have in the rows that are used at first, and how many come at a time.
const STANDING: usize = 70_000;
const STANDING_AT_ONCE: usize = 5_000;
/// Stacks of the long run, and how many of them keep their block.
const MILLION: u64 = 1_000_000;
const LIVE: u64 = 20;

/// Lets all stacks pass, as fast as others leave the table.
fn let_pass(ledger: &mut Ledger, jjleak: &Jjleak) {
    for _ in 0..PASSING / AT_ONCE {
        until(LONG, "stacks leave the table", || tables::stacks(jjleak.pid()) <= MOST_IN_USE);
        ledger.run("passing_stacks");
    }
}

/// The report after all stacks have passed so many times, which must equal the program's accounting.
fn exact_report(options: &[&str], times: usize) -> Document {
    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(&[SMALL, options].concat());
    (0..times).for_each(|_| let_pass(&mut ledger, &jjleak));
    let (report, recorded) = (jjleak.interrupt().assert_done().report(), ledger.accounts());
    assert_nothing_lost(&report);
    recorded.assert_reported(&report);
    report
}

/// Number of a passing stack, by the functions that it went through; `None` for another stack.
fn number(stack: &StackDocument) -> Option<usize> {
    let bit = |symbol: &str| match symbol {
        "go_left" => Some('1'),
        "go_right" => Some('0'),
        _ => None,
    };
    // Leaf first: the lowest bit is that of the outermost call.
    let bits: String = stack.frames.iter().filter_map(|frame| bit(&frame.symbol)).collect();
    usize::from_str_radix(&bits, 2).ok()
}

fn assert_each_stack_is_there_once(report: &Document) {
    let mut numbers: Vec<_> = report.stacks.iter().filter_map(number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..PASSING).collect::<Vec<_>>());
    let ids: BTreeSet<_> = report.stacks.iter().map(|stack| &stack.id).collect();
    assert_eq!(ids.len(), report.stacks.len());
    assert!(report.stacks.iter().all(|stack| stack.status == "complete"));
}

fn assert_kept_blocks_have_their_stacks(report: &Document) {
    let live = report.stacks.iter().filter(|stack| stack.live.objects > 0);
    let numbers: BTreeSet<_> = live.map(number).collect();
    assert!(numbers.into_iter().eq((0..PASSING).step_by(ONE_KEPT).map(Some)));
}

#[test]
fn more_stacks_pass_than_the_table_holds_and_nothing_is_lost() {
    require_bpf!();

    let report = exact_report(&[], 1);

    assert_each_stack_is_there_once(&report);
    assert_kept_blocks_have_their_stacks(&report);
}

#[test]
fn sums_of_live_blocks_are_exact_while_stacks_leave_the_table() {
    require_bpf!();

    let report = exact_report(&["--combined-only"], 1);

    assert_each_stack_is_there_once(&report);
    assert_kept_blocks_have_their_stacks(&report);
}

#[test]
fn stacks_that_leave_the_table_keep_their_threads() {
    require_bpf!();

    let report = exact_report(&["--threads"], 1);

    assert_each_stack_is_there_once(&report);
    let threads: BTreeSet<_> = report.stacks.iter().map(|stack| &stack.thread).collect();
    assert!(threads.len() == 1 && threads.iter().all(|thread| thread.is_some()), "{threads:?}");
}

#[test]
fn a_stack_that_comes_back_is_the_same_stack() {
    require_bpf!();

    let report = exact_report(&[], 2);

    assert_each_stack_is_there_once(&report);
    let mut passing = report.stacks.iter().filter(|stack| number(stack).is_some());
    assert!(passing.all(|stack| stack.allocated.objects == 2));
}

#[test]
fn the_table_grows_with_the_stacks_that_have_to_stay() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let jjleak = ledger.attach(&["--format", "json"]);
    let rows = || tables::stack_rows(jjleak.pid());
    let at_first = rows();

    for _ in 0..2 * STANDING / STANDING_AT_ONCE {
        until(LONG, "the table has room", || tables::stacks(jjleak.pid()) <= rows() / 8 * 3);
        ledger.run("standing_stacks");
    }
    let at_last = rows();
    let (report, recorded) = (jjleak.interrupt().assert_done().report(), ledger.accounts());

    assert_nothing_lost(&report);
    recorded.assert_reported(&report);
    let standing: Vec<_> = report.stacks.iter().filter(|stack| number(stack).is_some()).collect();
    assert_eq!(standing.len(), STANDING);
    assert!(standing.iter().all(|stack| (stack.live.objects, stack.allocated.objects) == (2, 2)));
    assert_eq!((at_first, at_last), (1 << 17, 1 << 19));
}

/// An allocation function that returns when it is told to.
const WAITING: &str = r#"
[[allocator]]
name = "pool"
file = "ledger"

[[allocator.function]]
name = "pool_wait"
role = "allocate"
size = 2

[[allocator.function]]
name = "pool_put"
role = "free"
pointer = 2
"#;

#[test]
fn a_call_that_outlasts_its_row_keeps_its_stack() {
    require_bpf!();
    let table = tempfile::NamedTempFile::new().unwrap();
    fs::write(&table, WAITING).unwrap();
    let mut ledger = Ledger::start();
    ledger.set_up("held_call");

    let jjleak = ledger.attach(&[SMALL, &["--allocators", table.path().to_str().unwrap()]].concat());
    ledger.run("held_call");
    let begin = Instant::now();
    while begin.elapsed() < 2 * IDLE {
        let_pass(&mut ledger, &jjleak);
    }
    let_pass(&mut ledger, &jjleak);
    ledger.run("end_of_held_call");
    let (report, recorded) = (jjleak.interrupt().assert_done().report(), ledger.accounts());

    assert_nothing_lost(&report);
    recorded.assert_reported(&report);
    let held: Vec<_> = report.stacks.iter().filter(|stack| call_site(stack) == "site_pool_wait").collect();
    assert_eq!((held.len(), held[0].live.objects, held[0].allocated.bytes), (1, 1, 300));
    assert!(held[0].frames.iter().any(|frame| frame.symbol == "call_and_wait"));
}

#[test]
fn a_flood_of_stacks_is_bounded_and_reported_and_other_processes_stay_exact() {
    require_bpf!();
    let (mut flood, mut other) = (Ledger::start(), Ledger::start());
    let pids = [flood.pid(), other.pid()].map(|pid| pid.to_string());

    let jjleak = Jjleak::attached(["-p", &pids[0], "-p", &pids[1]].iter().chain(SMALL));
    flood.open_accounts();
    other.open_accounts();
    flood.begin("flood_of_stacks");
    other.run("twins");
    other.run("depths");
    flood.expect_end();
    let ended = jjleak.interrupt().assert_done();

    let (of_flood, of_other) = (ended.report_on(flood.pid()), ended.report_on(other.pid()));
    let exact = other.accounts();
    assert_nothing_lost(&of_other);
    exact.assert_reported(&of_other);
    assert!(of_other.stacks.iter().all(|stack| !stack.frames.is_empty()));
    let flooded = flood.accounts();
    assert_eq!((of_flood.live, of_flood.allocated), (flooded.live(), flooded.allocated()));
    let lost = losses(&of_flood);
    assert!(lost["stack_table_full"] > 0, "{lost:?}");
    assert!(lost.keys().all(|name| ["stack_table_full", "frame_storage_full"].contains(name)), "{lost:?}");
    assert!(Accounts::of(&of_flood).sites.len() <= 3);
}

#[test]
fn a_million_stacks_lose_nothing_and_take_bounded_memory() {
    require_bpf!();
    require_time!("a million stacks take minutes");
    let count = [MILLION, 4_000, MILLION / LIVE].map(|number| number.to_string());
    let mut program = Process::spawn(
        Command::new(compile::paths()).args(count).stdin(Stdio::piped()).stdout(Stdio::piped()),
    );
    let mut stdout = Lines::of("the program with very many stacks", program.stdout.take().unwrap());
    assert_eq!(stdout.next(SOON), "ready");

    let jjleak = Jjleak::attached(["-p", &program.id().to_string(), "--strict", "3600"]);
    let resident = || kibibytes(jjleak.pid(), "RssAnon:");
    let at_first = resident();
    writeln!(program.stdin.as_mut().unwrap()).unwrap();
    assert_eq!(stdout.next(LONG), "done");
    let at_last = resident();
    let ended = jjleak.interrupt().assert_done();

    let total = format!("{} bytes live in {LIVE} objects", 24 * LIVE);
    assert!(
        ended.stdout.contains(&total) && ended.stdout.contains("allocated in 1000000 objects"),
        "{}",
        ended.stdout
    );
    assert!(at_last - at_first < 160 << 10, "{at_first} KiB at first, {at_last} KiB for a million stacks");
}

/// A field of `/proc/PID/status`.
fn kibibytes(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse().unwrap()
}
