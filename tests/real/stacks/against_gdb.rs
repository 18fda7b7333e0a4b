//! Stacks match gdb, to the frame and to the call.
//!
//! The same program runs twice at the same addresses: under gdb, which stops at every call of an allocation function and unwinds
//! with its own unwinder, and under jjleak.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jjleak::render::json::StackDocument;
use jjleak_common::stack::MAX_FRAMES;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::support::accounts::assert_nothing_lost;
use crate::support::compile::{self, Build};
use crate::support::jjleak::{Ended, Jjleak, PROGRAM};
use crate::support::oracle::{self, Allocated, Place, Stack, Stacks, assert_equal, objects_of_size};
use crate::support::privilege::{require, require_bpf, require_program};
use crate::support::return_probes::{ReturnProbes, lack_of_return_probes};

/// Allocations of `stacks.c`, whatever the C library does: sizes, and their number.
pub(crate) const SHAPES: &[(u64, u64)] = &[
    // Frames of variable size, realigned ones, both, and arguments on the stack.
    (1003, 2),
    (1004, 2),
    (1005, 2),
    (1006, 1),
    // Signals, on either stack.
    (1007, 1),
    (1008, 1),
    (1015, 1),
    // 200 frames deep, and in three threads.
    (1009, 4),
    (1010, 3),
    // Jumps instead of calls, and calls that do not return.
    (1011, 1),
    (1012, 1),
    (1013, 1),
];

/// Allocations of the library that `stacks.c` loads. The last one happens while the dynamic loader binds a call: its frame is
/// found by `rbx` (sysdeps/x86_64/dl-trampoline.h in glibc).
pub(crate) const LIBRARY_SHAPES: &[(u64, u64)] = &[(1020, 1), (1021, 2), (1022, 1)];

/// Allocations of `stacks.cpp`: in destructors while an exception propagates, and in the handlers.
const EXCEPTION_SHAPES: &[(u64, u64)] = &[(1101, 15), (1103, 3), (1104, 3)];

/// Functions of `stacks.c` that get return probes: around qsort, in signal handlers, through jumps. Functions of the deep
/// recursion are excluded: beyond 64 pending ones (`MAX_URETPROBE_DEPTH` in kernel/events/uprobes.c) the kernel omits jjleak's,
/// too.
const WITH_RETURN_PROBES: &[&str] = &[
    "compare",
    "callbacks",
    "variable",
    "realigned",
    "variable_and_realigned",
    "many",
    "on_stack",
    "on_alternate_stack",
    "on_trap",
    "signals",
    "thread",
    "last",
    "by_jump",
    "jumps_to_malloc",
    "leave",
    "library_calls",
];

/// The program and its arguments.
pub(crate) struct Fixture {
    program: PathBuf,
    library: Option<&'static Path>,
}

impl Fixture {
    pub(crate) fn alone(program: PathBuf) -> Self {
        Self { program, library: None }
    }

    pub(crate) fn with_library(program: PathBuf) -> Self {
        Self { program, library: Some(compile::stacks_library()) }
    }

    fn arguments<'a>(&'a self, gate: &'a Path) -> Vec<&'a OsStr> {
        self.library.map_or(Vec::new(), |library| vec![library.as_os_str(), gate.as_os_str()])
    }

    pub(crate) fn under_gdb(&self) -> Stacks {
        oracle::by_gdb(&self.program, &self.arguments(Path::new("/dev/null")))
    }

    /// Runs it under jjleak, and opens the gate once jjleak has seen the library.
    pub(crate) fn under_jjleak(&self) -> Ended {
        let folder = tempfile::tempdir().unwrap();
        let gate = folder.path().join("gate");
        mkfifo(&gate, Mode::S_IRWXU).unwrap();
        let mut command = Command::new("setarch");
        command.args(["-R", PROGRAM, "-v", "--format", "json", "--"]).arg(&self.program);
        command.args(self.arguments(&gate)).stdout(Stdio::piped());
        let mut jjleak = Jjleak::start(command);
        if let Some(library) = self.library {
            jjleak.wait_for(&format!(" INFO stacks unwind through {}", library.display()));
            OpenOptions::new().write(true).open(&gate).unwrap();
        }
        jjleak.end().assert_done()
    }
}

/// Fails unless all stacks and their counts match gdb, and every stack is complete.
pub(crate) fn assert_as_in_gdb(name: &str, by_gdb: &Stacks, ended: &Ended) {
    let report = ended.report();
    assert_nothing_lost(&report);
    let incomplete: Vec<_> = report.stacks.iter().filter(|stack| stack.status != "complete").collect();
    assert!(incomplete.is_empty(), "not complete: {incomplete:#?}");
    let reported = oracle::reported(&report, &ended.stdout);
    assert_equal(&reported, by_gdb);
    println!("{name}: {} stacks as in gdb", reported.len());
}

