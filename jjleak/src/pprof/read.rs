//! Reads profiles from files.
//!
//! jjleak's own files are restored exactly, except for cohorts, which no report shows (only later verdicts
//! need them), and what the format cannot hold: times before 1677 and after 2262, and numbers above 2^63.
//! Other tools' files lack most of jjleak's data; these are left empty. Remarks name the values that were
//! taken as live.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jjleak_common::stack::StackStatus;
use prost::Message;

use super::comments::Comments;
use super::elements::{self, MAX_ELEMENT_BYTES};
use super::error::{Error, Malformed};
use super::limits::{Budget, MAX_BYTES, MAX_FRAME_BYTES, decompressed};
use super::proto::{self, AgesDetail, BlockDetail, Sample, SampleDetail};
use super::tables::Tables;
use super::{SAMPLE_TYPES, thread, verdicts};
use crate::profile::{Ages, Block, BlockDetails, DistinctIds, Moment, Profile, StackProfile, Totals};

/// Result of reading a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// The profile.
    pub profile: Profile,
    /// Remarks on how the file was read; empty for jjleak's own files.
    pub remarks: Vec<String>,
    /// Mapped files in another tool's profile, whose code may have no names.
    pub mapped: Vec<MappedFile>,
}

/// A part of a file that the program had mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedFile {
    /// Addresses in the process.
    pub addresses: Range<u64>,
    /// File offset of the first byte.
    pub file_offset: u64,
    /// Path of the file, as the process saw it.
    pub path: String,
    /// Build ID in hex; may be empty.
    pub build_id: String,
}

/// Reads a profile, compressed or not.
///
/// # Errors
///
/// If it is not a memory profile, or exceeds the limits.
pub fn read(file: &[u8]) -> Result<Reading, Error> {
    read_within(file, MAX_BYTES)
}

/// Reads a profile of at most `limit` bytes, decompressed.
///
/// # Errors
///
/// If it is not a memory profile, or exceeds the limits.
pub fn read_within(file: &[u8], limit: u64) -> Result<Reading, Error> {
    let message = decompressed(file, limit)?;
    elements::check(&message, MAX_ELEMENT_BYTES)?;
    let message = proto::Profile::decode(message.as_slice()).map_err(Error::NotPprof)?;
    let mut tables = Tables::of(&message);
    let comments = message.comment.iter().map(|&comment| tables.string(comment));
    let comments = Comments::parse(comments.collect::<Result<Vec<_>, _>>()?.into_iter());
    let columns = Columns::of(&message, &tables)?;
    let mut budget = Budget(MAX_FRAME_BYTES);
    let mut stacks = Vec::with_capacity(message.sample.len());
    let mut negative = 0_u64;
    let mut ids = DistinctIds::default();
    for sample in &message.sample {
        if sample.value.len() != message.sample_type.len() {
            return Err(Malformed::Values(sample.value.len()).into());
        }
        negative += u64::from(sample.value.iter().any(|&value| value < 0));
        stacks.push(stack(sample, &mut ids, &columns, &mut tables, &mut budget)?);
    }
    let mut remarks = Vec::new();
    if !comments.are_ours() {
        remarks.push(columns.remark());
    }
    if negative > 0 {
        remarks.push(format!("negative values in {negative} of its samples count as 0"));
    }
    let mut profile = profile(&message, &comments, stacks);
    let mapped = if comments.are_ours() { Vec::new() } else { mapped(&message, &tables)? };
    // Other tools list the program's file first (profile.proto).
    if let (false, Some(program)) = (comments.are_ours(), message.mapping.first()) {
        let exe = tables.string(program.filename)?;
        exe.rsplit('/').next().unwrap_or_default().clone_into(&mut profile.process.comm);
        exe.clone_into(&mut profile.process.exe);
    }
    // Other tools may record threads too.
    profile.coverage.threads |= profile.stacks.iter().any(|stack| stack.thread().is_some());
    for verdict in &message.verdict {
        profile.verdicts.extend(verdicts::read(verdict, &mut tables, &mut budget)?);
    }
    if let Some(memory) = &message.memory {
        profile.memory = verdicts::read_memory(memory, &tables)?;
    }
    if profile.verdicts.is_empty() && profile.live().bytes > 0 && !profile.coverage.settle.is_zero() {
        // Live stacks without verdicts: another tool has dropped them.
        profile.unjudge();
    }
    Ok(Reading { profile, remarks, mapped })
}

fn mapped(message: &proto::Profile, tables: &Tables<'_>) -> Result<Vec<MappedFile>, Malformed> {
    let file = |mapping: &proto::Mapping| {
        Ok(MappedFile {
            addresses: mapping.memory_start..mapping.memory_limit,
            file_offset: mapping.file_offset,
            path: tables.string(mapping.filename)?.to_owned(),
            build_id: tables.string(mapping.build_id)?.to_owned(),
        })
    };
    message.mapping.iter().map(file).collect()
}

fn profile(message: &proto::Profile, comments: &Comments<'_>, stacks: Vec<StackProfile>) -> Profile {
    let time = |nanos: i64| Timestamp::from_nanosecond(nanos.into()).unwrap_or_default();
    Profile {
        started_at: time(message.time_nanos.saturating_sub(message.duration_nanos)),
        taken_at: time(message.time_nanos),
        process: comments.process(),
        growth: comments.growth(),
        kept: Vec::new(),
        ended: comments.ended(),
        coverage: comments.coverage(),
        lost: comments.counters("lost."),
        notes: comments.counters("notes."),
        unknown_frees: comments.unknown_frees(),
        stacks,
        history: message
            .history
            .iter()
            .map(|moment| Moment {
                at: time(moment.time_nanos),
                live: Totals { bytes: moment.bytes, objects: moment.objects },
                resident: moment.resident,
            })
            .collect(),
        instants_ns: Arc::default(),
        resident: message.history.last().and_then(|last| last.resident),
        memory: None,
        verdicts: Vec::new(),
        snapshots: comments.snapshots(),
        unjudged_sites: comments.unjudged_sites(),
        cost: comments.cost(),
    }
}

