//! A program that calls the allocator, and does little else.

use std::process::Command;

use super::{Environment, Talker, compile};
use crate::Result;

/// Frames that are there without any recursion: the allocator's function, the loop, what chooses it, the last
/// recursion, main and the three that call it.
pub(crate) const OTHER_FRAMES: u32 = 8;

/// What it is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Micro {
    /// For a column.
    pub(crate) name: &'static str,
    kind: &'static str,
    /// On the stack, the allocator's function included.
    frames: u32,
    size: u32,
    threads: u32,
    /// What it may cost beside bare probes.
    pub(crate) budget: Option<f64>,
}

const PAIR: Micro = Micro { name: "", kind: "pairs", frames: 8, size: 64, threads: 1, budget: None };

/// Frames, sizes, threads and functions.
pub(crate) const MICRO: [Micro; 10] = [
    Micro { name: "8 frames", budget: Some(1.15), ..PAIR },
    Micro { name: "27 frames", frames: 27, budget: Some(1.35), ..PAIR },
    Micro { name: "67 frames", frames: 67, ..PAIR },
    Micro { name: "27 frames, 64 paths", kind: "paths", ..PAIR },
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

/// The program.
pub(crate) struct Calls(Talker);

/// What it has taken, in seconds of a core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paced {
    pub(crate) used_s: f64,
    /// Of that, from before calls to after them.
    pub(crate) in_calls_s: f64,
}

impl Calls {
    pub(crate) fn start(environment: &Environment) -> Result<Self> {
        Talker::start(&mut Command::new(compile("calls")?), environment).map(Self)
    }

    /// Nanoseconds of a round of so many.
    pub(crate) fn time(&mut self, micro: Micro, rounds: usize) -> Result<f64> {
        let Micro { kind, frames, size, threads, .. } = micro;
        self.0.ask(&format!("{kind} {} {rounds} {size} {threads}", frames - OTHER_FRAMES))
    }

    /// Has it allocate so many blocks from so many stacks, and keep them.
    pub(crate) fn hold(&mut self, blocks: u32, stacks: u32) -> Result<()> {
        self.0.ask(&format!("hold {blocks} {stacks}")).map(drop)
    }

    /// Has it allocate and free at a steady pace for so many milliseconds.
    pub(crate) fn pace(&mut self, milliseconds: usize) -> Result<Paced> {
        let [used_ns, in_calls_ns] = self.0.ask_for(&format!("pace {milliseconds}"))?;
        Ok(Paced { used_s: used_ns / 1e9, in_calls_s: in_calls_ns / 1e9 })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}