pub(crate) fn assert_shapes(stacks: &Stacks, shapes: &[(u64, u64)]) {
    for (size, objects) in shapes {
        assert_eq!(objects_of_size(stacks, *size), *objects, "blocks of {size} bytes");
    }
}

/// A dynamic program with its library, with another tool's return probes on these functions.
fn assert_dynamic_as_in_gdb(build: Build, return_probes: &[&str]) {
    // A separate copy, because probes are on the file.
    let folder = tempfile::tempdir().unwrap();
    let fixture = Fixture::with_library(compile::copy(&compile::stacks("stacks.c", build), folder.path()));
    let by_gdb = fixture.under_gdb();
    assert_shapes(&by_gdb, SHAPES);
    assert_shapes(&by_gdb, LIBRARY_SHAPES);

    let probes = ReturnProbes::on("jjleak_stacks", &fixture.program, return_probes);
    let ended = fixture.under_jjleak();
    assert!(probes.all_were_hit());

    assert_as_in_gdb(&format!("{build:?}"), &by_gdb, &ended);
}

#[test]
fn stacks_without_frame_pointers_are_as_in_gdb() {
    require_program!("gdb");
    assert_dynamic_as_in_gdb(Build::NoFramePointers, &[]);
}

#[test]
fn stacks_with_frame_pointers_are_as_in_gdb() {
    require_program!("gdb");
    assert_dynamic_as_in_gdb(Build::FramePointers, &[]);
}

#[test]
fn stacks_with_return_probes_of_another_tool_are_as_in_gdb() {
    require_program!("gdb");
    require!(lack_of_return_probes());
    assert_dynamic_as_in_gdb(Build::NoFramePointers, WITH_RETURN_PROBES);
}

#[test]
fn stacks_of_a_static_program_are_as_in_gdb() {
    require_program!("gdb");
    let fixture = Fixture::alone(compile::stacks("stacks.c", Build::Static));
    let by_gdb = fixture.under_gdb();
    assert_shapes(&by_gdb, SHAPES);

    let ended = fixture.under_jjleak();

    assert_as_in_gdb("Static", &by_gdb, &ended);
}

#[test]
fn stacks_of_exceptions_in_flight_are_as_in_gdb() {
    require_program!("gdb");
    for build in [Build::NoFramePointers, Build::FramePointers] {
        let fixture = Fixture::alone(compile::stacks("stacks.cpp", build));
        let by_gdb = fixture.under_gdb();
        assert_shapes(&by_gdb, EXCEPTION_SHAPES);

        let ended = fixture.under_jjleak();

        assert_as_in_gdb(&format!("C++ {build:?}"), &without_invented_frames(by_gdb), &ended);
    }
}

/// For a stack with more frames than the maximum, the innermost ones are kept.
#[test]
fn stacks_up_to_the_limit_are_as_in_gdb_and_deeper_ones_as_far_as_they_are_kept() {
    require_program!("gdb");
    let fixture = Fixture::alone(compile::deepest().to_owned());
    let by_gdb: Stacks =
        fixture.under_gdb().into_iter().filter(|(_, it)| it.bytes == it.objects * 1401).collect();
    let (whole, cut): (Stacks, Stacks) =
        by_gdb.into_iter().partition(|(stack, _)| stack.callers.len() < MAX_FRAMES);
    let longest = whole.keys().map(|stack| stack.callers.len() + 1).max();
    assert!(longest == Some(MAX_FRAMES) && cut.len() > 2, "{longest:?}, and {} longer ones", cut.len());

    let report = fixture.under_jjleak().report();

    assert_nothing_lost(&report);
    let of_size =
        report.stacks.iter().filter(|stack| stack.allocated.bytes == stack.allocated.objects * 1401);
    let (complete, too_deep): (Vec<_>, Vec<_>) = of_size.partition(|stack| stack.status == "complete");
    assert_equal(&complete.into_iter().map(oracle::reduced).collect(), &whole);
    let mut expected = Stacks::new();
    for (Stack { function, mut callers }, allocated) in cut {
        callers.truncate(MAX_FRAMES - 1);
        let sum = expected.entry(Stack { function, callers }).or_default();
        sum.objects += allocated.objects;
        sum.bytes += allocated.bytes;
    }
    assert!(too_deep.iter().all(|stack| stack.status == "too_deep"), "{too_deep:#?}");
    assert_equal(&too_deep.into_iter().map(oracle::reduced).collect(), &expected);
}

