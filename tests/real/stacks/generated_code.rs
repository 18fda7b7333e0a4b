//! Code that a program generates while it runs, without call frame information: stacks continue through code that keeps a frame
//! pointer, and end elsewhere.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};

use jjleak::render::json::{Document, StackDocument};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::bounded::SOON;
use crate::support::compile;
use crate::support::jjleak::Jjleak;
use crate::support::lines::Lines;
use crate::support::privilege::require_bpf;
use crate::support::process::Process;

/// `generated.c`, and a jjleak that is attached to it and reports repeatedly.
struct Generating {
    process: Process,
    stdin: ChildStdin,
    stdout: Lines,
}

impl Generating {
    fn start() -> Self {
        let mut command = Command::new(compile::generated());
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (stdin, stdout) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let mut stdout = Lines::of("the program", stdout);
        assert_eq!(stdout.next(SOON), "ready");
        Self { process, stdin, stdout }
    }

    fn ask(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
        assert_eq!(self.stdout.next(SOON), "done");
    }

    fn attach(&self) -> Jjleak {
        Jjleak::attached(["-p", &self.process.id().to_string(), "3600", "--format", "json"])
    }
}

/// The stacks that allocated blocks of this size.
fn of_size(report: &Document, size: u64) -> Vec<&StackDocument> {
    report.stacks.iter().filter(|it| it.allocated.bytes == it.allocated.objects * size).collect()
}

/// Names from the innermost on; `*` for generated code, which has none.
fn names(stack: &StackDocument) -> Vec<&str> {
    let symbols = stack.frames.iter().map(|frame| frame.symbol.as_str());
    symbols.map(|symbol| if symbol.is_empty() { "*" } else { symbol }).collect()
}

/// Fails unless the stack is whole: these frames, then those of the program's start.
fn assert_whole(stack: &StackDocument, inner: &[&str]) {
    let names = names(stack);
    assert_eq!(stack.status, "frame_pointers", "{names:?}");
    assert_eq!(names[..inner.len()], *inner);
    assert_eq!(names[inner.len()..].first(), Some(&"main"), "{names:?}");
    assert_eq!(names.last(), Some(&"_start"), "{names:?}");
}

/// Fails unless the stacks end in generated code and are not reported as whole.
fn assert_ends_in_generated_code(stacks: &[&StackDocument]) {
    assert!(!stacks.is_empty());
    for stack in stacks {
        println!("{}: {:?}", stack.status, names(stack));
        assert_eq!(names(stack), ["malloc", "allocates", "*"], "{}", stack.status);
        assert!(!["complete", "frame_pointers"].contains(&stack.status.as_str()), "{}", stack.status);
    }
}

#[test]
fn stacks_pass_through_generated_code_that_keeps_a_frame_pointer() {
    require_bpf!();
    let mut program = Generating::start();
    let jjleak = program.attach();
    program.ask("kept");
    program.ask("nested");
    let ended = jjleak.interrupt().assert_done();

    let report = ended.report();
    let [kept] = of_size(&report, 1301)[..] else { panic!("{:#?}", report.stacks) };
    assert_whole(kept, &["malloc", "allocates", "*", "run"]);
    let [nested] = of_size(&report, 1302)[..] else { panic!("{:#?}", report.stacks) };
    assert_whole(nested, &["malloc", "allocates", "*", "goes_deeper", "*", "run"]);
}

#[test]
fn stacks_end_in_generated_code_that_keeps_none_also_where_it_replaces_other() {
    require_bpf!();
    let mut program = Generating::start();
    let jjleak = program.attach();
    program.ask("kept");
    program.ask("astray");
    program.ask("replace");
    let ended = jjleak.interrupt().assert_done();

    let report = ended.report();
    assert_whole(of_size(&report, 1301)[0], &["malloc", "allocates", "*", "run"]);
    assert_ends_in_generated_code(&of_size(&report, 1303));
    assert_ends_in_generated_code(&of_size(&report, 1305));
    let objects: u64 = of_size(&report, 1305).iter().map(|stack| stack.allocated.objects).sum();
    assert_eq!(objects, 7);
}

/// Data above a thread's stack can look like a frame.
#[test]
fn a_frame_pointer_that_points_away_from_the_threads_stack_is_not_followed() {
    require_bpf!();
    let mut program = Generating::start();
    let jjleak = program.attach();
    program.ask("beyond");
    let report = jjleak.interrupt().assert_done().report();
    assert_ends_in_generated_code(&of_size(&report, 1306));
}

#[test]
fn a_region_of_generated_code_that_grows_is_followed() {
    require_bpf!();
    let mut program = Generating::start();
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("reports");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    // Opened for writing, too, so that neither side waits for the other.
    let reports = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let mut reports = Lines::of("jjleak's reports", reports);
    let pid = program.process.id().to_string();
    let arguments = ["-p", &pid, "0.1", "--format", "json", "--out", pipe.to_str().unwrap()];
    let jjleak = Jjleak::attached(arguments);
    program.ask("kept");
    program.ask("grow");
    // Until jjleak has scanned the mappings, which it does for each report, stacks end at the new code.
    let report = loop {
        program.ask("grown");
        let report: Document = serde_json::from_str(&reports.next(SOON)).unwrap();
        if of_size(&report, 1304).iter().any(|stack| stack.status == "frame_pointers") {
            break report;
        }
    };
    jjleak.interrupt().assert_done();

    for stack in of_size(&report, 1304) {
        if stack.status == "generated_code" {
            assert_eq!(names(stack), ["malloc", "allocates"]);
        } else {
            assert_whole(stack, &["malloc", "allocates", "*", "run"]);
        }
    }
}
