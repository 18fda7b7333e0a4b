//! The compared part of jjleak's JSON. The rest is skipped, because documents can be hundreds of megabytes large.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::path::Path;

use serde::Deserialize;

/// Objects and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Amount {
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

#[derive(Deserialize)]
struct Document {
    process: Process,
    ended: Option<String>,
    live: Amount,
    allocated: Amount,
    lost: BTreeMap<String, u64>,
    frames: Vec<Frame>,
    stacks: Vec<Stack>,
}

#[derive(Deserialize)]
struct Process {
    pid: u32,
    comm: String,
}

#[derive(Deserialize)]
struct Stack {
    allocated: Amount,
    live: Amount,
    status: String,
    /// Indices of the document's frames.
    frames: Vec<usize>,
}

#[derive(Deserialize)]
struct Frame {
    symbol: String,
    module: String,
    #[serde(default)]
    by_frame_pointer: bool,
}

/// jjleak's figures for one process.
#[derive(Debug, Clone, Default)]
pub(super) struct Profile {
    pub(super) comm: String,
    pub(super) ended: String,
    pub(super) allocated: Amount,
    pub(super) live: Amount,
    /// Allocated and live amounts by the file of the allocation function.
    pub(super) by_allocator: BTreeMap<String, (Amount, Amount)>,
    pub(super) lost: BTreeMap<String, u64>,
    pub(super) stacks: Stacks,
}

/// Allocations by the way in which their stacks end.
#[derive(Debug, Clone, Default)]
pub(super) struct Stacks {
    pub(super) complete: u64,
    /// Stacks through code that a runtime has generated, which has no call frame information.
    pub(super) generated: u64,
    /// All others, by status.
    pub(super) others: BTreeMap<String, u64>,
}

impl Stacks {
    pub(super) fn add(&mut self, other: &Self) {
        self.complete += other.complete;
        self.generated += other.generated;
        for (status, objects) in &other.others {
            *self.others.entry(status.clone()).or_default() += objects;
        }
    }

    /// Share of complete stacks among those that do not pass through generated code, in millionths, rounded down.
    pub(super) fn complete_millionths(&self) -> u64 {
        let judged = self.complete + self.others.values().sum::<u64>();
        (self.complete * 1_000_000).checked_div(judged).unwrap_or(1_000_000)
    }

    fn note(&mut self, stack: &Stack, frames: &[Frame]) {
        let objects = stack.allocated.objects;
        if stack.status == "complete" {
            self.complete += objects;
        } else if stack.status == "generated_code" || stack.is_through_generated_code(frames) {
            self.generated += objects;
        } else {
            *self.others.entry(stack.status.clone()).or_default() += objects;
        }
    }
}

impl Stack {
    /// Returns true if the first frame without call frame information is in no named file on disk, or is one of the functions
    /// that V8 generates when node is built. The rest of the stack is unknown.
    fn is_through_generated_code(&self, frames: &[Frame]) -> bool {
        let is_generated = |frame: &Frame| {
            frame.module.is_empty()
                || frame.module.starts_with("/memfd:")
                || frame.symbol.starts_with("Builtins_")
        };
        let next = self.frames.iter().position(|index| frames[*index].by_frame_pointer);
        let last =
            next.map_or(self.frames.last(), |next| next.checked_sub(1).and_then(|at| self.frames.get(at)));
        last.is_some_and(|index| is_generated(&frames[*index]))
    }
}

/// The last profile of each process in a file of reports.
pub(super) fn read(path: &Path) -> BTreeMap<u32, Profile> {
    let file = File::open(path).unwrap_or_else(|error| panic!("jjleak wrote no report: {error}"));
    let lines = BufReader::new(file).lines();
    lines.map(|line| of(serde_json::from_str(&line.unwrap()).unwrap())).collect()
}

fn of(document: Document) -> (u32, Profile) {
    let mut profile = Profile {
        comm: document.process.comm,
        ended: document.ended.unwrap_or_default(),
        allocated: document.allocated,
        live: document.live,
        lost: document.lost,
        ..Profile::default()
    };
    profile.lost.retain(|_, count| *count > 0);
    for stack in &document.stacks {
        profile.stacks.note(stack, &document.frames);
        let module =
            stack.frames.first().map(|index| document.frames[*index].module.as_str()).unwrap_or_default();
        let name = module.rsplit('/').next().unwrap_or_default();
        let (allocated, live) = profile.by_allocator.entry(name.to_owned()).or_default();
        *allocated += stack.allocated;
        *live += stack.live;
    }
    (document.process.pid, profile)
}
