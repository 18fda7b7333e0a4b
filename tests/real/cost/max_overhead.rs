//! `--max-overhead`: figures are exact as long as nothing is left out, exact within windows, and otherwise estimates with a
//! correct error.

use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use jjleak::attach::{Programs, Settings, now_ns};
use jjleak::render::json::{CostDocument, Document};
use jjleak::snapshot::BlockFilter;
use jjleak_common::counter::Counter;

use crate::support::accounts::{Accounts, assert_nothing_lost};
use crate::support::attached::Attached;
use crate::support::bounded::{LONG, SOON};
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, NEVER_REACHED};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// Standard errors that one estimate in five million exceeds.
const FAR: f64 = 5.2;
/// Standard errors that one estimate in about 300 exceeds.
const THREE: f64 = 3.;

/// A bound, in percent: a program that does nothing but allocate and free spends more than that on its frees alone, if they are counted.
const LOW_BOUND: &str = "5";

/// A bound, in percent: counting everything costs the leaking program more than that, and its frees fit. A breakpoint takes three
/// times as long on some machines as on others.
fn bound() -> &'static str {
    /// Share of what counting everything costs. The frees cost about a tenth of that.
    const SHARE: f64 = 0.45;
    static BOUND: LazyLock<String> = LazyLock::new(|| {
        let (report, _) = paced(&[], 2_000);
        let cost = report.cost.expect("a process that runs has a cost");
        let bound = format!("{:.1}", 100. * SHARE * of_own(&cost));
        println!("bound: {bound} %");
        bound
    });
    &BOUND
}

/// Cost as a share of the CPU time that the process uses itself.
fn of_own(cost: &CostDocument) -> f64 {
    let of_cpu = cost.of_cpu.expect("what calls take is known");
    of_cpu / (1. - of_cpu)
}

/// Sizes of the blocks that the paced program leaks, and of those that it frees at once.
const LEAKED_SIZE: u64 = 1000;
const CHURNED_SIZE: u64 = 64;

/// A program that leaks at a steady pace.
pub(super) struct Paced {
    process: Process,
    stdin: ChildStdin,
    said: Lines,
}

impl Paced {
    pub(super) fn start() -> Self {
        Self::spawn(&mut Command::new(compile::paced()))
    }

    /// The same with the library that samples malloc: one allocation in 512 KiB.
    pub(super) fn start_sampled() -> Self {
        Self::spawn(Command::new(compile::paced()).env("LD_PRELOAD", compile::sampler_to_preload()))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut said = Lines::of("the paced program", process.stdout.take().unwrap());
        let stdin = process.stdin.take().unwrap();
        assert_eq!(said.next(SOON), "ready");
        Self { process, stdin, said }
    }

    fn attach(&self, options: &[&str]) -> Jjleak {
        self.attach_every("3600", options)
    }

    /// The same, with reports at this interval.
    pub(super) fn attach_every(&self, seconds: &str, options: &[&str]) -> Jjleak {
        let pid = self.process.id().to_string();
        Jjleak::attached(["-p", &pid, seconds, "--format", "json"].iter().chain(options))
    }

    /// Leaks for this time. Returns the number of bytes.
    fn run(&mut self, milliseconds: u32) -> u64 {
        self.obey("run", milliseconds)
    }

    /// The same, but frees most of what it allocates.
    fn churn(&mut self, milliseconds: u32) -> u64 {
        self.obey("churn", milliseconds)
    }

    /// Leaks, replaces entries of a cache, and frees so much a millisecond.
    pub(super) fn mixed(
        &mut self,
        milliseconds: u32,
        [leaks, cached, churned, computes_us]: [u32; 4],
    ) -> u64 {
        writeln!(self.stdin, "mixed {milliseconds} {leaks} {cached} {churned} {computes_us}").unwrap();
        bytes_leaked(&self.said.next(LONG))
    }

    fn obey(&mut self, command: &str, milliseconds: u32) -> u64 {
        writeln!(self.stdin, "{command} {milliseconds}").unwrap();
        bytes_leaked(&self.said.next(LONG))
    }

