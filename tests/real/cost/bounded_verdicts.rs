//! Verdicts and estimates below bounds, and from samples that the program draws itself, on programs whose call sites are known to leak or
//! not.

use std::sync::Mutex;
use std::thread;

use jjleak::render::json::Document;

use super::max_overhead::Paced;
use crate::support::privilege::{require_bpf, require_time};

/// In per cent.
const BOUNDS: [&str; 3] = ["2", "5", "20"];
/// Stands for samples instead of a bound.
const SAMPLES: &str = "samples";
/// Leaks, replaced entries of a cache and frees at once in a millisecond, and microseconds of computing.
const PROGRAMS: [[u32; 4]; 4] = [[24, 0, 2, 300], [10, 3, 2, 400], [4, 2, 0, 500], [0, 4, 2, 400]];
const REPEATS: usize = 5;
/// Number of programs at the same time.
const AT_A_TIME: usize = 2;
/// Time of everything that is counted exactly.
const EXACT_MS: u32 = 15_000;
/// A verdict below a bound may take so much longer than one that is exact.
const LONGER: f64 = 3.;
/// Standard errors of a 95 % interval.
const INTERVAL: f64 = 1.96;

/// Outcome of a run.
struct Outcome {
    bound: &'static str,
    /// Deviation of the leak's live bytes in standard errors; `None` if live memory is unknown or exact.
    off: Option<f64>,
    leaks: bool,
    is_called_leak: bool,
    /// Call sites that are called leaks and are none.
    wrong: usize,
    /// True if live memory is unknown, so that nothing is judged.
    is_unknown: bool,
}

/// Reports on a program, each half second, and the bytes that it has leaked since the figures of the last begin.
fn watch(program: [u32; 4], milliseconds: u32, options: &[&str]) -> (Vec<Document>, u64) {
    let mut process = if options == ["--sampled"] { Paced::start_sampled() } else { Paced::start() };
    let jjleak = process.attach_every("0.5", &[&["--settle", "1"], options].concat());
    process.mixed(milliseconds, program);
    let reports = jjleak.interrupt().assert_done().reports();
    let leaked = process.leaked_since_beginning_of(reports.last().unwrap());
    (reports, leaked)
}

/// Call sites that are called leaks.
fn leaking(report: &Document) -> impl Iterator<Item = &str> {
    let leaking = report.verdicts.iter().filter(|verdict| verdict.kind == "leaking");
    leaking.map(|verdict| verdict.call_site.split(' ').next().unwrap())
}

fn is_called_leak(report: &Document) -> bool {
    leaking(report).any(|site| site == "leak")
}

/// Live bytes of a function's stacks, and their standard error.
#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn live_of(report: &Document, function: &str) -> (f64, f64) {
    let stacks =
        report.stacks.iter().filter(|stack| stack.frames.iter().any(|frame| frame.symbol == function));
    stacks.fold((0., 0.), |(live, error), stack| {
        let own = stack.live_error.map_or(0., |error| error.bytes as f64);
        (live + stack.live.bytes as f64, f64::hypot(error, own))
    })
}

#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn run(bound: &'static str, program: [u32; 4], milliseconds: u32) -> Outcome {
    let options: &[&str] = if bound == SAMPLES { &["--sampled"] } else { &["--max-overhead", bound] };
    let (reports, leaked) = watch(program, milliseconds, options);
    let last = reports.last().unwrap();
    let leaks = program[0] > 0;
    let (live, error) = live_of(last, "leak");
    let is_estimate = (last.windows.is_some() || last.sampling.is_some()) && !last.live_unknown;
    let off = (leaks && is_estimate && error > 0.).then(|| (live - leaked as f64) / error);
    let wrong = leaking(last).filter(|site| *site != "leak" || !leaks).count();
    println!(
        "{bound:>3} {program:?}: {live} of {leaked} +- {error:.0}, off {off:.2?}, {:?} windows, unknown {}, leaking {:?}",
        last.windows,
        last.live_unknown,
        leaking(last).collect::<Vec<_>>()
    );
    Outcome { bound, off, leaks, is_called_leak: is_called_leak(last), wrong, is_unknown: last.live_unknown }
}

/// Seconds until an exact profile calls the leak one.
fn exact_seconds(program: [u32; 4]) -> f64 {
    let (reports, _) = watch(program, EXACT_MS, &[]);
    reports.iter().find(|report| is_called_leak(report)).expect("it leaks").elapsed_s
}

/// Outcomes of all programs at these bounds, in three times the time that an exact verdict takes.
fn outcomes_of(bounds: &[&'static str]) -> Vec<Outcome> {
    let mut runs = Vec::new();
    for program in PROGRAMS {
        let leaking = if program[0] > 0 { program } else { PROGRAMS[0] };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some seconds")]
        let milliseconds = (exact_seconds(leaking) * LONGER * 1000.) as u32;
        println!("{program:?}: {milliseconds} ms");
        runs.extend(bounds.iter().flat_map(|bound| [(*bound, program, milliseconds); REPEATS]));
    }
    let (next, outcomes) = (Mutex::new(runs.into_iter()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some((bound, program, milliseconds)) = { next.lock().unwrap().next() } {
                    let outcome = run(bound, program, milliseconds);
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

#[test]
fn verdicts_from_samples_are_precise_and_complete() {
    require_bpf!();
    require_time!("it takes three minutes");
    let outcomes = outcomes_of(&[SAMPLES]);
    let count = |which: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| which(outcome)).count();
    let (leaks, found) = (count(&|it| it.leaks), count(&|it| it.leaks && it.is_called_leak));
    let wrong = outcomes.iter().map(|it| it.wrong).sum::<usize>();
    let contained = count(&|it| it.off.is_some_and(|off| off.abs() < INTERVAL));
    println!(
        "{found} of {leaks} leaks found, {wrong} wrong; {contained} of {leaks} intervals contain the truth"
    );
    assert!(found * 10 >= leaks * 9, "{found} of {leaks}");
    assert!(wrong * 20 <= found, "{wrong} of {found}");
}

#[test]
fn below_bounds_verdicts_are_precise_and_intervals_contain_the_truth() {
    require_bpf!();
    require_time!("it takes ten minutes");
    let outcomes = outcomes_of(&BOUNDS);
    let count = |which: &dyn Fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| which(outcome)).count();
    for bound in BOUNDS {
        let of_bound = |outcome: &Outcome| outcome.bound == bound;
        let known = count(&|it| of_bound(it) && it.leaks && !it.is_unknown);
        println!(
            "{bound:>3} %: live memory known in {known} of {} runs that leak, the leak found in {}",
            count(&|it| of_bound(it) && it.leaks),
            count(&|it| of_bound(it) && it.leaks && it.is_called_leak)
        );
    }
    let estimated = count(&|it| it.off.is_some());
    let contained = count(&|it| it.off.is_some_and(|off| off.abs() < INTERVAL));
    let (found, wrong) =
        (count(&|it| it.leaks && it.is_called_leak), outcomes.iter().map(|it| it.wrong).sum::<usize>());
    println!("{contained} of {estimated} intervals contain the truth; {found} leaks found, {wrong} wrong");
    // By chance, 30 of 36 at least with a probability of 99.7 % if 95 % of all do.
    assert!(contained * 100 >= estimated * 83, "{contained} of {estimated}");
    assert!(wrong * 20 <= found, "{wrong} of {found}");
    let judged = count(&|it| it.leaks && !it.is_unknown);
    assert!(found * 100 >= judged * 80, "{found} of {judged}");
}
