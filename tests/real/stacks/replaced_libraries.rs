//! One library replaces another while jjleak is busy: no stack is unwound with the old library's rows, and no frame has the old
//! one's name.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use jjleak::render::json::StackDocument;

use crate::support::compile;
use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::privilege::require_bpf;

const TIMES: u64 = 500;
/// Calls of each library at a time, as in `replacing.c`.
const CALLS: u64 = 3;
const FUNCTIONS: [&str; 2] = ["in_first", "in_second"];
/// Size of the first library's blocks. Those of the second one are a byte larger.
const SIZE: u64 = 2001;

/// The call path to `malloc` through a library, as the program calls it.
fn path(function: &str) -> [&str; 5] {
    ["malloc", "inner", function, "use", "main"]
}

/// Calls of each library that have a stack, by the sizes of their blocks. Calls of both have the same stack where neither
/// library's mapping was known.
fn calls(stack: &StackDocument) -> Vec<(&'static str, u64)> {
    let allocated = &stack.allocated;
    let in_second = allocated.bytes.checked_sub(SIZE * allocated.objects);
    let Some(in_second) = in_second.filter(|count| *count <= allocated.objects) else {
        return Vec::new();
    };
    let counts = [allocated.objects - in_second, in_second];
    FUNCTIONS.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

/// Fails if a stack has a frame that the program did not have, or a wrong name. Returns true if it has all frames.
fn assert_as_called(stack: &StackDocument, function: &str) -> bool {
    let expected = path(function);
    let library = format!("lib{function}.so");
    for (frame, expected) in stack.frames.iter().zip(expected) {
        let is_unknown = frame.symbol.is_empty() && frame.module.is_empty();
        assert!(is_unknown || frame.symbol == expected, "{stack:#?}");
        let is_librarys = expected == "inner" || expected == function;
        assert!(is_unknown || !is_librarys || frame.module.ends_with(&library), "{stack:#?}");
    }
    if stack.status == "complete" {
        let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
        assert_eq!(names[..expected.len()], expected, "{stack:#?}");
        assert_eq!(names.last(), Some(&"_start"), "{stack:#?}");
        return true;
    }
    assert_eq!((stack.status.as_str(), stack.frames.len()), ("no_mapping", 2), "{stack:#?}");
    false
}

#[test]
fn a_library_in_anothers_place_is_not_taken_for_it() {
    require_bpf!();
    let [program, first, second] = compile::replacing();
    let mut command = Command::new(PROGRAM);
    command
        .args(["--format", "json", "--out", "report.json", "0.1", "--"])
        .arg(program)
        .arg(TIMES.to_string());
    command.args([first, second]).stdout(Stdio::piped());

    let ended = Jjleak::start(command).end().assert_done();

    let replaced: u64 = ended.stdout.trim().parse().unwrap();
    assert!(
        replaced > TIMES / 2,
        "the libraries were loaded to different places: {replaced} of {TIMES} times"
    );
    let reports = std::fs::read_to_string(ended.file("report.json")).unwrap();
    let report: jjleak::render::json::Document =
        serde_json::from_str(reports.lines().last().unwrap()).unwrap();
    let mut objects = BTreeMap::new();
    for stack in &report.stacks {
        for (function, count) in calls(stack) {
            *objects.entry((function, assert_as_called(stack, function))).or_insert(0) += count;
        }
    }
    println!("{objects:?} (function, whether all frames are there: objects)");
    for function in FUNCTIONS {
        let count: u64 = objects.iter().filter(|((of, _), _)| *of == function).map(|(_, count)| count).sum();
        assert_eq!(count, TIMES * CALLS, "{function}");
    }
}
