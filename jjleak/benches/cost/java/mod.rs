//! Cost of a JVM with much code: attaching, detaching, reading the layout of its structures, and naming frames.
//!
//! The kernel side reads the code cache while it unwinds: there is no copy to build when attaching, or to refresh when code is
//! compiled. The remaining costs are measured here.

mod program;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use jjleak::jvm::{Blob, Jvm, ProcessMemory};
use jjleak::processes::Pid;
use jjleak::symbolize::{JavaNames, KnownJava};
use jjleak_common::jvm::{CodeHeap, id_in_frame};
use jjleak_common::stack::StackFrame;
use jjleak_common::unwind::layer;
use program::Program;

use crate::Result;
use crate::options::Options;
use crate::report::{Fact, Section};
use crate::timings::{Figure, Timings};

/// Methods of the program, each compiled separately.
const METHODS: usize = 30_000;
/// Frames named at a time: as many methods as a refresh of a copy would read.
const FRAMES: usize = 1000;
/// Timings per figure.
const TURNS: usize = 5;
/// Maximum time to attach, and to detach.
const WANTED_MS: f64 = 500.;
/// Maximum time to read the structures of this JVM.
const KNOWN_MS: f64 = 150.;
/// Maximum time to name [`FRAMES`] new methods.
const NEW_MS: f64 = 20.;
/// Distance between tried addresses: the size of a segment.
const SEGMENT: u64 = 128;
/// Consecutive segments without code after which the rest of a heap counts as empty.
const EMPTY: u64 = 1 << 14;

pub(crate) fn measure(options: &Options) -> Result<Section> {
    let program = Program::start(options.choose(METHODS, 600))?;
    let turns = options.choose(TURNS, 1);
    let (library, bias) = program.library()?;
    let jvm = || -> Result<_> {
        let memory = ProcessMemory::open(Pid::new(program.pid()).ok_or("no process")?)?;
        Ok(Jvm::open(memory, &library, bias)?)
    };
    let open = timed(turns, || {
        let jvm = jvm()?;
        let heaps = jvm.heaps()?;
        let _ = jvm.continuations();
        jvm.code_cache(&heaps)?;
        Ok(())
    })?;
    let jvm = jvm()?;
    let heaps = jvm.heaps()?;
    let blobs = blobs(&jvm, &heaps);
    let frames: Vec<_> = { &blobs }.iter().filter(|blob| blob.is_method()).map(frame).collect();
    let chosen: Vec<_> = frames.iter().step_by((frames.len() / FRAMES).max(1)).take(FRAMES).collect();
    let named = timed(turns, || {
        let mut known = KnownJava::default();
        let mut names = JavaNames::new(&jvm, &heaps, &mut known);
        let count = chosen.iter().filter(|frame| names.frames(***frame).is_some()).count();
        if count == chosen.len() { Ok(()) } else { Err(format!("only {count} frames have names").into()) }
    })?;
    let (mut attach, mut detach) = (Timings::default(), Timings::default());
    for _ in 0..turns {
        let (attached, detached) = session(program.pid())?;
        attach.0.push(attached);
        detach.0.push(detached);
    }
    let naming = format!("naming {} frames, each of another method", chosen.len());
    Ok(Section {
        title: "A JVM".to_owned(),
        says: format!(
            "JDK {}, with {} pieces of generated code, {} of them methods.",
            jvm.version(),
            blobs.len(),
            frames.len()
        ),
        facts: vec![
            Fact::new("reading the description of its structures", "ms", open).at_most(KNOWN_MS),
            Fact::new(naming, "ms", named).at_most(NEW_MS),
            Fact::new("from the start of `jjleak -p` until it counts", "ms", attach.figure())
                .at_most(WANTED_MS),
            Fact::new("from Ctrl-C until jjleak has exited", "ms", detach.figure()).at_most(WANTED_MS),
        ],
        ..Section::default()
    })
}

fn timed(turns: usize, mut what: impl FnMut() -> Result<()>) -> Result<Option<Figure>> {
    let mut timings = Timings::default();
    for _ in 0..turns {
        let begun = Instant::now();
        what()?;
        timings.0.push(ms_since(begun));
    }
    Ok(timings.figure())
}

fn ms_since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1000.
}

/// All generated code.
fn blobs(jvm: &Jvm<ProcessMemory>, heaps: &[CodeHeap]) -> Vec<Blob> {
    let mut blobs = Vec::new();
    for heap in heaps {
        let (mut at, mut empty) = (heap.begin, 0);
        while at < heap.end && empty < EMPTY {
            if let Some(blob) = jvm.find(heaps, at + 1) {
                at = blob.code.end.next_multiple_of(SEGMENT);
                empty = 0;
                blobs.push(blob);
            } else {
                at += SEGMENT;
                empty += 1;
            }
        }
    }
    blobs
}

/// A frame in the middle of a blob's code.
fn frame(blob: &Blob) -> StackFrame {
    let middle = blob.code.start + (blob.code.end - blob.code.start) / 2;
    StackFrame::new(middle, layer::GENERATED | id_in_frame(blob.compile_id()))
}

/// Runs jjleak on a process briefly; returns the milliseconds to attach and to exit.
fn session(pid: u32) -> Result<(f64, f64)> {
    let begun = Instant::now();
    let mut jjleak = Command::new(env!("CARGO_BIN_EXE_jjleak"))
        .args(["-p", &pid.to_string(), "3600"])
        // It writes a flame graph.
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let stderr = BufReader::new(jjleak.stderr.take().ok_or("no stderr")?);
    let mut lines = stderr.lines();
    while !lines.next().ok_or("jjleak did not attach")??.contains("attached to") {}
    let attached = ms_since(begun);
    let begun = Instant::now();
    Command::new("kill").args(["-INT", &jjleak.id().to_string()]).status()?;
    // A full pipe would block it.
    lines.for_each(drop);
    jjleak.wait()?;
    Ok((attached, ms_since(begun)))
}
