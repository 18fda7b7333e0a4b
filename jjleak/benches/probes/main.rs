//! What jjleak costs per malloc+free pair, against bare probes at the same sites, and per stack, against the kernel's own
//! walk, in one run; and how long it takes to turn a file's call frame information into rows.
//!
//! The same process is timed untraced and with each kind of programs, in turns; figures are medians over all turns. `cargo
//! xtask bench` runs it.

#![expect(clippy::print_stdout, reason = "prints its table")]

mod program;

use std::error::Error;
use std::fs;
use std::time::Instant;

use jjleak::allocators::CallFollowing;
use jjleak::attach::{self, Attachment, Programs};
use jjleak::collect::{Collector, View};
use jjleak::unwind;
use program::{Mode, Program, Timings, compile};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Frames on the stack at malloc, itself included: the depths of the budgets.
const FRAMES: [u32; 3] = [8, 27, 67];
/// Those of the budgets of stacks.
const STACK_FRAMES: [u32; 3] = [8, 23, 63];
/// Frames that are there without any recursion: malloc, the loop, the last recursion, main and the three that call it.
const OTHER_FRAMES: u32 = 7;
/// Turns of untraced, bare, jjleak.
const TURNS: usize = 3;
/// Timings a turn.
const TIMINGS: usize = 7;
/// Pairs a timing: some 50 ms with probes, long against the clock and short against other load.
const PAIRS: u32 = 20_000;
/// Beyond this spread between the quartiles the machine is too noisy to compare.
const NOISY_PERCENT: f64 = 10.0;

/// Files whose rows are compiled, where they are installed.
const FILES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
    "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
    "/usr/lib/x86_64-linux-gnu/libLLVM-14.so.1",
];

fn main() -> Result<()> {
    attach::preflight()?;
    let mut program = Program::start(&compile()?)?;
    println!("malloc and free by one probe each, where malloc's code allows it");
    pairs(&mut program, CallFollowing::Inside)?;
    println!("malloc by probes at entry and return");
    pairs(&mut program, CallFollowing::EntryAndReturn)?;
    stacks(&mut program)?;
    rows()
}

fn pairs(program: &mut Program, following: CallFollowing) -> Result<()> {
    println!("ns per malloc+free pair; ratio to bare probes at the same sites; spread between quartiles");
    println!(
        "{:>6}  {:>9}  {:>9}  {:>9}  {:>7}  {:>7}",
        "frames", "untraced", "bare", "jjleak", "ratio", "spread"
    );
    for frames in FRAMES {
        let [bare, jjleak] =
            [Programs::Bare, Programs::Accounting].map(|programs| Mode { programs, following });
        let modes = [None, Some(bare), Some(jjleak)];
        let [untraced, bare, jjleak] = measure(program, frames - OTHER_FRAMES, modes)?;
        let spread = bare.spread().max(jjleak.spread());
        println!(
            "{frames:>6}  {:>9.1}  {:>9.0}  {:>9.0}  {:>7.2}  {spread:>5.1} %",
            untraced.median(),
            bare.median(),
            jjleak.median(),
            jjleak.median() / bare.median(),
        );
        warn_of_noise(spread);
    }
    Ok(())
}

/// The program has frame pointers, by which the kernel walks.
fn stacks(program: &mut Program) -> Result<()> {
    println!("ns per stack, beyond bare probes: by bpf_get_stack and by jjleak");
    println!("{:>6}  {:>9}  {:>9}  {:>7}  {:>7}", "frames", "kernel", "jjleak", "ratio", "spread");
    for frames in STACK_FRAMES {
        let modes = [Programs::Bare, Programs::KernelStacks, Programs::Stacks];
        // The kernel walks by frame pointers, which malloc's own code does not keep.
        let modes = modes.map(|programs| Some(Mode { programs, following: CallFollowing::EntryAndReturn }));
        let [bare, kernel, jjleak] = measure(program, frames - OTHER_FRAMES, modes)?;
        let spread = bare.spread().max(kernel.spread()).max(jjleak.spread());
        let [kernel, jjleak] = [kernel, jjleak].map(|timings| timings.median() - bare.median());
        println!("{frames:>6}  {kernel:>9.0}  {jjleak:>9.0}  {:>7.2}  {spread:>5.1} %", jjleak / kernel);
        warn_of_noise(spread);
    }
    Ok(())
}

/// How long the compiler of rows takes, without reading the file.
fn rows() -> Result<()> {
    println!("ms to compile a file's rows");
    println!("{:>9}  {:>9}  file", "rows", "ms");
    for path in FILES {
        let Ok(elf) = fs::read(path) else { continue };
        let mut timings = Timings::default();
        let mut count = 0;
        for _ in 0..TIMINGS {
            let begin = Instant::now();
            count = unwind::compile(&*elf)?.rows().len();
            timings.0.push(begin.elapsed().as_secs_f64() * 1000.0);
        }
        println!("{count:>9}  {:>9.1}  {path}", timings.median());
    }
    Ok(())
}

fn warn_of_noise(spread: f64) {
    if spread > NOISY_PERCENT {
        println!("        the machine is noisy: repeat this when it is quiet");
    }
}

fn measure(program: &mut Program, depth: u32, modes: [Option<Mode>; 3]) -> Result<[Timings; 3]> {
    let mut all: [Timings; 3] = Default::default();
    for _ in 0..TURNS {
        for (mode, timings) in modes.iter().zip(&mut all) {
            let attachment = mode.map(|mode| program.attach(mode)).transpose()?;
            for _ in 0..TIMINGS {
                timings.0.push(program.time(depth)?);
            }
            let programs = mode.map(|mode| mode.programs);
            if let (Some(attachment), Some(Programs::Accounting)) = (attachment, programs) {
                check_stacks(attachment, depth)?;
            }
        }
    }
    Ok(all)
}

/// A figure is only worth something if the stacks are whole.
fn check_stacks(mut attachment: Attachment, depth: u32) -> Result<()> {
    let mut collector = Collector::new(&mut attachment)?;
    let images: Vec<_> = attachment.processes().iter().map(|tracked| tracked.image).collect();
    let snapshots = collector.snapshots(&attachment, &images, View::default())?;
    let rows = snapshots.values().flat_map(|snapshot| snapshot.stacks.keys());
    let deepest = rows.filter_map(|row| collector.stack(*row)).max_by_key(|stack| stack.frames.len());
    match deepest {
        Some(stack) if stack.frames.len() > depth as usize => Ok(()),
        other => Err(format!("stacks are not whole: {other:?}").into()),
    }
}
