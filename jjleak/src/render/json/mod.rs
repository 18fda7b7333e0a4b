//! The JSON report: one document per line, so that several reports are JSON lines.
//!
//! A contract with other programs, numbered by [`SCHEMA`]: fields may be added, never changed or removed.

mod cost;
mod findings;
mod stack;
mod stacks;
mod verdicts;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

pub use cost::CostDocument;
pub use findings::FindingDocument;
pub use stack::{AllocationDocument, FrameDocument, StackDocument, ThreadDocument};
pub(in crate::render) use stacks::Each;
pub use stacks::{Stacks, Tables};
pub use verdicts::{MemoryDocument, RateDocument, SurvivalDocument, ThreadShareDocument, VerdictDocument};

use super::{Options, TOOL};
use crate::profile::{FrameNumbers, KeptClass, ProcessInfo, Profile, Sampling, Totals};

/// Number of the contract.
pub const SCHEMA: u32 = 2;

/// One report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document<S = Stacks> {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `jjleak` and its version.
    pub tool: String,
    /// Source of stacks and figures: `malloc`, `growth`, `java_heap` or `file`; absent in reports of earlier versions.
    #[serde(default)]
    pub source: String,
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
    /// True if frees were missed, or nothing has been counted yet: live memory is unknown, and the live figures are what was allocated. Absent if it is known.
    #[serde(default, skip_serializing_if = "verdicts::is_false")]
    pub live_unknown: bool,
    /// Standard errors of `live`; absent if it is exact or unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_error: Option<TotalsDocument>,
    /// Standard errors of `allocated`, with `windows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_error: Option<TotalsDocument>,
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
    /// Resident memory of the process; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    /// Memory limit of the process; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryDocument>,
    /// Verdicts on call sites with current or former live memory, worst first.
    #[serde(default)]
    pub verdicts: Vec<VerdictDocument>,
    /// Causes of growth, worst first; absent in reports of earlier versions.
    #[serde(default)]
    pub findings: Vec<FindingDocument>,
    /// Number of snapshots that the verdicts are based on.
    #[serde(default)]
    pub looks: u32,
    /// Number of call sites with live memory but without a verdict, because there are more than are tracked.
    #[serde(default)]
    pub unjudged_sites: u64,
    /// Cost of profiling to the process since the previous report, an estimate; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostDocument>,
    /// Objects that a JVM keeps, by class, those that have grown most first; absent unless it was asked (`--histogram`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptDocument>,
    /// All stacks with allocations, including those without live memory, in the requested order; before them, the distinct
    /// frames.
    #[serde(flatten)]
    pub stacks: S,
}

/// Objects of a class that a JVM keeps after a collection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptDocument {
    /// Name in source notation.
    pub class: String,
    /// Objects now.
    pub live: TotalsDocument,
    /// Change of bytes since the beginning.
    pub grown_bytes: i64,
    /// Change of the number of objects since the beginning.
    pub grown_objects: i64,
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
    /// Those that the program draws itself.
    Announced,
}

/// Bytes and objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalsDocument {
    /// Requested bytes.
    pub bytes: u64,
    /// Blocks.
    pub objects: u64,
}

impl<S> Document<S> {
    fn new(profile: &Profile, shown: &str, findings: Vec<FindingDocument>, stacks: S) -> Self {
        Self {
            schema: SCHEMA,
            tool: TOOL.to_owned(),
            source: profile.coverage.source.name().to_owned(),
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
                Sampling::Announced => Some(SamplingDocument::Announced),
                Sampling::Off | Sampling::Rate(_) => None,
            },
            windows: profile.coverage.windows.map(|windows| windows.windows),
            live_unknown: !profile.coverage.knows_live(),
            live_error: profile.live_error().map(Into::into),
            allocated_error: profile.allocated_error().map(Into::into),
            threads: profile.coverage.threads,
            shown: (!shown.is_empty()).then(|| shown.to_owned()),
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
            resident_bytes: profile.resident,
            memory: profile.memory.map(Into::into),
            verdicts: verdicts::documents(profile),
            findings,
            looks: profile.snapshots,
            unjudged_sites: profile.unjudged_sites,
            cost: profile.cost.map(Into::into),
            kept: profile.kept.iter().map(Into::into).collect(),
            stacks,
        }
    }
}

