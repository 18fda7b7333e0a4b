//! pprof profiles: gzip-compressed protobuf, which `go tool pprof`, Pyroscope and Parca open as it is.
//!
//! A profile has no address ranges, so a module is one mapping without a range; frames are symbolized already.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use self::proto::{Function, Line, Location, Mapping, Sample, ValueType};
use super::TOOL;
use super::label::NO_STACK;
use crate::profile::{Frame, Profile, StackProfile};

mod proto;

/// Types and units of a sample's values, in the order in which [`values`] gives them.
const SAMPLE_TYPES: [(&str, &str); 4] = [
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
];

/// What viewers show first.
const DEFAULT_SAMPLE_TYPE: &str = "inuse_space";

/// Writes the profile.
pub(super) fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&encode(profile).encode_to_vec())?;
    gzip.finish()?;
    Ok(())
}

fn encode(profile: &Profile) -> proto::Profile {
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
    let comments = comments(profile).iter().map(|comment| tables.string(comment)).collect();
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
    }
}

/// What has no field of its own, as `key=value`.
fn comments(profile: &Profile) -> Vec<String> {
    let process = &profile.process;
    let mut comments = vec![
        format!("tool={TOOL}"),
        format!("pid={}", process.pid),
        format!("start_time={}", process.start_time),
        format!("comm={}", process.comm),
        format!("exe={}", process.exe),
        format!("kind={}", process.kind.name()),
        format!("unknown_frees={}", profile.unknown_frees),
    ];
    comments.extend(profile.lost.iter().map(|(name, count)| format!("lost.{name}={count}")));
    comments
}

/// The values of [`SAMPLE_TYPES`].
fn values(stack: &StackProfile) -> [i64; 4] {
    [stack.live.objects, stack.live.bytes, stack.allocated.objects, stack.allocated.bytes].map(signed)
}

/// The tables that samples point into, each entry once.
#[derive(Default)]
struct Tables<'a> {
    strings: Vec<String>,
    string_indexes: HashMap<String, i64>,
    mappings: Vec<Mapping>,
    /// By module and build ID.
    mapping_ids: HashMap<(&'a str, &'a str), u64>,
    functions: Vec<Function>,
    /// By name and source file.
    function_ids: HashMap<(&'a str, &'a str), u64>,
    locations: Vec<Location>,
    /// By a frame and what is inlined into it.
    location_ids: HashMap<&'a [Frame], u64>,
}

impl<'a> Tables<'a> {
    fn sample(&mut self, stack: &'a StackProfile) -> Sample {
        // Functions inlined at one address are lines of one location.
        let locations = stack.frames.chunk_by(|frame, next| frame.inlined && frame.address == next.address);
        let mut location_id: Vec<u64> = locations.map(|frames| self.location(frames)).collect();
        if location_id.is_empty() {
            location_id.push(self.no_stack());
        }
        Sample { location_id, value: values(stack).to_vec() }
    }

    fn location(&mut self, frames: &'a [Frame]) -> u64 {
        if let Some(&id) = self.location_ids.get(frames) {
            return id;
        }
        let outermost = &frames[frames.len() - 1];
        let mapping_id = self.mapping(outermost);
        let named = frames.iter().filter(|frame| !frame.symbol.is_empty());
        let lines = named.map(|frame| Line {
            function_id: self.function(&frame.symbol, &frame.file),
            line: frame.line.into(),
        });
        let line = lines.collect();
        let id = self.push_location(mapping_id, outermost.address, line);
        self.location_ids.insert(frames, id);
        id
    }

    /// The location of allocations whose stack was not kept.
    fn no_stack(&mut self) -> u64 {
        if let Some(&id) = self.location_ids.get([].as_slice()) {
            return id;
        }
        let function_id = self.function(NO_STACK, "");
        let id = self.push_location(0, 0, vec![Line { function_id, line: 0 }]);
        self.location_ids.insert(&[], id);
        id
    }

    fn push_location(&mut self, mapping_id: u64, address: u64, line: Vec<Line>) -> u64 {
        let id = next_id(&self.locations);
        self.locations.push(Location { id, mapping_id, address, line });
        id
    }

