//! Round trips, other tools' files, and hostile files.

mod arbitrary;

use std::io::Read;
use std::sync::Arc;

use flate2::read::GzDecoder;
use jjleak_common::stack::StackStatus;
use proptest::prelude::*;
use prost::Message;

use super::proto::{self, Function, Line, Location, Sample, ValueType};
use super::write::{DEFAULT_SAMPLE_TYPE, values, write};
use super::{Error, Malformed, read};
use crate::profile::{FrameKind, NO_STACK, Profile, Totals};
use crate::render::sample;

fn written(profile: &Profile) -> Vec<u8> {
    let mut file = Vec::new();
    write(profile, &mut file).unwrap();
    file
}

fn round_trip(profile: &Profile) -> proto::Profile {
    let mut bytes = Vec::new();
    GzDecoder::new(written(profile).as_slice()).read_to_end(&mut bytes).unwrap();
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

    #[test]
    fn what_was_written_reads_back_as_it_was(profile in arbitrary::anything()) {
        let reading = read(&written(&profile)).unwrap();
        prop_assert_eq!(&reading.profile, &profile);
        prop_assert_eq!(reading.remarks.len(), 0);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
    }

    #[test]
    fn damage_to_a_message_is_an_error_or_another_profile(
        profile in arbitrary::anything(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut message = round_trip(&profile).encode_to_vec();
        for (place, byte) in damage {
            let place = place.index(message.len());
            message[place] = byte;
        }
        let _ = read(&message);
    }
}

/// A message as another tool writes it: a stack `leaf` below `main` with these values.
fn foreign(types: &[(&str, &str)], value: &[i64]) -> proto::Profile {
    let mut strings = vec![String::new(), "leaf".to_owned(), "main".to_owned()];
    let mut string = |text: &str| {
        strings.push(text.to_owned());
        i64::try_from(strings.len() - 1).unwrap()
    };
    let sample_type =
        types.iter().map(|(name, unit)| ValueType { r#type: string(name), unit: string(unit) }).collect();
    let line = |function_id| vec![Line { function_id, line: 0 }];
    proto::Profile {
        sample_type,
        sample: vec![Sample { location_id: vec![1, 2], value: value.to_vec(), ..Sample::default() }],
        location: [1, 2].map(|id| Location { id, line: line(id), ..Location::default() }).into(),
        function: [1_u64, 2].map(|id| Function { id, name: id.cast_signed(), ..Function::default() }).into(),
        string_table: strings,
        ..proto::Profile::default()
    }
}

#[test]
fn a_go_heap_profile_is_read_with_all_its_figures() {
    let types = [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ];
    let reading = read(&foreign(&types, &[10, 1000, 1, 100]).encode_to_vec()).unwrap();
    let stack = &reading.profile.stacks[0];
    assert_eq!(stack.live, Totals { bytes: 100, objects: 1 });
    assert_eq!(stack.allocated, Totals { bytes: 1000, objects: 10 });
    assert_eq!(stack.status, StackStatus::Foreign);
    let symbols: Vec<_> = stack.frames.iter().map(|frame| (frame.symbol.as_str(), frame.kind)).collect();
    assert_eq!(symbols, [("leaf", FrameKind::Native), ("main", FrameKind::Native)]);
    let remark =
        "written by another tool: live bytes are its inuse_space, live objects are its inuse_objects";
    assert_eq!(reading.remarks, [remark]);
}

#[test]
fn a_file_that_another_tool_has_left_the_verdicts_out_of_claims_nothing() {
    let mut message = round_trip(&sample::judged());
    assert!(read(&message.encode_to_vec()).unwrap().profile.is_judged());
    message.verdict.clear();
    assert!(!read(&message.encode_to_vec()).unwrap().profile.is_judged());
}

#[test]
fn verdicts_of_several_processes_read_back() {
    let one = sample::judged();
    let mut other = one.clone();
    other.process.pid += 1;
    let merged = Profile::merge([&one, &other].into_iter());
    let reading = read(&written(&merged)).unwrap();
    assert_eq!(reading.profile.verdicts, merged.verdicts);
    assert!(crate::render::headline(&reading.profile).contains("1 call site leaks"));
}

#[test]
fn of_other_sample_types_bytes_are_taken_for_what_lives() {
    let live = |types: &[(&str, &str)], value: &[i64]| {
        read(&foreign(types, value).encode_to_vec()).map(|reading| reading.profile.stacks[0].live)
    };
    let jemalloc = live(&[("objects", "count"), ("space", "bytes")], &[3, 300]).unwrap();
    assert_eq!(jemalloc, Totals { bytes: 300, objects: 3 });
    let bytes_alone = live(&[("inuse_space", "bytes")], &[300]).unwrap();
    assert_eq!(bytes_alone, Totals { bytes: 300, objects: 0 });
    let allocations = live(&[("alloc_objects", "count"), ("alloc_space", "bytes")], &[4, 40]).unwrap();
    assert_eq!(allocations, Totals { bytes: 40, objects: 4 });
    let cpu = live(&[("samples", "count"), ("cpu", "nanoseconds")], &[1, 10]).unwrap_err();
    assert_eq!(cpu.to_string(), "not a memory profile: its values are samples/count, cpu/nanoseconds");
}

#[test]
fn negative_values_count_as_zero_and_are_reported() {
    let reading = read(&foreign(&[("inuse_space", "bytes")], &[-5]).encode_to_vec()).unwrap();
    assert!(reading.profile.stacks[0].live.is_nothing());
    assert!(reading.remarks[1].starts_with("negative values in 1 of its samples"), "{:?}", reading.remarks);
}

#[test]
fn indexes_out_of_a_table_are_errors() {
    let types = [("inuse_space", "bytes")];
    let malformed = |change: &dyn Fn(&mut proto::Profile)| {
        let mut message = foreign(&types, &[1]);
        change(&mut message);
        match read(&message.encode_to_vec()) {
            Err(Error::Malformed(malformed)) => malformed,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(malformed(&|message| message.sample[0].location_id.push(9)), Malformed::Location(9));
    assert_eq!(malformed(&|message| message.location[0].line[0].function_id = 9), Malformed::Function(9));
    assert_eq!(malformed(&|message| message.location[0].mapping_id = 9), Malformed::Mapping(9));
    assert_eq!(malformed(&|message| message.function[0].name = -1), Malformed::String(-1));
    assert_eq!(malformed(&|message| message.function[0].name = 99), Malformed::String(99));
    assert_eq!(malformed(&|message| message.sample[0].value.push(1)), Malformed::Values(2));
    assert_eq!(malformed(&|message| message.sample_type.clear()), Malformed::NoSampleTypes);
}

#[test]
fn a_location_is_stored_once_and_the_memory_for_functions_is_bounded() {
    let mut message = foreign(&[("inuse_space", "bytes")], &[1]);
    message.string_table[1] = "x".repeat(1 << 20);
    message.sample[0].location_id = vec![1; 4096];
    let frames = &read(&message.encode_to_vec()).unwrap().profile.stacks[0].frames;
    assert!(frames.len() == 4096 && frames.iter().all(|frame| Arc::ptr_eq(frame, &frames[0])));
    let line = message.location[0].line[0];
    message.location[0].line = vec![line; 4096];
    assert!(matches!(read(&message.encode_to_vec()), Err(Error::TooLarge { what: "bytes of frames", .. })));
}

#[test]
fn other_files_are_refused_with_the_reason() {
    for (file, why) in [
        (&b"hello"[..], "not a pprof profile"),
        (b"", "not a pprof profile: no sample types"),
        (b"\x1f\x8bgarbage", "decompression failed"),
    ] {
        assert_eq!(read(file).unwrap_err().to_string(), why);
    }
}