fn stack(
    sample: &Sample,
    ids: &mut DistinctIds,
    columns: &Columns,
    tables: &mut Tables<'_>,
    budget: &mut Budget,
) -> Result<StackProfile, Error> {
    let live = columns.live.of(sample);
    let allocated = columns.allocated.map_or(live, |columns| columns.of(sample));
    let has_frames = !sample.detail.as_ref().is_some_and(|detail| detail.no_frames);
    let mut frames = if has_frames { tables.stack(&sample.location_id, budget)? } else { Vec::new() };
    thread::add(sample, &mut frames, tables)?;
    let id = if sample.detail.is_none() { ids.of(&frames) } else { 0 };
    let mut stack = StackProfile::foreign(id, live, allocated, frames.into());
    if let Some(detail) = &sample.detail {
        add_detail(&mut stack, detail, tables)?;
    }
    Ok(stack)
}

fn add_detail(stack: &mut StackProfile, detail: &SampleDetail, tables: &Tables<'_>) -> Result<(), Error> {
    let status = tables.string(detail.status)?;
    stack.id = detail.stack_id;
    if let Some(status) = StackStatus::ALL.iter().find(|known| known.name() == status) {
        stack.status = *status;
    }
    let error = detail.live_error.map(|error| Totals { bytes: error.bytes, objects: error.objects });
    stack.live_error = error.into();
    let ages = |ages: AgesDetail| Ages {
        oldest: Duration::from_nanos(ages.oldest),
        newest: Duration::from_nanos(ages.newest),
    };
    let block = |block: &BlockDetail| Block {
        address: block.address,
        size: block.size,
        age: Duration::from_nanos(block.age),
    };
    let blocks = detail.block.iter().map(block).collect();
    let (ages, growth) = (detail.ages.map(ages), detail.growth);
    stack.details = BlockDetails { ages, blocks, growth, ..BlockDetails::default() }.into();
    Ok(())
}

/// Columns of a sample's values.
#[derive(Debug, Clone)]
struct Columns {
    live: Pair,
    allocated: Option<Pair>,
    /// Names and units, for messages.
    names: Vec<(String, String)>,
}

/// Columns of bytes and objects.
#[derive(Debug, Clone, Copy)]
struct Pair {
    bytes: Option<usize>,
    objects: Option<usize>,
}

impl Columns {
    fn of(message: &proto::Profile, tables: &Tables<'_>) -> Result<Self, Error> {
        let mut names = Vec::new();
        for kind in &message.sample_type {
            names.push((tables.string(kind.r#type)?.to_owned(), tables.string(kind.unit)?.to_owned()));
        }
        if names.is_empty() {
            return Err(Malformed::NoSampleTypes.into());
        }
        let default = tables.string(message.default_sample_type)?;
        let column = |name: &str| names.iter().position(|(known, _)| known == name);
        let [live_objects, live_bytes, allocated_objects, allocated_bytes] =
            SAMPLE_TYPES.map(|(name, _)| column(name));
        let pair = |bytes: Option<usize>, objects: Option<usize>| {
            (bytes.is_some() || objects.is_some()).then_some(Pair { bytes, objects })
        };
        let allocated = pair(allocated_bytes, allocated_objects);
        let live = pair(live_bytes, live_objects).or_else(|| {
            // The file's own default, or else the Go tool's: the last.
            let by_unit = |units: &[&str]| {
                let has_unit = |index: &usize| units.contains(&names[*index].1.as_str());
                let all: Vec<_> = (0..names.len()).filter(has_unit).collect();
                all.iter().find(|index| names[**index].0 == default).or(all.last()).copied()
            };
            pair(
                by_unit(&["bytes", "byte", "B"]),
                by_unit(&["count", "objects"]).filter(|_| is_memory(&names)),
            )
        });
        let shown = || {
            let names = names.iter().map(|(name, unit)| format!("{name}/{unit}"));
            names.collect::<Vec<_>>().join(", ")
        };
        Ok(Self { live: live.ok_or_else(|| Error::NoMemory(shown()))?, allocated, names })
    }

    /// Names the values that were taken as live.
    fn remark(&self) -> String {
        let named = |what: &str, column: Option<usize>| match column {
            Some(column) => format!("live {what} are its {}", self.names[column].0),
            None => format!("it has no numbers of {what}"),
        };
        let (bytes, objects) = (named("bytes", self.live.bytes), named("objects", self.live.objects));
        format!("written by another tool: {bytes}, {objects}")
    }
}

/// Counts may be of anything, such as CPU samples. They count as objects only beside bytes, or if nothing
/// else is there.
fn is_memory(names: &[(String, String)]) -> bool {
    names.iter().any(|(name, unit)| unit == "bytes" || name.contains("objects"))
}

impl Pair {
    fn of(self, sample: &Sample) -> Totals {
        let value = |column: Option<usize>| {
            let value = column.and_then(|column| sample.value.get(column));
            value.map_or(0, |&value| u64::try_from(value).unwrap_or(0))
        };
        Totals { bytes: value(self.bytes), objects: value(self.objects) }
    }
}