    /// The mapping of the frame's module; 0 when it is in none.
    fn mapping(&mut self, frame: &'a Frame) -> u64 {
        if frame.module.is_empty() {
            return 0;
        }
        let key = (frame.module.as_str(), frame.build_id.as_str());
        if let Some(&id) = self.mapping_ids.get(&key) {
            return id;
        }
        let id = next_id(&self.mappings);
        let (filename, build_id) = (self.string(key.0), self.string(key.1));
        // All that can be found out was: viewers need not try.
        self.mappings.push(Mapping {
            id,
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

/// IDs count from 1: 0 is none.
fn next_id<T>(table: &[T]) -> u64 {
    table.len() as u64 + 1
}

/// pprof's numbers are signed; none of ours comes near the limit.
fn signed(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;
    use flate2::read::GzDecoder;
    use proptest::prelude::*;
    use std::io::Read;

    fn round_trip(profile: &Profile) -> proto::Profile {
        let (mut file, mut bytes) = (Vec::new(), Vec::new());
        write(profile, &mut file).unwrap();
        GzDecoder::new(file.as_slice()).read_to_end(&mut bytes).unwrap();
        proto::Profile::decode(bytes.as_slice()).unwrap()
    }

    fn string(pprof: &proto::Profile, index: i64) -> &str {
        &pprof.string_table[usize::try_from(index).unwrap()]
    }

    fn by_id<T>(table: &[T], id: u64) -> &T {
        &table[usize::try_from(id - 1).unwrap()]
    }

    /// Address and functions of the sample's locations, leaf first.
    fn locations<'a>(pprof: &'a proto::Profile, sample: &Sample) -> Vec<(u64, Vec<&'a str>)> {
        let name = |line: &Line| string(pprof, by_id(&pprof.function, line.function_id).name);
        let locations = sample.location_id.iter().map(|&id| by_id(&pprof.location, id));
        locations.map(|location| (location.address, location.line.iter().map(name).collect())).collect()
    }

    #[test]
    fn inlined_functions_are_lines_of_one_location_innermost_first() {
        let profile = sample::profile();
        let pprof = round_trip(&profile);
        let locations = locations(&pprof, &pprof.sample[1]);
        assert_eq!(locations[1], (0x5580_0000_11a3, vec!["new_node", "list_push", "grow_list"]));
        assert_eq!(locations.len(), 3);
    }

    #[test]
    fn unknown_frames_keep_address_and_module_and_lost_stacks_are_named() {
        let pprof = round_trip(&sample::profile());
        let closed = by_id(&pprof.location, pprof.sample[3].location_id[1]);
        let module = by_id(&pprof.mapping, closed.mapping_id);
        assert_eq!(string(&pprof, module.filename), "/opt/vendor/libclosed.so");
        assert_eq!((closed.address, closed.line.len()), (0x7f00_5555_0123, 0));
        assert_eq!(locations(&pprof, &pprof.sample[5]), [(0, vec![NO_STACK])]);
    }

    #[test]
    fn the_program_is_the_first_mapping_and_modules_keep_their_build_ids() {
        let pprof = round_trip(&sample::profile());
        let modules: Vec<_> = pprof
            .mapping
            .iter()
            .map(|mapping| (string(&pprof, mapping.filename), string(&pprof, mapping.build_id)))
            .collect();
        assert_eq!(modules[0], ("/opt/leaky/bin/leaky", ""));
        assert!(modules.contains(&("/usr/lib/x86_64-linux-gnu/libc.so.6", "c0ffee")));
    }

    #[test]
    fn process_losses_and_times_are_kept() {
        let profile = sample::profile();
        let pprof = round_trip(&profile);
        let comments: Vec<_> = pprof.comment.iter().map(|&index| string(&pprof, index)).collect();
        for comment in
            ["pid=4242", "comm=leaky", "lost.stale_pending=3", "lost.live_table_full=0", "unknown_frees=5"]
        {
            assert!(comments.contains(&comment), "{comment} is missing in {comments:?}");
        }
        assert_eq!(i128::from(pprof.time_nanos), profile.taken_at.as_nanosecond());
        assert_eq!(pprof.duration_nanos, 252_500_000_000);
        assert_eq!(string(&pprof, pprof.default_sample_type), DEFAULT_SAMPLE_TYPE);
    }

    proptest! {
        #[test]
        fn stacks_and_figures_survive_the_round_trip(profile in sample::arbitrary_profile()) {
            let pprof = round_trip(&profile);
            prop_assert_eq!(pprof.string_table[0].as_str(), "");
            prop_assert_eq!(pprof.sample.len(), profile.stacks.len());
            for (sample, stack) in pprof.sample.iter().zip(&profile.stacks) {
                prop_assert_eq!(&sample.value, &values(stack));
                let decoded = locations(&pprof, sample);
                let decoded: Vec<_> = decoded.iter().flat_map(|(_, names)| names.iter().copied()).collect();
                let mut names: Vec<_> =
                    stack.frames.iter().map(|frame| frame.symbol.as_str()).filter(|name| !name.is_empty()).collect();
                if stack.frames.is_empty() {
                    names.push(NO_STACK);
                }
                prop_assert_eq!(decoded, names);
            }
        }
    }
}
