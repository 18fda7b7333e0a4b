//! The JSON report: one document per line, so that several reports are JSON lines.
//!
//! A contract with other programs, numbered by [`SCHEMA`]: fields may be added, never changed or removed.

mod cost;
mod stacks;
mod verdicts;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use cost::CostDocument;
pub use stacks::{Stack, Stacks};
pub use verdicts::{MemoryDocument, RateDocument, SurvivalDocument, ThreadShareDocument, VerdictDocument};

use super::{Options, TOOL};
use crate::analyze::SortBy;
use crate::profile::{
    Block, Frame, FrameKind, ProcessInfo, Profile, Sampling, SharedFrame, StackProfile, Thread, Totals,
};

/// Number of the contract.
pub const SCHEMA: u32 = 2;

/// One report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `jjleak` and its version.
    pub tool: String,
    /// Time of the report, RFC 3339 in UTC.
    pub time: String,
    /// Seconds since accounting began.
    pub elapsed_s: f64,
    /// The process.
    pub process: ProcessDocument,
    /// End of the process, with the exit status of a command; null while it runs.
    pub ended: Option<String>,
    /// Live memory of all stacks.
    pub live: TotalsDocument,
    /// Memory allocated since accounting began, of all stacks.
    pub allocated: TotalsDocument,
    /// Minimum age of live blocks in the figures, in milliseconds; absent if all blocks are included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_ms: Option<u64>,
    /// Sampling of allocations; absent if all were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingDocument>,
    /// Number of time windows in which allocations were counted; absent if they were counted all the time. The figures are
    /// estimates if present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<u32>,
    /// Standard errors of `live`; absent if it is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_error: Option<TotalsDocument>,
    /// True if each stack has its thread; absent if threads are not distinguished.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub threads: bool,
    /// The shown part of the profile; absent if everything is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// All loss counters, including those that are 0.
    pub lost: BTreeMap<String, u64>,
    /// All other counters: harmless, but useful to interpret the figures.
    pub notes: BTreeMap<String, u64>,
    /// Frees of unknown blocks.
    pub unknown_frees: u64,
    /// Paths of files on live stacks that lack unwind information; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_unwind_information: Vec<String>,
    /// Minimum age of allocations for verdicts, in seconds.
    #[serde(default)]
    pub settle_s: f64,
    /// Memory limit of the process; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryDocument>,
    /// Verdicts on call sites with current or former live memory, worst first.
    #[serde(default)]
    pub verdicts: Vec<VerdictDocument>,
    /// Number of snapshots that the verdicts are based on.
    #[serde(default)]
    pub looks: u32,
    /// Number of call sites with live memory but without a verdict, because there are more than are tracked.
    #[serde(default)]
    pub unjudged_sites: u64,
    /// Cost of profiling to the process since the previous report, an estimate; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostDocument>,
    /// All stacks with allocations, including those without live memory, in the requested order; before them, the distinct
    /// frames.
    #[serde(flatten)]
    pub stacks: Stacks<StackDocument>,
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
    /// The process that it was forked from, until it runs another program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<u32>,
    /// PID in its container's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_pid: Option<u32>,
}

/// Sampling of allocations. All figures are then estimates for all allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingDocument {
    /// One allocation in this number.
    Rate(u32),
    /// One allocation in this number of bytes.
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

/// Allocations of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackDocument<F = Arc<FrameDocument>> {
    /// Identity of the stack: 16 hexadecimal digits.
    pub id: String,
    /// Live memory.
    pub live: TotalsDocument,
    /// Memory allocated since accounting began.
    pub allocated: TotalsDocument,
    /// Standard errors of `live`; absent if it is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_error: Option<TotalsDocument>,
    /// Change of live bytes since the previous report.
    #[serde(default)]
    pub growth_bytes: i64,
    /// The largest live blocks, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<Vec<AllocationDocument>>,
    /// Age of the oldest live block in milliseconds; 0 if there is none.
    pub oldest_ms: u64,
    /// Age of the newest live block in milliseconds; 0 if there is none.
    pub newest_ms: u64,
    /// End of the stack walk: a name of [`jjleak_common::stack::StackStatus`].
    pub status: String,
    /// The allocating thread; absent if threads are not distinguished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadDocument>,
    /// Frames, leaf first, in JSON as indices of the document's `frames`; the first is the allocation function.
    pub frames: Vec<F>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadDocument {
    /// Thread ID (TID).
    pub id: u32,
    /// Last known name.
    pub name: String,
    /// Position among the process's successive threads with this ID; absent for the first.
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
    /// Address: `0x` and hexadecimal digits.
    pub address: String,
    /// Requested bytes.
    pub size: u64,
    /// Age in milliseconds.
    pub age_ms: u64,
}

/// A frame; unknown fields are empty or 0.
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
    /// True if inlined into the next frame.
    pub inlined: bool,
    /// True if found by a frame pointer, which is no proof; absent if found by call frame information.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_frame_pointer: bool,
    /// True if not on the stack: the function ended with a tail call of the previous frame's function; absent if it is on the
    /// stack.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tail_call: bool,
}

impl Document {
    /// The report of a profile, with its stacks in this order.
    #[must_use]
    pub fn new(profile: &Profile, order: SortBy) -> Self {
        let with_blocks = profile.coverage.blocks_per_stack > 0;
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
            stacks: Stacks::new(order.order(profile), |stack, frame| {
                StackDocument::new(stack, with_blocks, code(&stack.frames).map(frame).collect())
            }),
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
    fn new(stack: &StackProfile, with_blocks: bool, frames: Vec<Arc<FrameDocument>>) -> Self {
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
            frames,
        }
    }
}

impl<F> StackDocument<F> {
    fn with_frames<G>(self, frames: Vec<G>) -> StackDocument<G> {
        let Self { id, live, allocated, live_error, growth_bytes, .. } = self;
        let Self { allocations, oldest_ms, newest_ms, status, thread, .. } = self;
        StackDocument {
            id,
            live,
            allocated,
            live_error,
            growth_bytes,
            allocations,
            oldest_ms,
            newest_ms,
            status,
            thread,
            frames,
        }
    }
}

impl Stack for StackDocument {
    type Indexed = StackDocument<u32>;

    fn frames(&self) -> &[Arc<FrameDocument>] {
        &self.frames
    }

    fn indexed(&self, frames: Vec<u32>) -> StackDocument<u32> {
        self.clone().with_frames(frames)
    }

    fn resolved<E>(
        mut indexed: StackDocument<u32>,
        frame: impl FnMut(u32) -> Result<Arc<FrameDocument>, E>,
    ) -> Result<Self, E> {
        let frames = mem::take(&mut indexed.frames).into_iter().map(frame).collect::<Result<_, _>>()?;
        Ok(indexed.with_frames(frames))
    }
}

/// All frames but the one that represents the thread.
fn code(frames: &[SharedFrame]) -> impl Iterator<Item = &SharedFrame> {
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
