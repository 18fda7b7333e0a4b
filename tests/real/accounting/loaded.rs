//! A running JVM loads the library that samples malloc, on request: what it allocates from then on is estimated within its standard error,
//! also by libraries that it loads later.

use std::path::Path;
use std::process::{Command, Stdio};

use jjleak::render::json::{Document, StackDocument};

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::java::{Java, Jdk, jdks};
use crate::support::jjleak::{Ended, Jjleak};
use crate::support::privilege::{require_bpf, require_program};

/// Standard errors that one estimate in five million exceeds.
const FAR: f64 = 5.2;
/// Bytes between two samples.
const DISTANCE: &str = "20000";
const BLOCKS: u32 = 20_000;

fn attach(java: &Java) -> Jjleak {
    let pid = java.pid().to_string();
    let options = ["--sampled", "--load", "--sample-bytes", DISTANCE, "--format", "json", "-v"];
    Jjleak::attached([&["-p", &pid, "3600"], &options[..]].concat())
}

/// Checks live and allocated bytes of a function's stacks, whose blocks have this size.
#[expect(clippy::cast_precision_loss, reason = "statistics")]
fn assert_estimated(report: &Document, function: &str, size: u64, what: &str) {
    let is_through = |stack: &&StackDocument| stack.frames.iter().any(|frame| frame.symbol == function);
    let stacks: Vec<_> = report.stacks.iter().filter(is_through).collect();
    let live: u64 = stacks.iter().map(|stack| stack.live.bytes).sum();
    let variance: f64 =
        stacks.iter().filter_map(|stack| stack.live_error).map(|error| (error.bytes as f64).powi(2)).sum();
    let truth = (u64::from(BLOCKS) / 2 * size) as f64;
    let off = (live as f64 - truth) / variance.sqrt();
    println!("{what}, {function}: {live} of {truth}, off by {off:.2}");
    assert!(off.abs() < FAR && variance > 0., "{what}, {function}: {live} of {truth}");
    let allocated: u64 = stacks.iter().map(|stack| stack.allocated.bytes).sum();
    assert!((1.5..2.5).contains(&(allocated as f64 / live as f64)), "{what}: {allocated} allocated");
}

fn assert_sampled(jdk: &Jdk) {
    let mut java = Java::start_late(&jdk.java(), &[]);
    // Before: it must be freed as without the library.
    java.ask(&format!("unsafe {BLOCKS}"));
    let mut jjleak = attach(&java);
    let told = format!(" INFO process {}: its new libraries are sampled", java.pid());
    java.ask(&format!("unsafe {BLOCKS}"));
    jjleak.wait_for(&told);
    java.ask(&format!("load {}", compile::late_library().display()));
    jjleak.wait_for(&told);
    java.ask(&format!("native {BLOCKS}"));

    let ended = jjleak.interrupt().assert_done();

    assert!(ended.stderr.iter().any(|line| line.contains("samples all")), "{:?}", ended.stderr);
    let report = ended.report();
    assert_nothing_lost(&report);
    assert_estimated(&report, "Late.allocate", 5000, &jdk.release);
    assert_estimated(&report, "Java_Late_allocateByLibrary", 7000, &jdk.release);
    // It goes on, and can be profiled again.
    java.ask(&format!("unsafe {BLOCKS}"));
    let again = attach(&java);
    java.ask(&format!("native {BLOCKS}"));
    let report = again.interrupt().assert_done().report();
    assert_estimated(&report, "Java_Late_allocateByLibrary", 7000, &jdk.release);
}

#[test]
fn what_a_running_jvm_allocates_is_sampled_on_request() {
    require_bpf!();
    require_program!("javac");
    jdks().iter().for_each(assert_sampled);
}

#[test]
fn a_library_with_an_allocator_of_its_own_is_left_alone() {
    require_bpf!();
    require_program!("javac");
    let mut java = Java::start_late(Path::new("java"), &[]);
    java.ask(&format!("load {}", compile::late_library_with_its_own_malloc().display()));
    java.ask("native 2");
    let jjleak = attach(&java);
    java.ask(&format!("unsafe {BLOCKS}"));
    // A block of the one allocator that the other frees would end the JVM.
    java.ask(&format!("native {BLOCKS}"));

    let ended = jjleak.interrupt().assert_done();

    let is_told = |line: &String| line.contains("lead elsewhere");
    assert!(ended.stderr.iter().any(is_told), "{:?}", ended.stderr);
    let report = ended.report();
    assert_estimated(&report, "Late.allocate", 5000, "beside another allocator");
    let of_library = |stack: &StackDocument| {
        stack.frames.iter().any(|frame| frame.symbol == "Java_Late_allocateByLibrary")
    };
    assert!(!report.stacks.iter().any(of_library), "{:#?}", report.stacks);
    java.ask(&format!("native {BLOCKS}"));
}

fn refused(options: &[&str]) -> Ended {
    let java = Java::start_late(Path::new("java"), options);
    let mut command = Command::new(crate::support::jjleak::PROGRAM);
    command.args(["--sampled", "--load", "-p", &java.pid().to_string(), "1", "1"]).stdout(Stdio::piped());
    let ended = Jjleak::start(command).end();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", java.pid())).unwrap();
    assert!(!maps.contains("jjleak"), "{maps}");
    ended
}

#[test]
fn what_may_not_load_the_library_is_refused_and_left_alone() {
    require_bpf!();
    require_program!("javac");
    for (option, why) in [
        ("-XX:-EnableDynamicAgentLoading", "it runs with -XX:-EnableDynamicAgentLoading"),
        ("-XX:+DisableAttachMechanism", "it runs with -XX:+DisableAttachMechanism"),
    ] {
        let ended = refused(&[option]);
        assert_eq!(ended.status.code(), Some(1), "{:?}", ended.stderr);
        assert!(ended.stderr.iter().any(|line| line.contains(why)), "{:?}", ended.stderr);
    }
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let ended = Ended::of(["--sampled", "--load", "-p", &other.id().to_string(), "1", "1"]);
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(ended.stderr.iter().any(|line| line.contains("it is no JVM")), "{:?}", ended.stderr);
}
