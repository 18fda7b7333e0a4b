//! The JSON report: one document on one line, so that several reports are JSON lines.
//!
//! A contract with other programs, numbered by [`SCHEMA`]: fields may be added, never changed or taken away.

mod cost;
mod verdicts;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use cost::CostDocument;
pub use verdicts::{MemoryDocument, RateDocument, SurvivalDocument, ThreadShareDocument, VerdictDocument};

use super::{Options, TOOL};
use crate::analyze::SortBy;
use crate::profile::{Block, Frame, FrameKind, ProcessInfo, Profile, Sampling, StackProfile, Thread, Totals};

/// Number of the contract.
pub const SCHEMA: u32 = 1;

/// One report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `jjleak` and its version.
    pub tool: String,
    /// The instant the report describes, RFC 3339 in UTC.
    pub time: String,
    /// Seconds since accounting began.
    pub elapsed_s: f64,
    /// Whose report it is.
    pub process: ProcessDocument,
    /// How the process ended, for a command its exit status; null while it runs.
    pub ended: Option<String>,
    /// What lives, over all stacks.
    pub live: TotalsDocument,
    /// What was allocated since accounting began, over all stacks.
    pub allocated: TotalsDocument,
    /// Live figures are of blocks at least this old, in milliseconds; absent when they are of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_ms: Option<u64>,
    /// How allocations were chosen; absent when all were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingDocument>,
    /// In how many windows of time allocations were counted, if not all the time: the figures are estimates then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<u32>,
    /// Standard errors of `live`; absent when it is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_error: Option<TotalsDocument>,
    /// Threads are told apart: each stack has its thread; absent when they are not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub threads: bool,
    /// What of the profile is shown, when that is not everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// Every loss counter, also those that are 0.
    pub lost: BTreeMap<String, u64>,
    /// Every other counter: harmless, but part of the picture.
    pub notes: BTreeMap<String, u64>,
    /// Frees of blocks that are not in the books.
    pub unknown_frees: u64,
    /// Paths of files that lack the information by which stacks are followed, on live stacks; absent when there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_unwind_information: Vec<String>,
    /// Allocations younger than this are not judged, in seconds.
    #[serde(default)]
    pub settle_s: f64,
    /// How much memory the process can have; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryDocument>,
    /// What is to be thought of each call site that holds something or has done so, what is worst first.
    #[serde(default)]
    pub verdicts: Vec<VerdictDocument>,
    /// How many looks at the process verdicts are drawn from.
    #[serde(default)]
    pub looks: u32,
    /// Call sites that hold something and have no verdict, for there are more than are remembered.
    #[serde(default)]
    pub unjudged_sites: u64,
    /// What being profiled has cost the process since the report before, an estimate; absent when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostDocument>,
    /// Every stack that allocated, also those of which nothing lives, in the order asked for.
    pub stacks: Vec<StackDocument>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessDocument {
    /// Process ID in the host's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Name of the main thread.
    pub comm: String,
    /// Path of the executable.
    pub exe: String,
    /// `native` or `jvm`.
    pub kind: String,
    /// The process whose memory its own began as a copy of (`fork`), until it runs another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<u32>,
    /// Its PID as it sees it itself, in a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_pid: Option<u32>,
}

/// How allocations were chosen when not all were taken. All figures are then estimates of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingDocument {
    /// One of so many.
    Rate(u32),
    /// One in so many bytes.
    Bytes(u64),
}

/// Bytes and objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalsDocument {
    /// Requested bytes.
    pub bytes: u64,
    /// Blocks.
    pub objects: u64,
}

/// What one stack allocated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackDocument {
    /// Identity of the stack: 16 hexadecimal digits.
    pub id: String,
    /// What lives.
    pub live: TotalsDocument,
    /// What was allocated since accounting began.
    pub allocated: TotalsDocument,
    /// Standard errors of `live`; absent when it is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_error: Option<TotalsDocument>,
    /// Live bytes more than at the report before, or less.
    #[serde(default)]
    pub growth_bytes: i64,
    /// The largest live blocks, when they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<Vec<AllocationDocument>>,
    /// Age of the oldest live block in milliseconds; 0 when none lives.
    pub oldest_ms: u64,
    /// Age of the newest live block in milliseconds; 0 when none lives.
    pub newest_ms: u64,
    /// How the stack walk ended: a name of [`jjleak_common::stack::StackStatus`].
    pub status: String,
    /// The thread that allocated; absent when threads are not told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadDocument>,
    /// Frames, leaf first; the first is the allocation function.
    pub frames: Vec<FrameDocument>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadDocument {
    /// Its number (TID).
    pub id: u32,
    /// Its name, the last that is known of it.
    pub name: String,
    /// Which of the process's threads with this number it is; absent for the first.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub nth: u32,
}

