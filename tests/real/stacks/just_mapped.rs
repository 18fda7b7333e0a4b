//! A program loads libraries that jjleak has never seen and allocates at once: its stacks are complete all the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jjleak::render::json::Document;
use tempfile::TempDir;

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile;
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::privilege::require_bpf;

const LIBRARIES: usize = 20;
/// Calls of each library, and size of the block that each call allocates, as in the fixture.
const CALLS: u64 = 5;
const SIZE: u64 = 2003;
/// The call path from `main` to `malloc`.
const PATH: [&str; 5] = ["malloc", "inner", "in_library", "use", "main"];

/// Allocations by the names of the functions, with the libraries numbered, and the status.
type Stacks = BTreeMap<(Vec<String>, String), u64>;

/// Allocations in the loop of the second library, and their size, see its source.
const STEPS: u64 = 400;
const SIZE_IN_LOOP: u64 = 2005;

/// Copies of a library: new files, each in a folder of its own, because jjleak prepares for what is beside mapped files.
fn copies(library: &Path, number: usize) -> (Vec<TempDir>, Vec<PathBuf>) {
    let folders: Vec<_> = (0..number).map(|_| tempfile::tempdir().unwrap()).collect();
    let files = folders.iter().map(|folder| compile::copy(library, folder.path())).collect();
    (folders, files)
}

fn run(files: &[PathBuf], options: &[&str]) -> Ended {
    run_with(files, options, &[])
}

fn run_with(files: &[PathBuf], options: &[&str], variables: &[&str]) -> Ended {
    let [program, ..] = compile::just_mapped();
    let files: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let mut jjleak = Command::new(PROGRAM);
    jjleak.args(options).args(["-vv", "--out", "report.json", "--format", "json", "--"]).arg(program);
    jjleak.env("JUST_MAPPED", files.join(":")).stdout(Stdio::piped());
    jjleak.envs(variables.iter().map(|name| (name, "1")));
    Jjleak::start(jjleak).end().assert_done()
}

fn report(ended: &Ended) -> Document {
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
    let (_folders, files) = copies(&compile::just_mapped()[1], LIBRARIES);

    let first = report(&run(&files, &[]));
    let second = report(&run(&files, &[]));

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

/// Allocations of the size that the loop allocates, by the status of their stacks.
fn of_loop(report: &Document) -> BTreeMap<String, u64> {
    let mut objects = BTreeMap::new();
    for stack in &report.stacks {
        if stack.allocated.bytes == stack.allocated.objects * SIZE_IN_LOOP {
            *objects.entry(stack.status.clone()).or_default() += stack.allocated.objects;
        }
    }
    objects
}

fn complete(objects: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([("complete".to_owned(), objects)])
}

/// Number of stacks that were finished on the user side: each had a row of its own.
fn finished(ended: &Ended) -> u64 {
    let lines = ended.stderr.iter().filter(|line| line.contains("stacks through code that was just mapped"));
    let count = |line: &String| line.split("finished=").nth(1)?.split(' ').next()?.parse::<u64>().ok();
    lines.filter_map(count).sum()
}

#[test]
fn a_loop_in_a_library_that_was_just_mapped_keeps_its_row_while_words_of_its_stack_change() {
    require_bpf!();
    let (_folders, files) = copies(&compile::just_mapped()[2], 1);

    let ended = run(&files, &[]);

    let report = report(&ended);
    assert_nothing_lost(&report);
    assert_eq!(of_loop(&report), complete(CALLS * STEPS));
    let finished = finished(&ended);
    assert!((1..STEPS / 20).contains(&finished), "{finished} stacks");
}

/// A walk asks for a limited number of mappings, and for none while the memory map is locked.
#[test]
fn stacks_are_complete_below_many_pointers_and_though_another_thread_locks_the_memory_map() {
    require_bpf!();
    for variables in [&["MANY_POINTERS"][..], &["MAP_LOCKED"], &["MANY_POINTERS", "MAP_LOCKED"]] {
        let (_folders, files) = copies(&compile::just_mapped()[2], 1);

        let ended = run_with(&files, &[], variables);

        let report = report(&ended);
        assert_nothing_lost(&report);
        assert_eq!(of_loop(&report), complete(CALLS * STEPS), "{variables:?}");
        assert!(finished(&ended) > 0, "{variables:?}");
    }
}

#[test]
fn stacks_for_whose_copies_there_is_no_room_end_where_the_rows_do_and_are_counted() {
    require_bpf!();
    let (_folders, files) = copies(&compile::just_mapped()[1], LIBRARIES);

    // A table of 128 rows, of which 16 are for unfinished stacks.
    let report = report(&run(&files, &["--max-stacks", "64"]));

    assert_nothing_lost(&report);
    let unfinished = report.stacks.iter().filter(|stack| stack.status == "no_mapping").count();
    let lost = report.notes["stack_copies_lost"];
    assert!(unfinished > 0 && unfinished as u64 <= lost, "{lost} copies lost of {unfinished} stacks");
    let of_libraries =
        report.stacks.iter().filter(|stack| stack.allocated.bytes == stack.allocated.objects * SIZE);
    let objects: u64 = of_libraries.map(|stack| stack.allocated.objects).sum();
    assert_eq!(objects, CALLS * LIBRARIES as u64);
}
