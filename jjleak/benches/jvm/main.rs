//! What a JVM with much code costs: to attach and detach, to find out how it lays out its structures, and to name frames.
//!
//! The kernel side reads the code cache itself when a stack leads through it: there is no view of it to build at attaching,
//! and none to refresh when code is compiled. What is left is measured here. `cargo xtask bench` runs it.

#![expect(clippy::print_stdout, reason = "prints its table")]

mod program;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jjleak::jvm::{Blob, Jvm, ProcessMemory};
use jjleak::processes::Pid;
use jjleak::symbolize::{JavaNames, KnownJava};
use jjleak_common::jvm::{CodeHeap, id_in_frame};
use jjleak_common::stack::StackFrame;
use jjleak_common::unwind::layer;
use program::Program;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Methods of the program, each compiled on its own.
const METHODS: usize = 30_000;
/// Frames that are named at a time: as many methods as a refresh would have had to look at.
const FRAMES: usize = 1000;
/// Timings of each.
const TURNS: usize = 5;
/// Distance of addresses that are tried: the size of a segment.
const SEGMENT: u64 = 128;
/// Segments without code after which a heap counts as empty from there on.
const EMPTY: u64 = 1 << 14;

fn main() -> Result<()> {
    if Command::new("javac").arg("-version").output().is_err() {
        println!("no javac is installed: not measured");
        return Ok(());
    }
    let program = Program::start(METHODS)?;
    let (library, bias) = program.library()?;
    let jvm = || -> Result<_> {
        let memory = ProcessMemory::open(Pid::new(program.pid()).ok_or("no process")?)?;
        Ok(Jvm::open(memory, &library, bias)?)
    };
    let open = median(|| {
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
    let named = median(|| {
        let mut known = KnownJava::default();
        let mut names = JavaNames::new(&jvm, &heaps, &mut known);
        let count = chosen.iter().filter(|frame| names.frames(***frame).is_some()).count();
        if count == chosen.len() { Ok(()) } else { Err(format!("only {count} frames have names").into()) }
    })?;
    let mut attach = Vec::new();
    let mut detach = Vec::new();
    for _ in 0..TURNS {
        let (began, ended) = session(program.pid())?;
        attach.push(began);
        detach.push(ended);
    }
    println!(
        "JDK {}, {} blobs of code, {} of them methods; medians, ms",
        jvm.version(),
        blobs.len(),
        frames.len()
    );
    row("read the description of its structures", open);
    row(&format!("name {} frames, each of another method", chosen.len()), named);
    row("jjleak -p: from its start until it counts", middle(attach));
    row("jjleak -p: from Ctrl-C until it has ended", middle(detach));
    Ok(())
}

fn row(what: &str, time: Duration) {
    println!("{what:<48}  {:>9.2}", time.as_secs_f64() * 1000.0);
}

fn median(mut what: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut timings = Vec::new();
    for _ in 0..TURNS {
        let begun = Instant::now();
        what()?;
        timings.push(begun.elapsed());
    }
    Ok(middle(timings))
}

fn middle(mut timings: Vec<Duration>) -> Duration {
    timings.sort();
    timings.get(timings.len() / 2).copied().unwrap_or_default()
}

/// All code that there is.
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

/// Runs jjleak on a process for a moment: how long it takes to attach, and to end.
fn session(pid: u32) -> Result<(Duration, Duration)> {
    let begun = Instant::now();
    let mut jjleak = Command::new(env!("CARGO_BIN_EXE_jjleak"))
        .args(["-p", &pid.to_string(), "3600"])
        // It leaves a flame graph.
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let stderr = BufReader::new(jjleak.stderr.take().ok_or("no stderr")?);
    let mut lines = stderr.lines();
    while !lines.next().ok_or("jjleak did not attach")??.contains("attached to") {}
    let attached = begun.elapsed();
    let begun = Instant::now();
    Command::new("kill").args(["-INT", &jjleak.id().to_string()]).status()?;
    // What it still says is read, so that it does not wait for a reader.
    lines.for_each(drop);
    jjleak.wait()?;
    Ok((attached, begun.elapsed()))
}
