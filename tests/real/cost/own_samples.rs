//! A process that draws samples itself: they are used where counting everything would exceed the bound of the cost.

use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};

use jjleak::render::json::SamplingDocument;
use nix::sys::signal::Signal;

use crate::support::accounts::assert_nothing_lost;
use crate::support::bounded::LONG;
use crate::support::compile;
use crate::support::daemon::{ON_REQUEST, Place};
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// Part of jjleak's message when it uses them.
const USED: &str = "draws samples itself";

/// Two leaks and a thousand other allocations a millisecond, for ten minutes.
const BUSY: &str = "mixed 600000 2 0 1000 0\n";

/// The paced program with the library that samples malloc, and these orders. After them, it waits.
fn sampled(command: &mut Command, orders: &str) -> (Process, ChildStdin) {
    command.env("LD_PRELOAD", compile::sampler_to_preload()).env("JJLEAK_SAMPLE_BYTES", "2000");
    let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()));
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(orders.as_bytes()).unwrap();
    (process, stdin)
}

fn bounded(process: &Process, options: &[&str]) -> Ended {
    let pid = process.id().to_string();
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(["--max-overhead", "2", "-p", &pid, "2", "1", "--format", "json"]).args(options);
    jjleak.stdout(Stdio::piped());
    Jjleak::start(jjleak).end().assert_done()
}

#[test]
fn samples_are_used_where_counting_everything_would_exceed_the_bound() {
    require_bpf!();
    let says_so = |ended: &Ended| ended.stderr.iter().any(|line| line.contains(USED));

    let (busy, _orders) = sampled(&mut Command::new(compile::paced()), BUSY);
    let ended = bounded(&busy, &[]);
    let report = ended.report();
    assert!(says_so(&ended), "{:?}", ended.stderr);
    assert_eq!(report.source, "sampled");
    assert!(matches!(report.sampling, Some(SamplingDocument::Announced)), "{:?}", report.sampling);
    assert_nothing_lost(&report);
    assert!((1..1 << 40).contains(&report.allocated.bytes), "{} allocated", report.allocated.bytes);

    // Windows of time have a choice of blocks that samples do not.
    let ended = bounded(&busy, &["--min-size", "100"]);
    assert!(!says_so(&ended), "{:?}", ended.stderr);
    assert_eq!(ended.report().source, "malloc");

    let (waiting, _orders) = sampled(&mut Command::new(compile::paced()), "");
    let ended = bounded(&waiting, &[]);
    assert!(!says_so(&ended), "{:?}", ended.stderr);
    assert_eq!(ended.report().source, "malloc");
}

#[test]
fn the_daemon_uses_the_samples_that_a_process_draws_itself() {
    require_bpf!();
    let place = Place::new("sampled");
    place.configure(
        "",
        &ON_REQUEST.replace("60s", "12s").replace("[profile]", "[profile]\nmax_overhead = \"2%\""),
    );
    let _busy = sampled(&mut Command::new(place.program(compile::paced())), BUSY);
    let mut daemon = place.start();

    daemon.signal(Signal::SIGUSR1);

    let outcome = daemon.until(" leaks: ", LONG);
    let text = outcome["message"].as_str().unwrap();
    assert!(
        text.contains(": leak [") && text.contains("from samples that the program draws itself"),
        "{text}"
    );
    println!("{text}");
    daemon.end();
}
