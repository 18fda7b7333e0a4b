//! Unwind rows of more files than fit at once: those of unmapped files make room, and no stack is unwound with another file's.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use jjleak::attach::{Programs, Settings};
use jjleak::render::json::{Document, StackDocument};
use tempfile::TempDir;

use crate::support::attached::Attached;
use crate::support::bounded::SOON;
use crate::support::compile;
use crate::support::jjleak::{Jjleak, PROGRAM};
use crate::support::ledger::Ledger;
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// Calls of each library, once its rows are known.
const CALLS: u64 = 100;
const FUNCTIONS: [&str; 2] = ["in_first", "in_second"];
/// One chunk: room for the C library and one of the libraries, but not for two.
const CAPACITY: [&str; 2] = ["--max-rows", "1"];

/// The program that loads libraries as it is told, and copies of its two libraries.
struct Loading {
    process: Process,
    stdin: ChildStdin,
    stdout: Lines,
    copies: TempDir,
}

impl Loading {
    fn start() -> Self {
        let [program, ..] = compile::loading();
        let mut command = Command::new(program);
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut stdout = Lines::of("the program that loads libraries", stdout);
        assert_eq!(stdout.next(SOON), "ready");
        Self { process, stdin, stdout, copies: TempDir::new().unwrap() }
    }

    fn attach(&self, options: &[&str]) -> Jjleak {
        let pid = self.process.id().to_string();
        Jjleak::attached([&["-v", "--format", "json", "-p", &pid], options].concat())
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
        assert_eq!(self.stdout.next(SOON), "done");
    }

    /// Loads a new copy of one of the libraries.
    fn load(&mut self, number: usize) -> PathBuf {
        let [_, libraries @ ..] = compile::loading();
        let copy = self.copies.path().join(format!("lib{number}.so"));
        fs::copy(&libraries[number % libraries.len()], &copy).unwrap();
        self.tell(&format!("load {} {}", copy.display(), FUNCTIONS[number % FUNCTIONS.len()]));
        copy
    }

    fn call(&mut self) {
        self.tell(&format!("call {CALLS}"));
    }
}

/// Stacks of the calls of a library.
fn stacks_of<'report>(report: &'report Document, library: &Path) -> Vec<&'report StackDocument> {
    let is_of =
        |stack: &&StackDocument| stack.frames.get(1).is_some_and(|frame| Path::new(&frame.module) == library);
    report.stacks.iter().filter(is_of).collect()
}

#[test]
fn rows_of_unmapped_libraries_make_room_for_those_of_others() {
    require_bpf!();
    let mut program = Loading::start();
    let mut jjleak = program.attach(&CAPACITY);

    let libraries: Vec<_> = (0..6)
        .map(|number| {
            let library = program.load(number);
            jjleak.wait_for(&format!(" INFO stacks unwind through {}", library.display()));
            program.call();
            program.tell("unload");
            library
        })
        .collect();

    let report = jjleak.interrupt().assert_done().report();
    for (number, library) in libraries.iter().enumerate() {
        let stacks = stacks_of(&report, library);
        let [stack] = &stacks[..] else { panic!("{}: {stacks:#?}", library.display()) };
        let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
        assert_eq!(names[..5], ["malloc", "inner", FUNCTIONS[number % 2], "use", "main"]);
        assert_eq!((stack.status.as_str(), stack.live.objects), ("complete", CALLS), "{stack:#?}");
    }
    assert!(report.notes["unwind_rows_removed"] >= 5, "{:?}", report.notes);
    assert_eq!(report.lost["unwind_tables_full"], 0);
}

#[test]
fn a_library_without_room_for_its_rows_is_reported() {
    require_bpf!();
    let mut program = Loading::start();
    let mut jjleak = program.attach(&[&CAPACITY[..], &["--strict"]].concat());

    let first = program.load(0);
    jjleak.wait_for(&format!(" INFO stacks unwind through {}", first.display()));
    let second = program.load(1);
    jjleak.wait_for(&format!(" WARN {}: its code is unwound by frame pointers", second.display()));
    program.call();

    let ended = jjleak.interrupt();
    assert_eq!(ended.status.code(), Some(5));
    let report = ended.report();
    assert_eq!(report.lost["unwind_tables_full"], 1, "{:?}", report.lost);
    let stacks = stacks_of(&report, &second);
    assert!(!stacks.is_empty() && stacks.iter().all(|stack| stack.status != "complete"), "{stacks:#?}");
}

#[test]
fn no_stack_is_unwound_with_rows_that_took_the_place_of_its_own() {
    const TIMES: u64 = 300;
    require_bpf!();
    let ([_, libraries @ ..], [program, ..]) = (compile::loading(), compile::replacing());
    let mut command = Command::new(PROGRAM);
    command.args(["--format", "json", "--out", "report.json"]).args(CAPACITY);
    command.args(["0.1", "--"]).arg(program).arg(TIMES.to_string()).args(libraries).stdout(Stdio::piped());

    let ended = Jjleak::start(command).end().assert_done();

    let reports = fs::read_to_string(ended.file("report.json")).unwrap();
    let report: Document = serde_json::from_str(reports.lines().last().unwrap()).unwrap();
    let mut complete = 0;
    for (library, function) in libraries.iter().zip(FUNCTIONS) {
        for stack in stacks_of(&report, library).iter().filter(|stack| stack.status == "complete") {
            let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
            assert_eq!(names[..5], ["malloc", "inner", function, "use", "main"], "{stack:#?}");
            assert_eq!(names.last(), Some(&"_start"), "{stack:#?}");
            complete += stack.allocated.objects;
        }
    }
    println!("{complete} complete stacks, {} removed", report.notes["unwind_rows_removed"]);
    assert!(complete > 0 && report.notes["unwind_rows_removed"] > 1, "{:?}", report.notes);
}

#[test]
fn a_table_of_mappings_that_missed_a_library_is_outdated_until_there_is_another_one() {
    require_bpf!();
    let mut ledger = Ledger::start();
    let mut attached = Attached::to(ledger.pid(), Settings::new(Programs::Accounting));
    assert!(attached.holds_code());

    let disturbed = attached.begin_scan();
    ledger.load("libz.so.1");
    attached.end_scan(disturbed);
    assert!(!attached.holds_code(), "the library may have been loaded after its part of the list was read");
    let next = attached.begin_scan();
    assert!(!attached.holds_code(), "no other scan has ended");

    attached.end_scan(next);
    assert!(attached.holds_code());
}
