//! Names of frames: mangled ones, unmangled ones, and frames that belong to no function.

use std::path::Path;

use jjleak::render::json::{Document, StackDocument};

use crate::support::compile;
use crate::support::jjleak::Ended;
use crate::support::oracle;
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

/// Runs the program, and fails unless the signal frame is named, whichever symbols exist. The rest of the stack is complete if
/// the C library has call frame information for the frame.
fn assert_signal_frame_named(program: &Path, is_complete: bool) {
    let report = report(program);

    let stack = stack(&report, 2005);
    let kinds: Vec<_> = stack.frames.iter().map(|frame| frame.kind.as_str()).collect();
    assert_eq!(symbols(stack)[..3], ["malloc", "on_trap", "<signal handler called>"], "{stack:#?}");
    assert_eq!(kinds[..3], ["native", "native", "signal"]);
    assert_eq!(kinds.iter().filter(|kind| **kind == "signal").count(), 1);
    if is_complete {
        // The interrupted function had not begun; it must not be taken for the function before it.
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

/// Sizes that `tail_calls.c` allocates, and the functions from the allocation function's caller on, as gdb shows them with GCC.
const TAIL_CALLS: [(u64, &[&str]); 6] = [
    (3001, &["leaf", "direct", "main"]),
    (3022, &["leaf", "last", "middle", "chained", "main"]),
    (3004, &["leaf", "main"]),
    (3005, &["leaf", "main"]),
    (3016, &["leaf", "inlined", "with_inlined", "main"]),
    (3007, &["allocate", "main"]),
];

/// Frames of the stack of a block, from the allocation function's caller to main; true for those that were restored.
fn callers(report: &Document, bytes: u64) -> Vec<(&str, bool)> {
    let frames = &stack(report, bytes).frames[1..];
    let main = frames.iter().position(|frame| frame.symbol == "main").unwrap();
    frames[..=main].iter().map(|frame| (frame.symbol.as_str(), frame.tail_call)).collect()
}

#[test]
fn frames_that_tail_calls_took_are_restored_where_there_is_one_path() {
    require_program!("clang");
    for (compiler, flags) in [
        ("cc", &["-g"][..]),
        ("cc", &["-gdwarf-4", "-no-pie", "-fno-plt"]),
        ("clang", &["-g"]),
        ("clang", &["-gdwarf-4", "-static"]),
    ] {
        let report = report(&compile::tail_calls(compiler, flags));

        // In the static C library, the end of a function is unknown.
        let is_known = |bytes| bytes != 3007 || !flags.contains(&"-static");
        for (bytes, functions) in TAIL_CALLS.into_iter().filter(|(bytes, _)| is_known(*bytes)) {
            let on_the_stack = [functions[0], "main"];
            let expected: Vec<_> = functions
                .iter()
                .map(|name| (*name, *name == "allocate" || !on_the_stack.contains(name)))
                .collect();
            assert_eq!(callers(&report, bytes), expected, "{compiler} {flags:?}");
            assert_eq!(stack(&report, bytes).status, "complete");
        }
    }
}

#[test]
fn restored_frames_are_those_that_gdb_restores() {
    require_program!("gdb");
    let program = compile::tail_calls("cc", &["-gdwarf-5"]);
    let report = report(&program);

    let by_gdb = oracle::backtraces(&program, "$rdi >= 3001 && $rdi <= 3099", TAIL_CALLS.len());

    let reported: Vec<Vec<&str>> = TAIL_CALLS
        .iter()
        .map(|(bytes, _)| callers(&report, *bytes).into_iter().map(|(name, _)| name))
        // At a jump, gdb shows the innermost of the inlined functions.
        .map(|names| names.filter(|name| *name != "with_inlined").collect())
        .collect();
    assert_eq!(reported, by_gdb);
}
