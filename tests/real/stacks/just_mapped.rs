//! A program loads libraries that jjleak has never seen and allocates at once: its stacks are complete all the same.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use jjleak::render::json::Document;
use tempfile::TempDir;

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::privilege::require_bpf;

const LIBRARIES: usize = 20;
/// Calls of each library, and size of the block that each call allocates, as in the fixture.
const CALLS: u64 = 5;
const SIZE: u64 = 2003;
/// The call path from `main` to `malloc`.
const PATH: [&str; 5] = ["malloc", "inner", "in_library", "use", "main"];

/// Allocations by the names of the functions, with the libraries numbered, and the status.
type Stacks = BTreeMap<(Vec<String>, String), u64>;

/// Copies of the library: new files, each in a folder of its own, because jjleak prepares for what is beside mapped files.
fn copies() -> (Vec<TempDir>, Vec<PathBuf>) {
    let [_, library] = compile::just_mapped();
    let folders: Vec<_> = (0..LIBRARIES).map(|_| tempfile::tempdir().unwrap()).collect();
    let files = folders.iter().map(|folder| compile::copy(library, folder.path())).collect();
    (folders, files)
}

fn report(files: &[PathBuf]) -> Document {
    let [program, _] = compile::just_mapped();
    let files: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(["--out", "report.json", "--format", "json", "--"]).arg(program);
    jjleak.env("JUST_MAPPED", files.join(":")).stdout(Stdio::piped());

    let ended = Jjleak::start(jjleak).end().assert_done();

    let reports = std::fs::read_to_string(ended.file("report.json")).unwrap();
    serde_json::from_str(reports.lines().last().unwrap()).unwrap()
}

fn stacks(report: &Document, files: &[PathBuf]) -> Stacks {
    let mut stacks = Stacks::new();
    for stack in &report.stacks {
        let name = |module: &str| files.iter().position(|file| file.to_str() == Some(module));
        let named = stack.frames.iter().map(|frame| format!("{} {:?}", frame.symbol, name(&frame.module)));
        *stacks.entry((named.collect(), stack.status.clone())).or_default() += stack.allocated.objects;
    }
    stacks
}

#[test]
fn stacks_through_a_library_that_was_just_mapped_are_complete_and_as_in_the_second_run() {
    require_bpf!();
    let (_folders, files) = copies();

    let first = report(&files);
    let second = report(&files);

    assert_nothing_lost(&first);
    let incomplete: Vec<_> = first.stacks.iter().filter(|stack| stack.status != "complete").collect();
    assert!(incomplete.is_empty(), "not complete: {incomplete:#?}");
    for file in &files {
        let is_of_library = |stack: &&jjleak::render::json::StackDocument| {
            stack.frames.get(1).is_some_and(|frame| Some(frame.module.as_str()) == file.to_str())
        };
        let mut objects = 0;
        for stack in first.stacks.iter().filter(is_of_library) {
            let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
            assert_eq!(names[..PATH.len()], PATH, "{stack:#?}");
            assert_eq!(names.last(), Some(&"_start"), "{stack:#?}");
            assert_eq!(stack.allocated.bytes, stack.allocated.objects * SIZE);
            objects += stack.allocated.objects;
        }
        assert_eq!(objects, CALLS, "of {}", file.display());
    }
    assert_eq!(stacks(&first, &files), stacks(&second, &files));
}
