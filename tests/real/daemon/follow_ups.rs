//! A process that grows by something else than what malloc gives out is profiled once more, for what grew.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use crate::support::bounded::LONG;
use crate::support::daemon::{ON_REQUEST, Place};
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// The program, which grows by a pool of its own or by mapped files.
fn outside() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/causes/outside.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let status = Command::new("cc").args(["-O1", "-g", "-o"]).arg(&program).arg(source).status().unwrap();
    assert!(status.success());
    program
}

#[test]
fn who_makes_other_memory_grow_than_mallocs_is_found_by_a_second_profile() {
    require_bpf!();
    let place = Place::new("outside");
    place.configure("", &ON_REQUEST.replace("60s", "8s"));
    let program = place.program(&outside());
    let file = place.path("segment");
    let pool = "has grown by memory that its allocations do not explain: ";
    for (argument, next, outcome, function) in [
        (
            Path::new("pool"),
            "the stacks that make memory resident are profiled next",
            pool,
            "fill_pool [outside] outside.c:",
        ),
        (
            &file,
            "the stacks that map files are profiled next",
            " leaks: ",
            "open_segment [outside] outside.c:",
        ),
    ] {
        let _program = Process::spawn(Command::new(&program).arg(argument));
        let mut daemon = place.start();
        daemon.signal(Signal::SIGUSR1);
        let first = daemon.until(next, LONG);
        let text = first["message"].as_str().unwrap();
        assert!(text.contains("grows, but was not found to leak what it allocates: "), "{text}");
        let second = daemon.until(outcome, LONG);
        let text = second["message"].as_str().unwrap();
        assert!(text.contains(function), "{text}");
        assert!(text.contains("(the report names the stacks that "), "{text}");
        println!("{text}");
        daemon.end();
    }
}
