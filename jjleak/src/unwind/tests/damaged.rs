//! Tests with damaged and hostile files: each must give a result or an error within bounded time.

use std::io::Write;
use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindContext, UnwindSection};
use jjleak_common::unwind::{PAGE_BYTES, RowKind};
use object::{Object, ObjectSection};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::{
    is_long,
    oracle::{Frame, Machine},
};
use crate::file_content::{Content, LazyFile};
use crate::unwind::entries::MAX_FUNCTIONS;
use crate::unwind::{
    Error, MAX_ROWS, Unsupported, compile, compile_described,
    test_elf::{AT_ENTRY, CODE_ADDRESS, FP, FRAMES_ADDRESS, Frames, KERNELS_FRAME, SP, TestElf},
};

const PROLOGUE: &[u8] = &[0x41, 0x0e, 16, 0x80 | FP, 2, 0x43, 0x0d, FP, 0x0a, 0x70, 0x0c, SP, 8, 0x41, 0x0b];

/// `.eh_frame` with all kinds of rules.
fn sound_frames() -> Frames {
    let mut eh_frame = Frames::eh_frame();
    let cie = eh_frame.cie("", AT_ENTRY);
    eh_frame.fde(cie, CODE_ADDRESS, 200, PROLOGUE);
    eh_frame.fde(cie, CODE_ADDRESS + 208, 64, &[0x0f, 3, 0x70 + FP, 0x70, 0x06]);
    let signal = eh_frame.cie("S", AT_ENTRY);
    eh_frame.fde(signal, CODE_ADDRESS + 3000, 9, KERNELS_FRAME);
    eh_frame
}

/// A file with these frames: either with section headers and a compressed `.debug_frame`, or without both.
fn sound(section_headers: bool) -> Vec<u8> {
    let mut debug_frame = Frames::debug_frame();
    let cie = debug_frame.cie("", AT_ENTRY);
    debug_frame.fde(cie, CODE_ADDRESS + 1000, 80, PROLOGUE);
    TestElf { section_headers, debug_frame: Some(debug_frame), ..TestElf::new(0x1000, sound_frames()) }
        .build()
}

/// Compiles the file; rows must be searchable at any address.
fn survive(elf: &[u8]) {
    if let Ok(rows) = compile(elf) {
        let end = rows.text_start() + u64::from(rows.rows().last().unwrap().address());
        let start = rows.text_start();
        for address in (start..start + 0x2000).chain([start.wrapping_sub(1), end - 1, end, u64::MAX]) {
            let inside = address >= start && address - start < (rows.pages().len() as u64 - 1) * PAGE_BYTES;
            assert_eq!(rows.find(address).is_some(), inside, "{address:#x}");
        }
    }
}

/// Asserts that each row equals gimli's evaluation of an entry in the damaged file: no row is invented. Returns the number of
/// addresses with a rule.
fn assert_founded(elf: &[u8]) -> usize {
    let (Ok(rows), Ok(file)) = (compile(elf), object::File::parse(elf)) else { return 0 };
    let Some(section) = file.section_by_name(".eh_frame") else { return 0 };
    let Ok(bytes) = section.data() else { return 0 };
    let eh_frame = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = Vec::new();
    let mut all = eh_frame.entries(&bases);
    while let Ok(Some(entry)) = all.next() {
        if let CieOrFde::Fde(partial) = entry {
            entries.extend(partial.parse(EhFrame::cie_from_offset));
        }
    }
    let mut context = UnwindContext::new();
    let mut said = 0;
    let starts: Vec<_> = rows.rows().iter().map(|row| rows.text_start() + u64::from(row.address())).collect();
    let ends = starts.iter().skip(1).map(|next| next - 1);
    for address in starts.iter().copied().chain(ends) {
        let machine = Machine { instruction_pointer: address };
        let found = machine.apply(rows.find(address));
        if matches!(found, Frame::Unknown | Frame::Unsupported) {
            continue;
        }
        let says_so = |entry: &gimli::FrameDescriptionEntry<_>| {
            if !entry.contains(address) {
                return false;
            }
            let rules = entry.unwind_info_for_address(&eh_frame, &bases, &mut context, address);
            let expected = rules.ok().and_then(|it| machine.evaluate(&eh_frame, entry, it));
            expected.as_ref() == Some(&found)
        };
        assert!(entries.iter().any(says_so), "{found:?} at {address:#x} is made up");
        said += 1;
    }
    said
}

/// File range of `.eh_frame`.
fn place_of_frames(elf: &[u8]) -> Range<usize> {
    let file = object::File::parse(elf).unwrap();
    let (offset, size) = file.section_by_name(".eh_frame").unwrap().file_range().unwrap();
    let [start, end] = [offset, offset + size].map(|at| usize::try_from(at).unwrap());
    start..end
}

#[test]
fn rows_of_a_sound_file_are_founded() {
    assert!(assert_founded(&TestElf::new(0x1000, sound_frames()).build()) > 6);
}

#[test]
fn no_single_byte_of_call_frame_information_that_is_damaged_makes_a_rule_of_its_own() {
    let sound = TestElf::new(0x1000, sound_frames()).build();
    for at in place_of_frames(&sound) {
        let mut elf = sound.clone();
        for byte in 0..=u8::MAX {
            elf[at] = byte;
            assert_founded(&elf);
        }
    }
}

