//! The library that samples malloc in a command: what is allocated is estimated within its standard error, once.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use jjleak::render::json::Document;

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::privilege::{require_bpf, require_time};

/// Standard errors that one estimate in five million exceeds.
const FAR: f64 = 5.2;
/// Bytes between two samples.
const DISTANCE: &str = "20000";

/// Runs jjleak on a command with the library, before an allocator's.
fn sampled(options: &[&str], allocator: &str, command: &[&str]) -> Ended {
    let mut jjleak = Command::new(PROGRAM);
    jjleak.env("LD_PRELOAD", allocator);
    jjleak.args(["--sampled", "--format", "json"]).args(options).arg("--").args(command);
    jjleak.stdout(Stdio::piped());
    Jjleak::start(jjleak).end().assert_done()
}

/// Live bytes of stacks through a function, and the variance of their estimate.
#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn live(report: &Document, function: &str) -> (f64, f64) {
    let through =
        report.stacks.iter().filter(|stack| stack.frames.iter().any(|frame| frame.symbol == function));
    through.fold((0., 0.), |(bytes, variance), stack| {
        let error = stack.live_error.map_or(0., |error| error.bytes as f64);
        (bytes + stack.live.bytes as f64, variance + error * error)
    })
}

/// Estimate of a function's live bytes.
struct Estimated {
    function: String,
    truth: f64,
    bytes: f64,
    variance: f64,
}

impl Estimated {
    /// Standard errors between the estimate and the truth.
    fn off(&self) -> f64 {
        (self.bytes - self.truth) / self.variance.sqrt()
    }
}

/// Estimates of the functions whose live bytes the program prints, and the report.
fn estimates(allocator: &str, distance: &str, command: &[&str]) -> (Vec<Estimated>, Document) {
    let ended = sampled(&["--sample-bytes", distance], allocator, command);
    let report = ended.report();
    assert_nothing_lost(&report);
    let truths = ended.stdout.lines().filter_map(|line| line.split_once(' '));
    let truths = truths.filter_map(|(name, bytes)| Some((name.to_owned(), bytes.parse().ok()?)));
    let estimated = truths.map(|(function, truth)| {
        let (bytes, variance) = live(&report, &function);
        Estimated { function, truth, bytes, variance }
    });
    let estimated: Vec<_> = estimated.collect();
    assert!(estimated.len() >= 4, "{}", ended.stdout);
    (estimated, report)
}

/// Names of the functions that allocated, after a check of their callers' estimates: each is within its error of what the program prints.
fn assert_estimates(allocator: &str, command: &[&str]) -> BTreeSet<String> {
    let (estimated, report) = estimates(allocator, DISTANCE, command);
    for it in estimated {
        let off = it.off();
        println!("{}: {} of {}, off by {off:.2}", it.function, it.bytes, it.truth);
        assert!(off.abs() < FAR, "{command:?}: {}: {} of {}", it.function, it.bytes, it.truth);
    }
    report.stacks.iter().map(|stack| stack.frames[0].symbol.clone()).collect()
}

/// Runs of each program.
const RUNS: usize = 50;
/// Standard errors on each side of an interval that contains the truth in 95 of 100 cases.
const INTERVAL: f64 = 1.96;

#[test]
#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn intervals_contain_the_truth_as_often_as_they_say_and_sums_are_unbiased() {
    require_time!("200 runs");
    require_bpf!();
    let programs = [compile::every_way(), compile::every_way_of_musl(), compile::every_new("every-new", &[])];
    let mut estimated = Vec::new();
    for (program, distance) in
        programs.iter().zip(["20000", "20000", "20000"]).chain([(&programs[0], "100000")])
    {
        for _ in 0..RUNS {
            estimated.extend(estimates("", distance, &[program.to_str().unwrap(), "50000"]).0);
        }
    }
    let contained = estimated.iter().filter(|it| it.off().abs() <= INTERVAL).count();
    let share = contained as f64 / estimated.len() as f64;
    let sum = |of: fn(&Estimated) -> f64| estimated.iter().map(of).sum::<f64>();
    let off = (sum(|it| it.bytes) - sum(|it| it.truth)) / sum(|it| it.variance).sqrt();
    println!("{contained} of {} intervals contain the truth; the sum is off by {off:.2}", estimated.len());
    assert!((0.93..=0.97).contains(&share), "{share}");
    assert!(off.abs() < 3., "{off}");
}