const fn first() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_first(nth: &u32) -> bool {
    *nth <= 1
}

/// A live block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationDocument {
    /// Where it is: `0x` and hexadecimal digits.
    pub address: String,
    /// Requested bytes.
    pub size: u64,
    /// Age in milliseconds.
    pub age_ms: u64,
}

/// One frame; what is unknown is empty or 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameDocument {
    /// Address in the process: `0x` and hexadecimal digits.
    pub address: String,
    /// Demangled function name.
    pub symbol: String,
    /// Path of the mapped file.
    pub module: String,
    /// Build ID of the mapped file, hexadecimal.
    pub build_id: String,
    /// Source file.
    pub file: String,
    /// Source line.
    pub line: u32,
    /// A name of [`crate::profile::FrameKind`].
    pub kind: String,
    /// Inlined into the next frame.
    pub inlined: bool,
    /// A frame pointer led here, which is no proof; absent when it was call frame information.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_frame_pointer: bool,
    /// Not on the stack: the function has ended with a jump to the one in front of it; absent when it is on the stack.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tail_call: bool,
}

impl Document {
    /// The report on a profile, with its stacks in this order.
    #[must_use]
    pub fn new(profile: &Profile, order: SortBy) -> Self {
        Self {
            schema: SCHEMA,
            tool: TOOL.to_owned(),
            time: profile.taken_at.to_string(),
            elapsed_s: profile.elapsed().as_secs_f64(),
            process: (&profile.process).into(),
            ended: profile.ended.clone(),
            live: profile.live().into(),
            allocated: profile.allocated().into(),
            older_ms: (!profile.coverage.older.is_zero()).then(|| milliseconds(profile.coverage.older)),
            sampling: match profile.coverage.sampling {
                Sampling::Rate(rate @ 2..) => Some(SamplingDocument::Rate(rate)),
                Sampling::Bytes(bytes) => Some(SamplingDocument::Bytes(bytes)),
                Sampling::Off | Sampling::Rate(_) => None,
            },
            windows: profile.coverage.windows.map(|windows| windows.windows),
            live_error: profile.live_error().map(Into::into),
            threads: profile.coverage.threads,
            shown: None,
            lost: profile.lost.clone(),
            notes: profile.notes.clone(),
            unknown_frees: profile.unknown_frees,
            without_unwind_information: profile
                .without_unwind_information()
                .into_keys()
                .filter(|file| !file.is_empty())
                .map(str::to_owned)
                .collect(),
            settle_s: profile.coverage.settle.as_secs_f64(),
            memory: profile.memory.map(Into::into),
            verdicts: verdicts::documents(profile),
            looks: profile.snapshots,
            unjudged_sites: profile.unjudged_sites,
            cost: profile.cost.map(Into::into),
            stacks: order
                .order(profile)
                .into_iter()
                .map(|stack| StackDocument::new(stack, profile.coverage.blocks_per_stack > 0))
                .collect(),
        }
    }
}

impl From<&ProcessInfo> for ProcessDocument {
    fn from(process: &ProcessInfo) -> Self {
        Self {
            pid: process.pid,
            start_time: process.start_time,
            comm: process.comm.clone(),
            exe: process.exe.clone(),
            kind: process.kind.name().to_owned(),
            forked_from: process.forked_from,
            container_pid: process.container_pid,
        }
    }
}

impl From<Thread> for ThreadDocument {
    fn from(Thread { number, name, nth }: Thread) -> Self {
        Self { id: number, name, nth }
    }
}

impl From<Totals> for TotalsDocument {
    fn from(Totals { bytes, objects }: Totals) -> Self {
        Self { bytes, objects }
    }
}