    /// Number of bytes leaked since the figures of a report begin: they start over as soon as all frees can be followed.
    pub(super) fn leaked_since_beginning_of(&mut self, report: &Document) -> u64 {
        let taken_at: Timestamp = report.time.parse().unwrap();
        let since_taken = Duration::try_from(Timestamp::now().duration_since(taken_at)).unwrap();
        let since_begin = since_taken + Duration::from_secs_f64(report.elapsed_s);
        let begin_ns = now_ns() - u64::try_from(since_begin.as_nanos()).unwrap();
        self.leaked_between(begin_ns, now_ns()).1 * LEAKED_SIZE
    }

    /// Bounds of the number of blocks that it has leaked between two instants.
    fn leaked_between(&mut self, begin_ns: u64, end_ns: u64) -> (u64, u64) {
        writeln!(self.stdin, "between {begin_ns} {end_ns}").unwrap();
        let said = self.said.next(SOON);
        let numbers: Vec<_> = said.split(' ').skip(1).map(|number| number.parse().unwrap()).collect();
        let [least, most] = numbers[..] else { panic!("no numbers: {said}") };
        (least, most)
    }
}

fn bytes_leaked(said: &str) -> u64 {
    said.strip_prefix("leaked ").unwrap_or_else(|| panic!("it has leaked nothing: {said}")).parse().unwrap()
}

/// Runs a program that leaks at a steady pace under jjleak with these options. Returns the report and the number of bytes leaked
/// since its figures begin.
fn paced(options: &[&str], milliseconds: u32) -> (Document, u64) {
    let mut program = Paced::start();
    let jjleak = program.attach(options);
    program.run(milliseconds);
    let report = jjleak.interrupt().assert_done().report();
    let leaked = program.leaked_since_beginning_of(&report);
    (report, leaked)
}

#[expect(clippy::cast_precision_loss, reason = "less than 2^53 bytes")]
fn figure(bytes: u64) -> f64 {
    bytes as f64
}

/// Deviation of an estimate of live bytes, in standard errors.
#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn off(report: &Document, leaked: f64) -> f64 {
    let error = report.live_error.expect("an estimate says how sure it is");
    let off = (report.live.bytes as f64 - leaked) / error.bytes as f64;
    let windows = report.windows.unwrap();
    let live = report.live.bytes;
    println!("{live} for {leaked}, standard error {}, {windows} windows: off by {off:.2}", error.bytes);
    off
}

/// Result of a run with the lowest bound below which all frees are followed: where probes or the machine are slow, a low bound
/// has no room for them, and where they are fast, a high one is never exceeded.
fn with_room_for_frees<T>(bounds: [&'static str; 3], run: impl Fn(&'static str) -> Option<T>) -> T {
    bounds.into_iter().find_map(run).expect("a bound has room for all frees")
}

/// Fails unless the cost of the calls counted by the kernel is less than this share of the process's CPU time.
fn assert_below(report: &Document, share: f64) {
    /// Two thirds of the bound are planned. A report can come after a window whose cost is not yet saved up, and on a busy
    /// machine, probes are removed late, which costs as much as another window: of about five windows, these two are beyond the
    /// plan.
    const MARGIN: f64 = 1.25;
    let cost = report.cost.expect("a process that runs has a cost");
    let of_own = of_own(&cost);
    println!("{of_own:.3} of {share}, with {:?} windows: {cost:?}", report.windows);
    assert!(of_own < MARGIN * share, "{of_own}: {cost:?}");
}

#[test]
fn below_a_bound_figures_are_estimates_from_windows_that_know_their_error() {
    require_bpf!();

    let (report, leaked) = paced(&["--max-overhead", bound()], 15_000);

    let windows = report.windows.expect("counting everything costs more than that");
    assert!(windows >= 3, "{windows} windows");
    let off = off(&report, figure(leaked));
    assert!(off.abs() < FAR, "off by {off}");
    assert!(report.live_error.unwrap().bytes < leaked, "of no use: {:?}", report.live_error);
    assert_nothing_lost(&report);
    assert!(!report.live_unknown);
    assert_below(&report, bound().parse::<f64>().unwrap() / 100.);
}

