//! The library that draws samples of malloc in a command: every way to allocate is estimated within its standard error, once.

use std::process::{Command, Stdio};

use jjleak::render::json::Document;

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::privilege::require_bpf;

/// Standard errors that one estimate in five million exceeds.
const FAR: f64 = 5.2;
/// Bytes between two samples.
const DISTANCE: &str = "20000";

/// Runs jjleak on a command with the library.
fn sampled(options: &[&str], command: &[&str]) -> Ended {
    let mut jjleak = Command::new(PROGRAM);
    jjleak.env("JJLEAK_SAMPLER", compile::sampler_to_preload());
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

#[test]
fn every_way_to_allocate_is_estimated_once() {
    require_bpf!();
    let program = compile::every_way();

    let ended = sampled(&["--sample-bytes", DISTANCE], &[program.to_str().unwrap(), "200000"]);

    let report = ended.report();
    assert_nothing_lost(&report);
    let truths = ended.stdout.lines().filter_map(|line| line.split_once(' '));
    let truths: Vec<(&str, f64)> =
        truths.filter_map(|(name, bytes)| Some((name, bytes.parse().ok()?))).collect();
    assert_eq!(truths.len(), 8, "{}", ended.stdout);
    for (function, truth) in truths {
        let (bytes, variance) = live(&report, function);
        let off = (bytes - truth) / variance.sqrt();
        println!("{function}: {bytes} of {truth}, off by {off:.2}");
        assert!(off.abs() < FAR, "{function}: {bytes} of {truth}");
    }
}

#[test]
fn a_program_that_draws_its_own_samples_gets_no_library() {
    require_bpf!();
    let program = compile::announced().to_str().unwrap();

    let ended = sampled(&[], &["sh", "-c", &format!("exec {program} < /dev/null")]);

    assert!(ended.stderr.iter().any(|line| line.contains("libjjleak_preload")), "{:?}", ended.stderr);
    let ended = sampled(&[], &[program]);
    assert!(ended.stderr.iter().all(|line| !line.contains("libjjleak_preload")), "{:?}", ended.stderr);
}

#[test]
fn a_command_that_is_sampled_prints_and_ends_as_without() {
    let library = compile::sampler_to_preload();
    for command in [
        "echo one | cat; exit 3",
        "perl -e 'fork; print qq(x\\n); exit 3'",
        "python3 -c 'import sys; sys.exit(3)'",
    ] {
        let run = |preload: bool| {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]);
            if preload {
                shell.env("LD_PRELOAD", library);
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
