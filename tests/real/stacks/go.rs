//! Stacks of Go programs through C, on stacks of goroutines and of threads, match Go's runtime.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use jjleak::render::json::{Document, StackDocument};

use crate::support::accounts::assert_nothing_lost;
use crate::support::jjleak::Ended;
use crate::support::privilege::{is_long, require_bpf};

/// Sizes of the fixture's blocks: called directly, called back, called back after the goroutine's stack has moved, from a
/// goroutine locked to its thread, from a C thread, and called back twice.
const BLOCKS: [u64; 6] = [1501, 1502, 1503, 1504, 1505, 1507];

/// Both kinds of executables: with all debug information, and with none.
const BUILDS: [(&str, &[&str]); 2] = [("go-plain", &[]), ("go-stripped", &["-ldflags", "-s -w"])];
const LONG_BUILDS: [(&str, &[&str]); 2] =
    [("go-pie", &["-buildmode=pie"]), ("go-pie-stripped", &["-buildmode=pie", "-ldflags", "-s -w"])];

/// Builds a fixture with the Go command at this path.
fn build(go: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/stacks");
    let program = folder.join(name);
    let mut command = Command::new(go);
    command.arg("build").args(flags).arg("-o").arg(&program);
    command.args([source, "callers.go"].map(|source| sources.join(source)));
    command.env("CGO_ENABLED", "1").env("GOTOOLCHAIN", "local");
    command.env("GOCACHE", folder.join("go-cache")).env("GOFLAGS", "");
    assert!(command.status().unwrap().success(), "cannot build {name}");
    program
}

/// The program's own record of each block: its size, and Go's functions, innermost first.
fn said(lines: &str) -> BTreeMap<u64, Vec<&str>> {
    let said = lines.lines().filter_map(|line| line.split_once(' '));
    said.filter_map(|(size, names)| Some((size.parse().ok()?, called(names)))).collect()
}

/// Removes the runtime's own names for transitions to C and for the entry points of C threads.
fn called(names: &str) -> Vec<&str> {
    let mut called: Vec<_> = names.split(' ').filter(|name| *name != "runtime.systemstack_switch").collect();
    if called.ends_with(&["runtime.cgocallback", "runtime.goexit"]) {
        called.pop();
    }
    called
}

/// Go functions of a stack, from the one that recorded its callers on. Excludes functions that call C, and wrappers that the
/// runtime omits from its own tracebacks.
fn reported(stack: &StackDocument) -> Vec<&str> {
    let is_of_go = |name: &&str| ["main.", "runtime.", "_cgoexp_"].iter().any(|it| name.starts_with(it));
    let names = stack.frames.iter().map(|frame| frame.symbol.trim_end_matches(".abi0"));
    let names = names.filter(|name| is_of_go(name) && !name.starts_with("runtime.asmcgocall"));
    let mut names: Vec<_> = names.skip_while(|name| *name != "main.keep").collect();
    names.dedup_by(|name, before| *name == "runtime.cgocallbackg" && name == before);
    names
}

fn assert_as_go_says(program: &Path) {
    let (stdout, report) = report_of(program, &[]);
    assert_nothing_lost(&report);
    assert_all_complete(&report, program);
    let said = said(&stdout);
    assert_eq!(said.keys().copied().collect::<Vec<_>>(), BLOCKS);
    for (size, names) in said {
        let of_size: Vec<_> = report.stacks.iter().filter(|stack| stack.allocated.bytes == size).collect();
        let [stack] = of_size[..] else { panic!("not one stack of {size} bytes: {of_size:#?}") };
        assert_eq!(reported(stack), names, "{size} bytes, {}: {:#?}", program.display(), stack.frames);
    }
}

fn assert_all_complete(report: &Document, program: &Path) {
    let cut: Vec<_> = report.stacks.iter().filter(|stack| stack.status != "complete").collect();
    assert!(cut.is_empty(), "{}: {cut:#?}", program.display());
}

/// Functions of a stack from the one with this name on, innermost first. Excludes those restored after tail calls.
fn from<'a>(name: &str, stack: &'a StackDocument) -> Vec<&'a str> {
    let frames = stack.frames.iter().filter(|frame| !frame.tail_call);
    let names = frames.map(|frame| frame.symbol.trim_end_matches(".abi0"));
    names.skip_while(|it| *it != name).collect()
}

/// The runtime maps memory on the scheduler's stack: for the heap in `runtime.systemstack`, for a larger stack in
/// `runtime.morestack`. Both continue on the goroutine's stack.
fn assert_growth_has_callers(program: &Path) {
    let (stdout, report) = report_of(program, &["--mmap"]);
    assert_nothing_lost(&report);
    assert_all_complete(&report, program);
    let callers: Vec<_> = stdout.trim_end().split(' ').collect();
    let of_heap = |stack: &&StackDocument| from("runtime.systemstack", stack).contains(&"main.grow");
    let grown: Vec<_> = report.stacks.iter().filter(of_heap).collect();
    assert!(!grown.is_empty(), "{}: {:#?}", program.display(), report.stacks);
    for stack in grown {
        assert_eq!(from("main.grow", stack), callers, "{}: {:#?}", program.display(), stack.frames);
    }
    let of_stack = |stack: &&StackDocument| from("runtime.morestack", stack).contains(&"main.descend");
    let descended: Vec<_> = report.stacks.iter().filter(of_stack).collect();
    assert!(!descended.is_empty(), "{}: {:#?}", program.display(), report.stacks);
    for stack in descended {
        let mut names = from("runtime.morestack", stack);
        names.dedup();
        let expected = ["runtime.morestack", "main.descend", "main.main.func1", "runtime.goexit"];
        assert_eq!(names, expected, "{}: {:#?}", program.display(), stack.frames);
    }
}

/// The report on a Go program that jjleak starts.
fn report_of(program: &Path, options: &[&str]) -> (String, Document) {
    let options =
        options.iter().chain(&["--format", "json", "--out", "report.json", "--"]).map(AsRef::as_ref);
    let ended = Ended::of(options.chain([program.as_os_str()])).assert_done();
    let report = std::fs::read_to_string(ended.file("report.json")).unwrap();
    (ended.stdout, serde_json::from_str(report.lines().last().unwrap()).unwrap())
}

/// The installed Go command, and in long runs those that `JJLEAK_GO` names, separated by colons.
fn commands() -> Vec<PathBuf> {
    let further = std::env::var("JJLEAK_GO").ok().filter(|_| is_long());
    let further: Vec<_> = further.iter().flat_map(|it| std::env::split_paths(it)).collect();
    [PathBuf::from("go")].into_iter().chain(further).collect()
}

#[test]
fn stacks_through_cgo_are_what_gos_runtime_says() {
    require_bpf!();
    let long = if is_long() { &LONG_BUILDS[..] } else { &[] };
    for go in commands() {
        for (name, flags) in BUILDS.iter().chain(long) {
            assert_as_go_says(&build(&go, "cgo.go", name, flags));
        }
    }
}

#[test]
fn memory_that_gos_runtime_maps_has_the_goroutines_callers() {
    require_bpf!();
    for go in commands() {
        for (name, flags) in [("go-growth", &[][..]), ("go-growth-pie", &["-buildmode=pie"])] {
            assert_growth_has_callers(&build(&go, "growth.go", name, flags));
        }
    }
}