impl StackDocument {
    fn new(stack: &StackProfile, with_blocks: bool) -> Self {
        Self {
            id: format!("{:016x}", stack.id),
            live: stack.live.into(),
            allocated: stack.allocated.into(),
            live_error: stack.live_error.map(Into::into),
            growth_bytes: stack.growth,
            allocations: with_blocks.then(|| stack.blocks.iter().map(Into::into).collect()),
            oldest_ms: stack.ages.map_or(0, |ages| milliseconds(ages.oldest)),
            newest_ms: stack.ages.map_or(0, |ages| milliseconds(ages.newest)),
            status: stack.status.name().to_owned(),
            thread: stack.thread().map(Into::into),
            frames: code(&stack.frames).map(Into::into).collect(),
        }
    }
}

/// Frames but for the one that stands for the thread.
fn code(frames: &[Frame]) -> impl Iterator<Item = &Frame> {
    frames.iter().filter(|frame| frame.kind != FrameKind::Thread)
}

impl From<&Block> for AllocationDocument {
    fn from(&Block { address, size, age }: &Block) -> Self {
        Self { address: format!("{address:#x}"), size, age_ms: milliseconds(age) }
    }
}

impl From<&Frame> for FrameDocument {
    fn from(frame: &Frame) -> Self {
        Self {
            address: format!("{:#x}", frame.address),
            symbol: frame.symbol.clone(),
            module: frame.module.clone(),
            build_id: frame.build_id.clone(),
            file: frame.file.clone(),
            line: frame.line,
            kind: frame.kind.name().to_owned(),
            inlined: frame.inlined,
            by_frame_pointer: frame.by_frame_pointer,
            tail_call: frame.tail_call,
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Writes the document and a line feed.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let mut document = Document::new(profile, options.selection.sort);
    document.shown = (!options.view.is_empty()).then(|| options.view.clone());
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Coverage;
    use crate::render::sample;

    fn json(profile: &Profile) -> String {
        let mut out = Vec::new();
        write(profile, &sample::options(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sample_profile() {
        let document = Document::new(&sample::profile(), SortBy::Size);
        let pretty = serde_json::to_string_pretty(&document).unwrap();
        insta::assert_snapshot!(pretty.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
    }

    #[test]
    fn verdicts_are_there_with_their_figures_and_read_back() {
        let document: Document = serde_json::from_str(&json(&sample::judged())).unwrap();
        let kinds: Vec<_> = document.verdicts.iter().map(|verdict| verdict.kind.as_str()).collect();
        assert_eq!(kinds, ["leaking", "growing", "cache_like", "start_up", "steady_churn"]);
        assert_eq!(document.memory.unwrap().kind, "cgroup");
        let pretty = serde_json::to_string_pretty(&document.verdicts[2]).unwrap();
        insta::assert_snapshot!(pretty);
    }

    #[test]
    fn what_was_asked_for_beyond_the_figures_is_there_and_reads_back() {
        let mut profile = sample::profile();
        profile.coverage = Coverage {
            older: Duration::from_millis(500),
            sampling: Sampling::Bytes(4096),
            windows: None,
            combined: false,
            blocks_per_stack: 10,
            settle: Duration::from_secs(15),
            some_sizes: false,
            threads: false,
        };
        profile.stacks[0].live_error = Some(Totals { bytes: 30, objects: 4 });
        profile.stacks[0].blocks = vec![Block { address: 0x5000, size: 64, age: Duration::from_millis(700) }];
        let document: Document = serde_json::from_str(&json(&profile)).unwrap();
        assert_eq!((document.older_ms, document.sampling), (Some(500), Some(SamplingDocument::Bytes(4096))));
        assert_eq!(document.live_error, Some(TotalsDocument { bytes: 30, objects: 4 }));
        let stack = document.stacks.iter().find(|stack| stack.live_error.is_some()).unwrap();
        let block = AllocationDocument { address: "0x5000".to_owned(), size: 64, age_ms: 700 };
        assert_eq!(stack.allocations, Some(vec![block]));
    }

    #[test]
    fn a_document_is_one_line_and_reads_back_as_it_was() {
        let json = json(&sample::profile());
        assert_eq!(json.lines().count(), 1);
        let document: Document = serde_json::from_str(&json).unwrap();
        assert_eq!(document, Document::new(&sample::profile(), SortBy::Size));
    }
}