/// Removes the frames that gdb invents from the words above the dynamic loader's first frame, which has no call frame
/// information: the number of arguments and the first of their addresses (System V ABI, x86-64, "Initial Stack"), which are not
/// code.
fn without_invented_frames(by_gdb: Stacks) -> Stacks {
    const ARGUMENT_COUNT: Place = Place::Address(1);
    let cut = |mut stack: Stack| {
        if let Some(at) = stack.callers.iter().position(|place| *place == ARGUMENT_COUNT) {
            stack.callers.truncate(at);
        }
        stack
    };
    by_gdb.into_iter().map(|(stack, allocated)| (cut(stack), allocated)).collect()
}

/// The loader's trampoline finds its frame by `rbx`. Until the called function has saved that register, only the interrupted
/// registers of the signal frame hold it: stacks end there then, and say so.
#[test]
fn stacks_of_a_signal_in_the_prologue_of_what_binds_a_call_are_as_in_gdb_or_end_at_the_loader() {
    require_program!("gdb");
    let fixture = Fixture::alone(compile::binding().to_owned());
    let is_of_signal = |it: &Allocated| it.bytes == it.objects * 1301;
    let by_gdb: Stacks = fixture.under_gdb().into_iter().filter(|(_, it)| is_of_signal(it)).collect();
    assert!(by_gdb.len() > 8, "{by_gdb:#x?}");

    let report = fixture.under_jjleak().report();

    assert_nothing_lost(&report);
    let mut complete = Stacks::new();
    let mut ended = Stacks::new();
    for stack in report.stacks.iter().filter(|stack| stack.allocated.bytes == stack.allocated.objects * 1301)
    {
        let (reduced, allocated) = oracle::reduced(stack);
        match stack.status.as_str() {
            "complete" => complete.insert(reduced, allocated),
            "unsupported" => ended.insert(reduced, allocated),
            status => panic!("{status}: {stack:#?}"),
        };
    }
    println!("{} are complete, {} end at the loader", complete.len(), ended.len());
    assert_eq!(complete.len() + ended.len(), by_gdb.len());
    for (stack, allocated) in &complete {
        assert_eq!(by_gdb.get(stack), Some(allocated), "{stack:#x?}");
    }
    // The handler, the signal frame, the function, and the trampoline.
    for Stack { callers, .. } in ended.keys() {
        assert_eq!(callers.len(), 4, "{callers:#x?}");
        assert!(by_gdb.keys().any(|whole| whole.callers.starts_with(callers)), "{callers:#x?}");
    }
    assert!(!complete.is_empty() && !ended.is_empty());
}

#[test]
fn what_cannot_be_unwound_ends_with_a_status_and_invents_no_frame() {
    require_bpf!();
    let arguments = ["--format", "json", "--", compile::garbage().to_str().unwrap()];

    let report = Ended::of(arguments).assert_done().report();

    for (size, function) in [(1201, "without_rows"), (1202, "wrong_size"), (1203, "wrong_register")] {
        let of_size = |it: &&StackDocument| it.allocated.bytes == it.allocated.objects * size;
        let stacks: Vec<_> = report.stacks.iter().filter(of_size).collect();
        assert!(!stacks.is_empty(), "nothing of {function}");
        for stack in stacks {
            let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
            println!("{function}: {} x {names:?}: {}", stack.allocated.objects, stack.status);
            assert_eq!(names, ["malloc", function]);
            assert_ne!(stack.status, "complete");
        }
    }
}

/// A file without call frame information: a stack is followed through it by frame pointers if they are consistent, and is marked
/// accordingly.
#[test]
fn code_without_call_frame_information_that_keeps_a_frame_pointer_is_followed_and_named() {
    require_bpf!();
    let program = compile::without_rows();
    let arguments = ["--format", "json", "--", program.to_str().unwrap()];

    let report = Ended::of(arguments).assert_done().report();

    let of_size = |size| {
        let all = report.stacks.iter();
        let mut stacks = all.filter(move |it| it.live.objects > 0 && it.live.bytes == it.live.objects * size);
        stacks.next().unwrap_or_else(|| panic!("nothing of {size} bytes"))
    };
    for (size, function, module) in
        [(1501, "assembled", program.to_str().unwrap()), (1502, "in_library", "libwithoutrows.so")]
    {
        let stack = of_size(size);
        let names: Vec<_> = stack.frames.iter().map(|frame| frame.symbol.as_str()).collect();
        assert_eq!(names[..3], ["malloc", function, "main"], "{}", stack.status);
        assert_eq!(names.last(), Some(&"_start"), "{names:?}");
        assert_eq!(stack.status, "frame_pointers");
        let by_frame_pointer: Vec<_> = stack.frames.iter().map(|frame| frame.by_frame_pointer).collect();
        assert_eq!(by_frame_pointer[..4], [false, false, true, false], "{names:?}");
        let is_told = report.without_unwind_information.iter().any(|file| file.ends_with(module));
        assert!(is_told, "{module} is not named: {:?}", report.without_unwind_information);
    }
}