/// With `cargo xtask test --long` this is a small fuzzer.
fn cases() -> u32 {
    if is_long() { 20_000 } else { 2000 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_are_survived(
        section_headers: bool, damage in vec((any::<Index>(), any::<u8>()), 1..12), cut in any::<Index>(), whole: bool,
    ) {
        let mut elf = sound(section_headers);
        for (at, byte) in damage {
            let at = at.index(elf.len());
            elf[at] = byte;
        }
        let len = if whole { elf.len() } else { cut.index(elf.len()) };
        survive(&elf[..len]);
    }

    #[test]
    fn damaged_call_frame_information_is_survived(damage in vec((any::<Index>(), any::<u8>()), 1..6)) {
        let mut elf = sound(true);
        // Headers and code take 64 + 3 * 56 + 0x1000 bytes.
        let frames = &mut elf[0x10e8..];
        for (at, byte) in damage {
            let at = at.index(frames.len());
            frames[at] = byte;
        }
        survive(&elf);
    }

    #[test]
    fn damaged_call_frame_information_makes_no_rule_of_its_own(
        damage in vec((any::<Index>(), any::<u8>()), 1..6),
    ) {
        let mut elf = TestElf::new(0x1000, sound_frames()).build();
        // The headers that point to it stay intact: otherwise it would be unclear which of several tables applies.
        let frames = place_of_frames(&elf);
        for (at, byte) in damage {
            elf[frames.start + at.index(frames.len())] = byte;
        }
        assert_founded(&elf);
    }
}

#[test]
fn every_prefix_of_a_file_is_survived() {
    let elf = sound(true);
    for len in 0..elf.len() {
        survive(&elf[..len]);
    }
    assert_eq!(compile(&*elf).unwrap().statistics().entries, 4);
}

#[test]
fn other_files_are_refused() {
    assert!(matches!(compile(&b"#!/bin/sh"[..]), Err(Error::Parse(_))));
    let mut arm = sound(true);
    arm[18] = 183;
    assert!(matches!(compile(&*arm), Err(Error::Machine(183))));
    let mut data_only = sound(true);
    data_only[64 + 4] = 6;
    assert!(matches!(compile(&*data_only), Err(Error::NoCode)));
}

/// A file with one function, which has these instructions.
fn with_instructions(code_bytes: u32, instructions: &[u8]) -> Vec<u8> {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", AT_ENTRY);
    frames.fde(cie, CODE_ADDRESS, code_bytes, instructions);
    TestElf::new(u64::from(code_bytes), frames).build()
}

#[test]
fn more_functions_than_any_module_has_are_refused() {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", AT_ENTRY);
    for _ in 0..=MAX_FUNCTIONS {
        frames.fde(cie, CODE_ADDRESS, 1, &[]);
    }
    let elf = TestElf::new(64, frames).build();
    assert!(matches!(compile(&*elf), Err(Error::TooManyFunctions)));
}

#[test]
fn states_are_not_remembered_without_end() {
    let rows = compile(&*with_instructions(64, &vec![0x0a; 1 << 20])).unwrap();
    assert_eq!(rows.rows()[1].kind(), RowKind::Unsupported as u64);
    assert_eq!(rows.statistics().unsupported(Unsupported::Malformed), 1);
}

#[test]
fn instructions_behind_the_end_of_the_code_are_not_followed() {
    let rows = compile(&*with_instructions(64, &[0x41, 0x0e, 16].repeat(1 << 18))).unwrap();
    assert_eq!(rows.rows().len(), 4);
}

#[test]
fn more_rows_than_any_module_has_are_refused() {
    let code_bytes = u32::try_from(MAX_ROWS).unwrap() + 64;
    let instructions = [0x41, 0x0e, 16, 0x41, 0x0e, 8].repeat(MAX_ROWS / 2 + 8);
    assert!(matches!(compile(&*with_instructions(code_bytes, &instructions)), Err(Error::TooManyRows)));
}

#[test]
fn a_long_common_part_is_not_evaluated_for_each_entry() {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", &[AT_ENTRY, &vec![0; 1 << 20]].concat());
    for function in 0..10_000 {
        frames.fde(cie, CODE_ADDRESS + function, 1, &[]);
    }
    let elf = TestElf::new(10_000, frames).build();
    assert!(matches!(compile(&*elf), Err(Error::NoCallFrames)));
}

#[test]
fn code_is_not_read_to_find_call_frame_information_without_section_headers() {
    let elf = TestElf { section_headers: false, ..TestElf::new(1 << 20, sound_frames()) }.build();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&elf).unwrap();
    let lazy = LazyFile::new(&file).unwrap();
    let rows = compile_described(Content::from(&lazy)).unwrap();
    let held = lazy.held().iter().filter(|held| **held).count();
    assert!(rows.statistics().entries > 0 && held <= 2, "{held} blocks");
}

#[test]
fn the_index_reaches_over_a_gap_between_segments() {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", AT_ENTRY);
    frames.fde(cie, CODE_ADDRESS, 64, &[]).fde(cie, FRAMES_ADDRESS, 4, &[]);
    let mut elf = TestElf::new(64, frames).build();
    elf[64 + 56 + 4] = 5; // the second segment is executable too
    let rows = compile(&*elf).unwrap();
    assert_eq!(rows.pages().len() as u64, (FRAMES_ADDRESS - rows.text_start()) / PAGE_BYTES + 2);
    assert_eq!(rows.find(FRAMES_ADDRESS - 1).unwrap().kind(), RowKind::None as u64);
    assert_eq!(rows.find(FRAMES_ADDRESS + 3).unwrap().kind(), RowKind::Sp as u64);
}
