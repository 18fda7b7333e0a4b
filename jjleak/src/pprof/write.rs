//! Writes profiles to files.
//!
//! A profile has no address ranges: each module is one mapping without a range, and frames are already
//! symbolized.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use smallvec::SmallVec;

use super::proto::{
    self, AgesDetail, BlockDetail, Function, Line, Location, Mapping, MomentDetail, Sample, SampleDetail,
    ThreadDetail, TotalsDetail, ValueType, VerdictDetail,
};
use super::{SAMPLE_TYPES, comments, frame, thread, verdicts};
use crate::profile::{
    Frame, FrameNumbers, Moment, NO_STACK, Profile, SharedFrame, StackProfile, Totals, Verdict,
};

/// Default sample type of viewers.
pub(super) const DEFAULT_SAMPLE_TYPE: &str = "inuse_space";

/// Writes the profile.
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&encode(profile).encode_to_vec())?;
    gzip.finish()?;
    Ok(())
}

pub(super) fn encode(profile: &Profile) -> proto::Profile {
    let mut tables = Tables::default();
    tables.string("");
    // Viewers take the first mapping for the main program.
    let frames = || profile.stacks.iter().flat_map(|stack| stack.frames.iter());
    if let Some(frame) = frames().find(|frame| frame.module == profile.process.exe) {
        tables.mapping(frame);
    }
    let samples = profile.stacks.iter().map(|stack| tables.sample(stack)).collect();
    let sample_types = SAMPLE_TYPES
        .map(|(name, unit)| ValueType { r#type: tables.string(name), unit: tables.string(unit) })
        .to_vec();
    let comments = comments::of(profile).iter().map(|comment| tables.string(comment)).collect();
    let verdict = profile.verdicts.iter().map(|verdict| tables.verdict(verdict)).collect();
    let memory = profile.memory.map(|memory| {
        let kind = tables.string(memory.kind.name());
        verdicts::write_memory(memory, kind)
    });
    let default_sample_type = tables.string(DEFAULT_SAMPLE_TYPE);
    proto::Profile {
        sample_type: sample_types,
        sample: samples,
        mapping: tables.mappings,
        location: tables.locations,
        function: tables.functions,
        string_table: tables.strings,
        time_nanos: signed(profile.taken_at.as_nanosecond()),
        duration_nanos: signed(profile.elapsed().as_nanos()),
        comment: comments,
        default_sample_type,
        history: profile.history.iter().map(moment).collect(),
        verdict,
        memory,
    }
}

fn moment(moment: &Moment) -> MomentDetail {
    let Totals { bytes, objects } = moment.live;
    MomentDetail { time_nanos: signed(moment.at.as_nanosecond()), bytes, objects, resident: moment.resident }
}

/// The values of [`SAMPLE_TYPES`].
pub(super) fn values(stack: &StackProfile) -> [i64; 4] {
    [stack.live.objects, stack.live.bytes, stack.allocated.objects, stack.allocated.bytes].map(signed)
}

/// The deduplicated tables that samples refer to.
#[derive(Default)]
struct Tables<'a> {
    strings: Vec<String>,
    string_indexes: HashMap<String, i64>,
    mappings: Vec<Mapping>,
    /// Key: module and build ID.
    mapping_ids: HashMap<(&'a str, &'a str), u64>,
    functions: Vec<Function>,
    /// Key: name and source file.
    function_ids: HashMap<(&'a str, &'a str), u64>,
    locations: Vec<Location>,
    /// Key: number of the frame, preceded by those of the functions inlined into it.
    location_ids: HashMap<SmallVec<[u32; 4]>, u64>,
    frame_numbers: FrameNumbers<'a>,
}

impl<'a> Tables<'a> {
    fn verdict(&mut self, verdict: &'a Verdict) -> VerdictDetail {
        let kind = self.string(verdict.kind.name());
        let location_id = self.stack(verdict.frames.iter());
        verdicts::write(verdict, kind, location_id)
    }

    fn stack(&mut self, frames: impl Iterator<Item = &'a SharedFrame>) -> Vec<u64> {
        let frames: SmallVec<[_; 32]> = frames.collect();
        frames
            .chunk_by(|inner, outer| frame::share_a_location(inner, outer))
            .map(|frames| self.location(frames))
            .collect()
    }

    fn sample(&mut self, stack: &'a StackProfile) -> Sample {
        // A thread is written as labels instead of a frame.
        let (frames, place) = (&stack.frames, thread::place(&stack.frames));
        let inner = frames.len() - place.map_or(0, |below| below + 1);
        let outer = frames.len() - place.unwrap_or_default();
        let mut location_id = self.stack(frames.iter().take(inner));
        location_id.extend(self.stack(frames.iter().skip(outer)));
        let no_frames = location_id.is_empty();
        if no_frames {
            location_id.push(self.no_stack());
        }
        let label = stack.thread().map(|thread| thread::labels(&thread, |text| self.string(text)));
        Sample {
            location_id,
            value: values(stack).to_vec(),
            label: label.unwrap_or_default(),
            detail: Some(SampleDetail { no_frames, ..self.detail(stack) }),
        }
    }

    fn detail(&mut self, stack: &StackProfile) -> SampleDetail {
        let totals = |Totals { bytes, objects }| TotalsDetail { bytes, objects };
        let blocks = stack.details.blocks.iter().map(|block| BlockDetail {
            address: block.address,
            size: block.size,
            age: nanoseconds(block.age),
        });
        SampleDetail {
            stack_id: stack.id,
            status: self.string(stack.status.name()),
            ages: stack.details.ages.map(|ages| AgesDetail {
                oldest: nanoseconds(ages.oldest),
                newest: nanoseconds(ages.newest),
            }),
            live_error: stack.live_error.totals().map(totals),
            growth: stack.details.growth,
            block: blocks.collect(),
            no_frames: false,
            thread: stack.thread().map(|thread| ThreadDetail {
                nth: thread.nth,
                below: thread::place(&stack.frames).unwrap_or_default().try_into().unwrap_or_default(),
            }),
        }
    }

    fn location(&mut self, frames: &[&'a SharedFrame]) -> u64 {
        let numbers: SmallVec<_> = frames.iter().map(|frame| self.frame_numbers.add(frame)).collect();
        if let Some(&id) = self.location_ids.get(&numbers) {
            return id;
        }
        let outermost = frames[frames.len() - 1];
        let mapping_id = self.mapping(outermost);
        let lines = frames.iter().filter(|frame| frame::has_line(frame)).map(|frame| Line {
            function_id: self.function(&frame.symbol, &frame.file),
            line: frame.line.into(),
        });
        let line = lines.collect();
        let kinds = frames.iter().map(|frame| frame::pack(frame)).collect();
        let id = self.push_location(mapping_id, outermost.address, line, kinds);
        self.location_ids.insert(numbers, id);
        id
    }

    /// The location of allocations whose stack was not kept.
    fn no_stack(&mut self) -> u64 {
        if let Some(&id) = self.location_ids.get(&SmallVec::new()) {
            return id;
        }
        let function_id = self.function(NO_STACK, "");
        let id = self.push_location(0, 0, vec![Line { function_id, line: 0 }], Vec::new());
        self.location_ids.insert(SmallVec::new(), id);
        id
    }

    fn push_location(&mut self, mapping_id: u64, address: u64, line: Vec<Line>, frame: Vec<u32>) -> u64 {
        let id = next_id(&self.locations);
        self.locations.push(Location { id, mapping_id, address, line, frame });
        id
    }

    /// The mapping of the frame's module; 0 without a module.
    fn mapping(&mut self, frame: &'a Frame) -> u64 {
        if frame.module.is_empty() && frame.build_id.is_empty() {
            return 0;
        }
        let key = (frame.module.as_str(), frame.build_id.as_str());
        if let Some(&id) = self.mapping_ids.get(&key) {
            return id;
        }
        let id = next_id(&self.mappings);
        let (filename, build_id) = (self.string(key.0), self.string(key.1));
        // Symbolization is complete; viewers need not try.
        self.mappings.push(Mapping {
            id,
            memory_start: 0,
            memory_limit: 0,
            file_offset: 0,
            filename,
            build_id,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        });
        self.mapping_ids.insert(key, id);
        id
    }

    fn function(&mut self, name: &'a str, file: &'a str) -> u64 {
        if let Some(&id) = self.function_ids.get(&(name, file)) {
            return id;
        }
        let id = next_id(&self.functions);
        let (symbol, filename) = (self.string(name), self.string(file));
        self.functions.push(Function { id, name: symbol, system_name: symbol, filename });
        self.function_ids.insert((name, file), id);
        id
    }

    fn string(&mut self, string: &str) -> i64 {
        if let Some(&index) = self.string_indexes.get(string) {
            return index;
        }
        let index = signed(self.strings.len());
        self.strings.push(string.to_owned());
        self.string_indexes.insert(string.to_owned(), index);
        index
    }
}

/// IDs count from 1; 0 is none.
fn next_id<T>(table: &[T]) -> u64 {
    table.len() as u64 + 1
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}

/// pprof's numbers are signed; no value comes near the limit.
fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