impl From<&KeptClass> for KeptDocument {
    fn from(kept: &KeptClass) -> Self {
        Self {
            class: kept.class.clone(),
            live: kept.now.into(),
            grown_bytes: kept.grown_bytes,
            grown_objects: kept.grown_objects,
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

impl From<Totals> for TotalsDocument {
    fn from(Totals { bytes, objects }: Totals) -> Self {
        Self { bytes, objects }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Writes the document and a line feed.
pub(super) fn write(profile: &Profile, options: &Options, out: &mut impl Write) -> io::Result<()> {
    serialize(profile, options, &mut serde_json::Serializer::new(&mut *out))?;
    writeln!(out)
}

fn serialize<S: Serializer>(profile: &Profile, options: &Options, serializer: S) -> Result<S::Ok, S::Error> {
    let stacks = options.selection.sort.order(profile);
    let numbers = FrameNumbers::new(stacks.iter().flat_map(|stack| stack::code(&stack.frames)));
    let with_blocks = profile.coverage.blocks_per_stack > 0;
    let tables = Tables {
        frames: Each(numbers.frames().iter().map(|frame| FrameDocument::from(*frame))),
        stacks: Each(stacks.iter().map(|stack| StackDocument::new(stack, with_blocks, &numbers))),
    };
    let findings = findings::documents(profile, &options.rules, &numbers);
    Document::new(profile, &options.view, findings, tables).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Block, Coverage, SourceKind};
    use crate::render::sample;

    fn json(profile: &Profile) -> String {
        let mut out = Vec::new();
        write(profile, &sample::options(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sample_profile() {
        let mut pretty = Vec::new();
        let mut serializer = serde_json::Serializer::pretty(&mut pretty);
        serialize(&sample::profile(), &sample::options(), &mut serializer).unwrap();
        let pretty = String::from_utf8(pretty).unwrap();
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
    fn findings_refer_to_frames_stacks_and_verdicts_and_read_back() {
        let profile = sample::judged();
        let report = json(&profile);
        let document: Document = serde_json::from_str(&report).unwrap();
        let [leak, growth] = &document.findings[..] else { panic!("{:#?}", document.findings) };
        assert_eq!((leak.cause.as_str(), growth.cause.as_str()), ("leak", "growth"));
        let tables: serde_json::Value = serde_json::from_str(&report).unwrap();
        for finding in [leak, growth] {
            let frame = &tables["frames"][finding.frame.unwrap() as usize];
            assert!(finding.call_site.starts_with(frame["symbol"].as_str().unwrap()), "{finding:#?}");
            assert!(document.stacks.iter().any(|stack| stack.id == finding.stacks[0]));
            assert!(document.verdicts.iter().any(|verdict| verdict.site == finding.sites[0]));
        }
        assert!(!leak.evidence.is_empty() && leak.to_do.starts_with("free what main [leaky] main.c:31"));
        let early = Profile { snapshots: 1, ..profile };
        let document: Document = serde_json::from_str(&json(&early)).unwrap();
        assert!(document.findings.is_empty());
    }

    #[test]
    fn what_was_asked_for_beyond_the_figures_is_there_and_reads_back() {
        let mut profile = sample::profile();
        profile.coverage = Coverage {
            source: SourceKind::Malloc,
            older: Duration::from_millis(500),
            sampling: Sampling::Bytes(4096),
            windows: None,
            combined: false,
            blocks_per_stack: 10,
            settle: Duration::from_secs(15),
            some_sizes: false,
            threads: false,
        };
        profile.stacks[0].live_error = Totals { bytes: 30, objects: 4 }.into();
        profile.stacks[0].details.blocks =
            vec![Block { address: 0x5000, size: 64, age: Duration::from_millis(700) }];
        let document: Document = serde_json::from_str(&json(&profile)).unwrap();
        assert_eq!((document.older_ms, document.sampling), (Some(500), Some(SamplingDocument::Bytes(4096))));
        assert_eq!(document.live_error, Some(TotalsDocument { bytes: 30, objects: 4 }));
        let stack = document.stacks.iter().find(|stack| stack.live_error.is_some()).unwrap();
        let block = AllocationDocument { address: "0x5000".to_owned(), size: 64, age_ms: 700 };
        assert_eq!(stack.allocations, Some(vec![block]));
    }

    #[test]
    fn a_document_is_one_line_and_its_stacks_have_their_frames() {
        let profile = sample::profile();
        let json = json(&profile);
        assert_eq!(json.lines().count(), 1);
        let document: Document = serde_json::from_str(&json).unwrap();
        let ordered = sample::options().selection.sort.order(&profile);
        assert_eq!(document.stacks.len(), ordered.len());
        for (read, stack) in document.stacks.iter().zip(ordered) {
            let frames: Vec<FrameDocument> = stack.frames.iter().map(|frame| (&**frame).into()).collect();
            assert!(read.frames.iter().map(|frame| &**frame).eq(&frames));
        }
    }

    #[test]
    fn a_stack_with_a_frame_that_is_missing_is_an_error() {
        let broken = json(&sample::profile()).replacen("\"frames\":[0,", "\"frames\":[4000000000,", 1);
        let error = serde_json::from_str::<Document>(&broken).unwrap_err();
        assert_eq!(error.to_string().split(" at ").next(), Some("no frame 4000000000"));
    }
}
