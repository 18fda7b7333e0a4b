//! Stacks of Go programs through C, on stacks of goroutines and of threads, match Go's runtime.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use jjleak::render::json::{Document, StackDocument};

use crate::support::books::assert_nothing_lost;
use crate::support::jjleak::Ended;
use crate::support::privilege::{is_long, require_bpf};

/// Sizes of the fixture's blocks: called directly, called back, called back after the goroutine's stack has moved, from a
/// goroutine locked to its thread, from a C thread, and called back twice.
const BLOCKS: [u64; 6] = [1501, 1502, 1503, 1504, 1505, 1507];

/// Both kinds of executables: with all debug information, and with none.
const BUILDS: [(&str, &[&str]); 2] = [("go-plain", &[]), ("go-stripped", &["-ldflags", "-s -w"])];
const LONG_BUILDS: [(&str, &[&str]); 2] =
    [("go-pie", &["-buildmode=pie"]), ("go-pie-stripped", &["-buildmode=pie", "-ldflags", "-s -w"])];

fn build(name: &str, flags: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/stacks/cgo.go");
    let program = folder.join(name);
    let mut go = Command::new("go");
    go.arg("build").args(flags).arg("-o").arg(&program).arg(source);
    go.env("CGO_ENABLED", "1").env("GOCACHE", folder.join("go-cache")).env("GOFLAGS", "");
    assert!(go.status().unwrap().success(), "cannot build {name}");
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
    let options = ["--format", "json", "--out", "report.json", "--"].map(AsRef::as_ref);
    let ended = Ended::of(options.into_iter().chain([program.as_os_str()])).assert_done();
    let report = std::fs::read_to_string(ended.file("report.json")).unwrap();
    let report: Document = serde_json::from_str(report.lines().last().unwrap()).unwrap();
    assert_nothing_lost(&report);
    let said = said(&ended.stdout);
    assert_eq!(said.keys().copied().collect::<Vec<_>>(), BLOCKS);
    for (size, names) in said {
        let of_size: Vec<_> = report.stacks.iter().filter(|stack| stack.allocated.bytes == size).collect();
        let [stack] = of_size[..] else { panic!("not one stack of {size} bytes: {of_size:#?}") };
        assert_eq!(reported(stack), names, "{size} bytes, {}: {:#?}", program.display(), stack.frames);
        assert_eq!(stack.status, "complete", "{size} bytes, {}", program.display());
    }
}

#[test]
fn stacks_through_cgo_are_what_gos_runtime_says() {
    require_bpf!();
    let long = if is_long() { &LONG_BUILDS[..] } else { &[] };
    for (name, flags) in BUILDS.iter().chain(long) {
        assert_as_go_says(&build(name, flags));
    }
}