#[test]
fn every_way_to_allocate_is_estimated_once() {
    require_bpf!();
    for program in [compile::every_way(), compile::every_way_of_musl()] {
        let functions = assert_estimates("", &[program.to_str().unwrap(), "200000"]);

        let expected = ["aligned_alloc", "calloc", "malloc", "memalign", "posix_memalign", "realloc"];
        assert_eq!(functions, expected.map(str::to_owned).into());
    }
}

#[test]
fn every_operator_of_cplusplus_is_estimated_once() {
    require_bpf!();
    let programs = [&[][..], &["-static-libstdc++"]];
    let programs = programs.map(|flags| compile::every_new(&format!("every-new{}", flags.concat()), flags));
    let [program, with_own_operators] = programs.each_ref().map(|path| path.to_str().unwrap());
    let (loader, library) = compile::loading_every_new();
    let loading = [loader.to_str().unwrap(), "100000", library.to_str().unwrap()];

    for allocator in ["", "libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        for command in [&[program, "100000"][..], &[with_own_operators, "100000"], &loading] {
            println!("{allocator} {command:?}");
            let functions = assert_estimates(allocator, command);
            assert!(functions.iter().all(|function| !function.contains("jjleak")), "{functions:?}");
        }
    }
}

#[test]
fn the_next_library_is_called_whatever_table_its_symbols_have() {
    require_bpf!();
    let library = compile::sampler_to_preload();
    for style in ["gnu", "sysv"] {
        let mut program = Command::new(compile::every_way());
        program.env("LD_PRELOAD", format!("{}:{}", library.display(), compile::called(style).display()));
        let ended = program.output().unwrap();
        assert!(ended.status.success(), "{style}: {ended:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "called\n", "{style}");
    }
}

#[test]
fn a_program_that_draws_its_own_samples_gets_no_library() {
    require_bpf!();
    let program = compile::announced().to_str().unwrap();

    let ended = sampled(&[], "", &["sh", "-c", &format!("exec {program} < /dev/null")]);

    assert!(ended.stderr.iter().any(|line| line.contains("libjjleak_preload")), "{:?}", ended.stderr);
    let ended = sampled(&[], "", &[program]);
    assert!(ended.stderr.iter().all(|line| !line.contains("libjjleak_preload")), "{:?}", ended.stderr);
}

#[test]
fn a_static_program_that_is_to_be_sampled_is_a_loss_and_said_so() {
    require_bpf!();
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(["--sampled", "--strict", "--"]).arg(compile::static_early()).stdout(Stdio::piped());
    let ended = Jjleak::start(jjleak).end();

    assert_eq!(ended.status.code(), Some(5), "{:?}", ended.stderr);
    assert!(ended.stderr.iter().any(|line| line.contains("nothing is sampled yet")), "{:?}", ended.stderr);
    assert!(ended.stdout.contains("No sample was drawn"), "{}", ended.stdout);
}

#[test]
fn a_command_that_is_sampled_prints_and_ends_as_without() {
    require_bpf!();
    let library = compile::sampler_to_preload();
    let program = compile::every_new("every-new", &[]);
    let (loader, every_new) = compile::loading_every_new();
    for command in [
        &format!("{} 0", program.display()),
        &format!("{} 0 {}", loader.display(), every_new.display()),
        "echo one | cat; exit 3",
        "perl -e 'fork; print qq(x\\n); exit 3'",
        "python3 -c 'import sys; sys.exit(3)'",
    ] {
        let run = |preload: bool| {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]);
            if preload {
                shell.env("LD_PRELOAD", &library);
            }
            shell.output().unwrap()
        };
        let (plain, sampled) = (run(false), run(true));
        assert_eq!(
            (plain.status, plain.stdout, plain.stderr),
            (sampled.status, sampled.stdout, sampled.stderr)
        );
    }
}
