//! Stacks as gdb unwinds them, and as a report has them, reduced to the same form, to compare them for equality.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use jjleak::render::json::{Document, StackDocument};

use super::bounded::LONG;
use super::lines::Lines;
use super::probes;
use super::process::Process;

/// The script that gdb runs.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/stacks/oracle.py");

/// Larger than the fixture's library in memory.
const LIBRARY_BYTES: u64 = 1 << 16;

/// A stack: locations of the callers' code, innermost first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stack {
    /// The allocation function.
    pub(crate) function: String,
    pub(crate) callers: Vec<Place>,
}

/// Location of code. Address randomization is off, but mappings created at run time may lie a page lower if probes have a page
/// of their own, so that locations in the library are relative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Address(u64),
    /// Relative to the library that the fixture loads.
    InLibrary(u64),
}

/// Allocations of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Allocated {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// Stacks, and what each allocated.
pub(crate) type Stacks = BTreeMap<Stack, Allocated>;

/// Runs a program under gdb. At the place of a probe, the kernel would take gdb's breakpoint for its own.
pub(crate) fn by_gdb(program: &Path, arguments: &[&OsStr]) -> Stacks {
    let _quiet = probes::quiet();
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("stacks");
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-x", SCRIPT, "--args"]).arg(program).args(arguments).env("ORACLE", &record);
    let mut gdb = Process::spawn(gdb.stdin(Stdio::null()).stdout(Stdio::piped()));
    let said = Lines::of("gdb", gdb.stdout.take().unwrap());
    let status = gdb.end(LONG);
    let said = said.all(LONG);
    assert!(status.success() && record.exists(), "gdb: {status}: {said:#?}");
    let library = library(said.iter().map(String::as_str));
    fs::read_to_string(record).unwrap().lines().map(|line| parse(line, library)).collect()
}

/// The functions that gdb shows, from the caller to main, at each of the first `calls` calls of `malloc` that match a condition.
pub(crate) fn backtraces(program: &Path, condition: &str, calls: usize) -> Vec<Vec<String>> {
    let _quiet = probes::quiet();
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "break main", "-ex", "run"]);
    gdb.args(["-ex", &format!("break *malloc if {condition}")]);
    for _ in 0..calls {
        gdb.args(["-ex", "continue", "-ex", "echo STACK\\n", "-ex", "backtrace"]);
    }
    let output = gdb.arg(program).stdin(Stdio::null()).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let names = |stack: &str| -> Vec<String> {
        let frames = stack.lines().filter(|line| line.starts_with('#')).skip(1);
        frames
            .filter_map(|line| line.split(" (").next()?.split_whitespace().last())
            .map(str::to_owned)
            .collect()
    };
    let stacks: Vec<_> = output.split("STACK\n").skip(1).map(names).collect();
    assert_eq!(stacks.len(), calls, "{output}");
    stacks
}

/// Reduces a report. `output` is the program's output.
pub(crate) fn reported(report: &Document, output: &str) -> Stacks {
    let library = library(output.lines());
    let mut stacks = Stacks::new();
    for stack in &report.stacks {
        let account = stacks.entry(reduce(stack, library)).or_default();
        account.objects += stack.allocated.objects;
        account.bytes += stack.allocated.bytes;
    }
    stacks
}

/// Reduces a stack of a program that loads no library.
pub(crate) fn reduced(stack: &StackDocument) -> (Stack, Allocated) {
    let allocated = Allocated { objects: stack.allocated.objects, bytes: stack.allocated.bytes };
    (reduce(stack, None), allocated)
}

/// Objects of a size, over all stacks.
pub(crate) fn objects_of_size(stacks: &Stacks, size: u64) -> u64 {
    stacks.values().filter(|it| it.bytes == it.objects * size).map(|it| it.objects).sum()
}

/// Fails unless both are equal, and prints the differences.
pub(crate) fn assert_equal(reported: &Stacks, by_gdb: &Stacks) {
    let differ: Vec<_> =
        by_gdb.iter().filter(|(stack, allocated)| reported.get(stack) != Some(allocated)).collect();
    let more: Vec<_> =
        reported.iter().filter(|(stack, allocated)| by_gdb.get(stack) != Some(allocated)).collect();
    assert!(differ.is_empty() && more.is_empty(), "gdb: {differ:#x?}\nreported: {more:#x?}");
}

fn reduce(stack: &StackDocument, library: Option<u64>) -> Stack {
    let mut frames = stack.frames.iter().filter(|frame| !frame.inlined && !frame.tail_call);
    let function = frames.next().map_or(String::new(), |frame| frame.symbol.clone());
    Stack { function, callers: frames.map(|frame| place(&frame.address, library)).collect() }
}

/// Parses a line of the script: `COUNT BYTES FUNCTION ADDRESS ...`.
fn parse(line: &str, library: Option<u64>) -> (Stack, Allocated) {
    let words: Vec<_> = line.split(' ').collect();
    let [objects, bytes, function, addresses @ ..] = &words[..] else { panic!("no stack: {line}") };
    let callers = addresses.iter().map(|address| place(address, library)).collect();
    let allocated = Allocated { objects: objects.parse().unwrap(), bytes: bytes.parse().unwrap() };
    (Stack { function: (*function).to_owned(), callers }, allocated)
}

/// Address of the library, from the program's output.
fn library<'a>(mut output: impl Iterator<Item = &'a str>) -> Option<u64> {
    output.find_map(|line| line.strip_prefix("library ")).map(number)
}

fn place(address: &str, library: Option<u64>) -> Place {
    let address = number(address);
    match library {
        Some(base) if (base..base + LIBRARY_BYTES).contains(&address) => Place::InLibrary(address - base),
        _ => Place::Address(address),
    }
}

fn number(hexadecimal: &str) -> u64 {
    u64::from_str_radix(hexadecimal.trim_start_matches("0x"), 16).unwrap()
}
