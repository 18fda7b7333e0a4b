//! Names of frames: those that were mangled, those that were not, and frames that are nobody's function.

use std::path::Path;

use jjleak::render::json::{Document, StackDocument};

use crate::support::compile;
use crate::support::jjleak::Ended;
use crate::support::privilege::{require_bpf, require_program};

/// The report on a run of a program.
fn report(program: &Path) -> Document {
    Ended::of(["--format", "json", "--", program.to_str().unwrap()]).assert_done().report()
}

/// The stack of the only block of this size.
fn stack(report: &Document, bytes: u64) -> &StackDocument {
    let mut stacks = report.stacks.iter().filter(|stack| stack.allocated.bytes == bytes);
    stacks.next().unwrap_or_else(|| panic!("no block of {bytes} bytes: {report:#?}"))
}

fn symbols(stack: &StackDocument) -> Vec<&str> {
    stack.frames.iter().map(|frame| frame.symbol.as_str()).collect()
}

#[test]
fn only_mangled_names_are_demangled() {
    require_bpf!();

    let report = report(&compile::names("cc", &["-g"]));

    for (bytes, name) in [(2001, "h"), (2002, "f"), (2003, "_Zfoo"), (2004, "outer::inner()")] {
        assert_eq!(symbols(stack(&report, bytes))[..3], ["malloc", name, "main"]);
    }
}

/// Runs the program, and fails unless the frame is named, whatever has a symbol. The stack on from there is complete where the C
/// library has call frame information for it.
fn assert_signal_frame_named(program: &Path, is_complete: bool) {
    let report = report(program);

    let stack = stack(&report, 2005);
    let kinds: Vec<_> = stack.frames.iter().map(|frame| frame.kind.as_str()).collect();
    assert_eq!(symbols(stack)[..3], ["malloc", "on_trap", "<signal handler called>"], "{stack:#?}");
    assert_eq!(kinds[..3], ["native", "native", "signal"]);
    assert_eq!(kinds.iter().filter(|kind| **kind == "signal").count(), 1);
    if is_complete {
        // What was interrupted had not begun: it is not taken for the function in front of it.
        assert_eq!(symbols(stack)[3..5], ["interrupted", "main"]);
        assert_eq!(stack.status, "complete");
    }
}

#[test]
fn the_frame_between_a_handler_and_what_it_interrupted_is_named() {
    require_bpf!();
    assert_signal_frame_named(&compile::names("cc", &["-g", "-pie"]), true);
    assert_signal_frame_named(&compile::names("cc", &["-g", "-static"]), true);
}

#[test]
fn the_frame_between_a_handler_and_what_it_interrupted_is_named_with_musl() {
    require_program!("musl-gcc");
    assert_signal_frame_named(&compile::names("musl-gcc", &["-g", "-static"]), false);
}
