//! Stacks that are recognized without a walk.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use jjleak::attach::{Programs, Settings};
use jjleak::render::json::StackDocument;
use jjleak::snapshot::BlockFilter;
use jjleak_common::stack::StackFrame;
use jjleak_common::unwind::layer;
use tempfile::TempDir;

use crate::support::accounts::assert_nothing_lost;
use crate::support::attached::Attached;
use crate::support::bounded::{HOURLONG, SOON};
use crate::support::compile;
use crate::support::java::Java;
use crate::support::jjleak::Ended;
use crate::support::lines::Lines;
use crate::support::privilege::{require_bpf, require_program};
use crate::support::process::Process;

/// Programs that wait for a line, work, and wait again.
const PROGRAMS: [(&str, &[&str]); 3] = [
    (
        "python3",
        &[
            "-S",
            "-c",
            "import ast, heapq, json\n\
             print('ready', flush=True)\n\
             input()\n\
             tree = ast.dump(ast.parse(open(heapq.__file__).read()))\n\
             data = [json.loads(json.dumps([{'a': [i, str(i)]}] * 20)) for i in range(100)]\n\
             print('done', flush=True)\n\
             input()",
        ],
    ),
    (
        "perl",
        &[
            "-e",
            "$| = 1; print \"ready\\n\"; <STDIN>; my %all;
             for my $i (1 .. 3000) { push @{$all{'k' . $i % 97}}, {i => $i, s => 'x' x ($i % 50)}; }
             my $text = join ',', map { sprintf '%s=%d', $_, scalar @{$all{$_}} } sort keys %all;
             print \"done\\n\"; <STDIN>;",
        ],
    ),
    (
        "bash",
        &[
            "-c",
            "f() { local left=$1 text=$2; if ((left > 0)); then f $((left - 1)) \"${text:0:20}$left\"; fi; }
             echo ready; read -r
             for i in {1..200}; do all[i]=\"$i${all[i - 1]:0:30}\"; f $((i % 15)) \"$i\"; done
             echo done; read -r",
        ],
    ),
];

/// Ways through the fixture of each kind, each with a block size of its own.
const WAYS: u64 = 32;
const KINDS: u64 = 4;
const SMALLEST: u64 = 64;
/// Block sizes of two stacks with the same words, but another frame pointer; and allocations from each: 40 turns.
const LEFTOVER: [u64; 2] = [32, 33];
const LEFTOVER_TIMES: u64 = 4000;
/// Allocations from each: 40 turns with four sizes of the outermost frame.
const TIMES: u64 = 160;

#[test]
fn stacks_in_turns_keep_their_own_blocks_whatever_registers_hold() {
    require_bpf!();
    let program = compile::ways().as_os_str();

    let ended = Ended::of(["--format".as_ref(), "json".as_ref(), "--".as_ref(), program]).assert_done();

    let report = ended.report();
    assert_nothing_lost(&report);
    for root in ["main", "start_thread"] {
        let of_thread = report.stacks.iter().filter(|stack| {
            let has = |name| stack.frames.iter().any(|frame| frame.symbol == name);
            has("leaf") && has(root)
        });
        let mut times = BTreeMap::new();
        for stack in of_thread {
            assert_eq!(stack.status, "complete");
            let (size, rest) = (
                stack.allocated.bytes / stack.allocated.objects,
                stack.allocated.bytes % stack.allocated.objects,
            );
            assert_eq!(rest, 0, "blocks of several ways: {stack:#?}");
            *times.entry(size).or_insert(0) += stack.allocated.objects;
        }
        let ways = (SMALLEST..SMALLEST + WAYS * KINDS).map(|size| (size, TIMES));
        let expected = LEFTOVER.map(|size| (size, LEFTOVER_TIMES)).into_iter().chain(ways);
        assert_eq!(times, expected.collect(), "{root}");
    }
}

/// Size of the first blocks of the fixture, and number of blocks of each size.
const ZEROS_SIZE: u64 = 1900;
const ZEROS_TIMES: u64 = 100;

