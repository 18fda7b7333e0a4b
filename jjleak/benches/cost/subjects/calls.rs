//! A program that calls the allocator, and does little else.

use std::process::Command;

use super::{Environment, Talker, compile};
use crate::Result;

/// Frames without any recursion: the allocator's function, the loop, its caller, the last recursion, `main` and its three
/// callers.
pub(crate) const OTHER_FRAMES: u32 = 8;

/// A workload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Micro {
    /// Name of its column.
    pub(crate) name: &'static str,
    kind: &'static str,
    /// Depth of the stack, including the allocator's function.
    frames: u32,
    size: u32,
    threads: u32,
    /// Maximum cost relative to bare probes.
    pub(crate) budget: Option<f64>,
}

const PAIR: Micro = Micro { name: "", kind: "pairs", frames: 8, size: 64, threads: 1, budget: None };

/// Variations of frames, paths, sizes, threads and functions.
pub(crate) const MICRO: [Micro; 10] = [
    Micro { name: "8 frames", budget: Some(1.2), ..PAIR },
    Micro { name: "27 frames", frames: 27, budget: Some(1.25), ..PAIR },
    Micro { name: "67 frames", frames: 67, ..PAIR },
    Micro { name: "27 frames, 64 paths", kind: "paths", budget: Some(1.35), ..PAIR },
    Micro { name: "16 bytes", size: 16, ..PAIR },
    Micro { name: "4,000 bytes", size: 4_000, ..PAIR },
    Micro { name: "100,000 bytes", size: 100_000, ..PAIR },
    Micro { name: "2 threads", threads: 2, ..PAIR },
    Micro { name: "calloc", kind: "calloc", ..PAIR },
    Micro { name: "realloc", kind: "realloc", ..PAIR },
];

impl Micro {
    /// Pairs with this many frames.
    pub(crate) const fn of_frames(frames: u32) -> Self {
        Self { frames, ..PAIR }
    }
}

/// The running program.
pub(crate) struct Calls(Talker);

/// CPU time of a paced run, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paced {
    pub(crate) used_s: f64,
    /// Part of it that was spent in calls.
    pub(crate) in_calls_s: f64,
}

impl Calls {
    pub(crate) fn start(environment: &Environment) -> Result<Self> {
        Talker::start(&mut Command::new(compile("calls")?), environment).map(Self)
    }

    /// Nanoseconds per round: mean of `rounds`.
    pub(crate) fn time(&mut self, micro: Micro, rounds: usize) -> Result<f64> {
        let Micro { kind, frames, size, threads, .. } = micro;
        self.0.ask(&format!("{kind} {} {rounds} {size} {threads}", frames - OTHER_FRAMES))
    }

    /// Makes it allocate this many blocks from this many stacks, and keep them.
    pub(crate) fn hold(&mut self, blocks: u32, stacks: u32) -> Result<()> {
        self.0.ask(&format!("hold {blocks} {stacks}")).map(drop)
    }

    /// Makes it allocate and free at a steady pace for this time.
    pub(crate) fn pace(&mut self, milliseconds: usize) -> Result<Paced> {
        let [used_ns, in_calls_ns] = self.0.ask_for(&format!("pace {milliseconds}"))?;
        Ok(Paced { used_s: used_ns / 1e9, in_calls_s: in_calls_ns / 1e9 })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}