#[test]
fn a_leak_below_a_bound_is_called_one() {
    /// Seconds of figures that a verdict takes here. On a busy machine, all frees can be followed late, and figures start over then.
    const ENOUGH: f64 = 8.;
    const TRIES: usize = 3;
    require_bpf!();

    let run = || {
        let mut program = Paced::start();
        let jjleak = program.attach_every("0.5", &["--max-overhead", bound(), "--settle", "1"]);
        let leaked = program.run(15_000);
        (jjleak.interrupt().assert_done().report(), leaked)
    };
    let mut runs = std::iter::repeat_with(run).take(TRIES);
    let is_called_one = |report: &Document| report.verdicts.iter().any(|verdict| verdict.kind == "leaking");
    // A verdict from a few windows can be missed; three in a row are not.
    let found = runs.find(|(report, _)| report.elapsed_s > ENOUGH && is_called_one(report));
    let (report, leaked) = found.expect("a leak is called one");

    assert!(report.windows.is_some() && !report.live_unknown);
    let leaking: Vec<_> = report.verdicts.iter().filter(|verdict| verdict.kind == "leaking").collect();
    let [leak] = leaking[..] else { panic!("one call site leaks: {:?}", report.verdicts) };
    let rate = leak.rate.as_ref().expect("what leaks has a rate").bytes_per_s;
    let expected = figure(leaked) / 15.;
    assert!((rate / expected - 1.).abs() < 0.1, "{rate} of {expected}");
}

#[test]
fn live_memory_is_unknown_where_the_bound_has_no_room_for_all_frees() {
    require_bpf!();
    let mut program = Paced::start();

    let jjleak = program.attach(&["--max-overhead", LOW_BOUND]);
    program.churn(8_000);
    let report = jjleak.interrupt().assert_done().report();

    assert!(report.live_unknown, "{:?} windows", report.windows);
    assert_eq!((report.live.bytes, report.live_error), (report.allocated.bytes, None));
    assert!(report.verdicts.is_empty() && report.stacks.iter().all(|stack| stack.live_error.is_none()));
}

#[test]
fn several_estimates_are_within_three_standard_errors() {
    /// Twice as many as CPUs, so that they are busy in windows.
    const AT_A_TIME: usize = 4;
    require_bpf!();

    let run = |bound| {
        let (report, leaked) = paced(&["--max-overhead", bound], 12_000);
        assert_nothing_lost(&report);
        (!report.live_unknown).then(|| off(&report, figure(leaked)))
    };
    let off: Vec<f64> = with_room_for_frees(["5", "12", "25"], |bound| {
        thread::scope(|scope| {
            let runs: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(|| run(bound))).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        })
    });

    assert!(off.iter().all(|off| off.abs() < FAR), "{off:?}");
    // The probability of two is about one in ten thousand.
    let far = off.iter().filter(|off| off.abs() > THREE).count();
    assert!(far <= 1, "{off:?}");
}

#[test]
fn a_program_that_always_computes_is_slower_in_windows_and_its_estimate_is_not_lower() {
    require_bpf!();

    let report_and_leaked = |bound| {
        let mut program = Paced::start();
        let jjleak = program.attach(&["--max-overhead", bound]);
        program.obey("press", 12_000);
        let report = jjleak.interrupt().assert_done().report();
        // An estimate from fewer windows is worth little: the bound had hardly room for the frees.
        let has_room = !report.live_unknown && report.windows.is_none_or(|windows| windows >= 5);
        has_room.then(|| (program.leaked_since_beginning_of(&report), report))
    };
    let (leaked, report) = with_room_for_frees(["10", "20", "30"], report_and_leaked);

    assert!(report.windows.is_some(), "counting everything costs more than that");
    let off = off(&report, figure(leaked));
    assert!(off.abs() < THREE, "off by {off}");
}

/// A window, and its allocations that are live.
#[derive(Debug)]
struct Window {
    begin_ns: u64,
    end_ns: u64,
    objects: u64,
    bytes: u64,
}

impl Window {
    /// The windows in jjleak's message on its last snapshot.
    fn all_of(ended: &Ended) -> Vec<Self> {
        let words = |line: &String| {
            let (_, fields) = line.split_once("DEBUG window ")?;
            let field = |name: &str| {
                let value = |field: &str| field.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
                fields.split(' ').find_map(value)
            };
            Some(Self {
                begin_ns: field("begin_ns")?,
                end_ns: field("end_ns")?,
                objects: field("objects")?,
                bytes: field("bytes")?,
            })
        };
        let all: Vec<_> = ended.stderr.iter().filter_map(words).collect();
        // The last snapshot begins with the first window again.
        let first = all.first().map(|window| window.begin_ns);
        let last = all.iter().rposition(|window| Some(window.begin_ns) == first);
        all.into_iter().skip(last.unwrap_or_default()).collect()
    }