#[test]
fn a_stack_that_ends_at_a_zero_is_none_that_goes_on_from_there() {
    require_bpf!();
    let program = compile::zeros().as_os_str();

    let ended = Ended::of(["--format".as_ref(), "json".as_ref(), "--".as_ref(), program]).assert_done();

    let report = ended.report();
    assert_nothing_lost(&report);
    for (place, (caller, goes_on)) in
        [("by_frame_pointer", false), ("by_row", true), ("by_frame_pointer", true)].into_iter().enumerate()
    {
        let size = ZEROS_SIZE + place as u64;
        let is_of_size = |stack: &&StackDocument| stack.allocated.bytes == stack.allocated.objects * size;
        let stacks: Vec<_> = report.stacks.iter().filter(is_of_size).collect();
        let [stack] = stacks[..] else { panic!("{size} bytes: {stacks:#?}") };
        let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
        assert_eq!(stack.allocated.objects, ZEROS_TIMES, "{names:?}");
        assert_eq!(names[..3], ["malloc", "allocate", caller]);
        assert_eq!(names.len() > 3, goes_on, "{names:?}");
        assert_eq!(stack.status, "frame_pointers");
    }
}

/// Objects and bytes that each stack has allocated, by its status and frames.
type Stacks = BTreeMap<(String, Vec<u64>), (u64, u64)>;

fn is_java(frame: StackFrame) -> bool {
    (layer::GENERATED..layer::FOUND).contains(&frame.layer())
}

/// Stacks of a kind. A frame of Java is its address and its compilation.
fn stacks(mut attached: Attached, is_of_kind: impl Fn(&[StackFrame]) -> bool) -> Stacks {
    attached.new_stacks();
    let snapshot = attached.snapshot(BlockFilter::default());
    let mut stacks = Stacks::new();
    for (row, used) in snapshot.stacks {
        let stack = attached.collector.stack(row).unwrap();
        if !is_of_kind(&stack.frames) {
            continue;
        }
        let known = |frame: &StackFrame| if is_java(*frame) { frame.0 } else { frame.address() };
        let addresses = stack.frames.iter().map(known).collect();
        let sum = stacks.entry((format!("{:?}", stack.status), addresses)).or_default();
        *sum = (sum.0 + used.allocated_objects, sum.1 + used.allocated_bytes);
    }
    stacks
}

fn assert_as_if_each_were_walked(program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments).env("PYTHONMALLOC", "malloc").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = Process::spawn(&mut command);
    let mut lines = Lines::of(program, target.stdout.take().unwrap());
    lines.skip_to("ready", SOON);
    let pid = target.id();
    assert_same_stacks(
        program,
        pid,
        |_| true,
        || {
            target.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
            lines.skip_to("done", SOON);
        },
    );
}

/// Fails unless the stacks of a kind in a process that works are those that a walk at each allocation finds.
fn assert_same_stacks(
    program: &str,
    pid: u32,
    is_of_kind: impl Fn(&[StackFrame]) -> bool,
    work: impl FnOnce(),
) {
    let settings = Settings::new(Programs::Accounting);
    let walking = Attached::to(pid, Settings { walk_each: true, ..settings });
    let recognizing = Attached::to(pid, settings);

    work();

    let (walked, recognized) = (stacks(walking, &is_of_kind), stacks(recognizing, &is_of_kind));
    let objects: u64 = walked.values().map(|(objects, _)| objects).sum();
    println!("{program}: {objects} objects, {} stacks", walked.len());
    assert!(walked.len() > 20 && objects > 1000, "{program}: {objects} objects, {} stacks", walked.len());
    for (stack, sum) in &walked {
        assert_eq!(recognized.get(stack), Some(sum), "{program}: {stack:x?}");
    }
    assert_eq!(recognized.len(), walked.len(), "{program}");
}

#[test]
fn stacks_of_real_programs_are_those_that_a_walk_each_time_finds() {
    require_program!("python3");
    require_program!("perl");
    require_program!("bash");
    for (program, arguments) in PROGRAMS {
        assert_as_if_each_were_walked(program, arguments);
    }
}

#[test]
fn stacks_of_jvms_are_those_that_a_walk_each_time_finds() {
    require_bpf!();
    require_program!("javac");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/java/Ways.java");
    let classes = TempDir::new().unwrap();
    let arguments = format!("-d {} {}", classes.path().display(), source.display());
    let mut compiler = Java::start_compiler(Path::new("java"));
    // Threads of the JVM that compile its code allocate while jjleak attaches; those that run Java wait.
    let runs_java = |frames: &[StackFrame]| frames.iter().copied().any(is_java);
    let pid = compiler.pid();
    assert_same_stacks("javac", pid, runs_java, || drop(compiler.ask(&arguments)));

    let mut churn = Java::start_ways(Path::new("java"), &["-XX:ReservedCodeCacheSize=6m"]);
    let pid = churn.pid();
    assert_same_stacks("hidden classes", pid, runs_java, || drop(churn.ask_within(HOURLONG, "churn 300")));
}