    /// Number of leaked blocks in it; the frees of the others were not seen.
    fn leaked(&self) -> u64 {
        let beyond = self.bytes - CHURNED_SIZE * self.objects;
        assert_eq!(beyond % (LEAKED_SIZE - CHURNED_SIZE), 0, "blocks of other sizes: {self:?}");
        beyond / (LEAKED_SIZE - CHURNED_SIZE)
    }
}

#[test]
fn what_was_allocated_in_a_window_is_counted_exactly() {
    require_bpf!();
    let mut program = Paced::start();

    let jjleak = program.attach(&["--max-overhead", bound(), "-vv"]);
    program.run(8_000);
    let ended = jjleak.interrupt().assert_done();

    let windows = Window::all_of(&ended);
    assert_eq!(u32::try_from(windows.len()).ok(), ended.report().windows, "{:#?}", ended.stderr);
    // The first window is the one before counting had to be limited.
    assert!(windows.len() >= 2, "{windows:?}");
    for window in &windows {
        let (least, most) = program.leaked_between(window.begin_ns, window.end_ns);
        let leaked = window.leaked();
        assert!((least..=most).contains(&leaked), "{leaked} of {least} to {most}: {window:?}");
        assert!(most - least <= 2, "at most one call is in progress at an instant: {least} to {most}");
    }
    assert!(windows.iter().any(|window| window.leaked() > 0), "{windows:?}");
}

#[test]
fn a_bound_that_is_never_reached_changes_nothing() {
    require_bpf!();

    let mut program = Paced::start();
    let jjleak = program.attach(&["--max-overhead", NEVER_REACHED]);
    let leaked = program.run(3_000);
    let report = jjleak.interrupt().assert_done().report();

    assert_eq!((report.windows, report.live_error), (None, None));
    assert_eq!(report.live.bytes, leaked);
}

#[test]
fn a_command_below_a_bound_is_counted_from_its_first_allocation() {
    require_bpf!();

    let early = compile::early().to_str().unwrap();
    let ended =
        Ended::of(["--max-overhead", NEVER_REACHED, "--format", "json", "--", early, "0"]).assert_done();

    let report = ended.report();
    assert_eq!((report.windows, report.live_error), (None, None));
    Accounts::parse(ended.stdout.lines()).assert_reported(&report);
    assert_nothing_lost(&report);
}

#[test]
fn what_a_command_allocates_from_its_start_is_estimated_below_a_bound() {
    const MILLISECONDS: u32 = 12_000;
    require_bpf!();

    let program = compile::paced().to_str().unwrap();
    let milliseconds = MILLISECONDS.to_string();
    let options =
        ["--max-overhead", bound(), "--format", "json", "3600", "--", program, "run", &milliseconds];
    let ended = Ended::of(options).assert_done();

    let report = ended.report();
    let leaked = bytes_leaked(ended.stdout.lines().find(|line| line.starts_with("leaked ")).unwrap());
    assert!(report.windows.expect("counting everything costs more than that") >= 2);
    // The figures may have started over, and its pace is steady.
    let of_all = (report.elapsed_s / f64::from(MILLISECONDS) * 1e3).min(1.);
    let off = off(&report, figure(leaked) * of_all);
    assert!(off.abs() < FAR, "off by {off}");
}

#[test]
fn probes_that_are_put_back_in_at_once_count_no_block_twice() {
    const TURNS: usize = 50;
    const STARTERS: usize = 4;
    require_bpf!();
    let mut ledger = Ledger::start();
    ledger.set_up("steady");
    let mut attached = Attached::to(ledger.pid(), Settings::new(Programs::Accounting));
    ledger.run("steady");

    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        // A process that is just being started has a copy of all descriptors, also of those of the links that are closed.
        let starts_processes = || {
            while !is_done.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        };
        (0..STARTERS).for_each(|_| drop(scope.spawn(starts_processes)));
        (0..TURNS).for_each(|_| attached.rest_and_wake());
        is_done.store(true, Ordering::Relaxed);
    });

    // All frees are seen: no block can replace another, unless two probes account it.
    ledger.run("steady_stop");
    let snapshot = attached.snapshot(BlockFilter::default());
    assert!(snapshot.stacks.iter().any(|(_, used)| used.allocated_objects > 0));
    assert_eq!(snapshot.counters[&Counter::MissedFree], 0);
}
