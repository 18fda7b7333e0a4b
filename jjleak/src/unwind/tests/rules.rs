//! Tests with synthetic call frame information: one rule, one row.

use jjleak_common::unwind::{Row, RowKind, SavedFp};
use proptest::{collection::vec, prelude::*};

use super::evaluated::Evaluated;
use crate::unwind::{
    Error, ModuleRows, Unsupported, compile_described,
    test_elf::{AT_ENTRY, BASE, CODE_ADDRESS, FP, Frames, KERNELS_FRAME, RA, SP, TestElf},
};

const CODE_BYTES: u64 = 0x4000;
/// Distance of the code from the start of its first page.
const FIRST: u32 = 0x10;

/// The rows of one function of 64 bytes at the start of the code.
fn function(instructions: &[u8]) -> ModuleRows {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", AT_ENTRY);
    frames.fde(cie, CODE_ADDRESS, 64, instructions);
    compile_described(&*TestElf::new(CODE_BYTES, frames).build()).unwrap()
}

/// The only row of a function with constant rules.
fn row(instructions: &[u8]) -> Row {
    let rows = function(instructions);
    let [before, row, after] = rows.rows() else { panic!("{:?}", rows.rows()) };
    assert_eq!([*before, *after], [none(0), none(FIRST + 64)]);
    *row
}

fn none(address: u32) -> Row {
    Row::plain(address, RowKind::None)
}

fn unsupported(instructions: &[u8], reason: Unsupported) {
    let rows = function(instructions);
    assert_eq!(rows.rows()[1], Row::plain(FIRST, RowKind::Unsupported));
    assert_eq!(rows.statistics().unsupported(reason), 1);
}

/// The linkers' `DW_CFA_def_cfa_expression` for `.plt`.
fn plt(threshold: u8) -> Vec<u8> {
    vec![0x0f, 11, 0x70 + SP, 8, 0x70 + RA, 0, 0x3f, 0x1a, 0x30 + threshold, 0x2a, 0x33, 0x24, 0x22]
}

/// `DW_CFA_expression`: the frame pointer is saved where it points to.
const FP_AT_FP: [u8; 5] = [0x10, FP, 2, 0x70 + FP, 0];

#[test]
fn a_function_is_followed_instruction_by_instruction() {
    // push %rbp: CFA at SP + 16, saved at CFA - 16; mov %rsp, %rbp: CFA at FP + 16; leave: at SP + 8
    let rows = function(&[0x41, 0x0e, 16, 0x80 | FP, 2, 0x43, 0x0d, FP, 0x70, 0x0c, SP, 8]);
    let at = |distance, kind, offset| Row::new(FIRST + distance, kind, offset, SavedFp::AtCfa, -2).unwrap();
    assert_eq!(
        rows.rows()[..4],
        [
            none(0),
            Row::new(FIRST, RowKind::Sp, 1, SavedFp::Register, 0).unwrap(),
            at(1, RowKind::Sp, 2),
            at(4, RowKind::Fp, 2)
        ]
    );
}

#[test]
fn a_plt_entry_is_known_by_its_threshold() {
    for threshold in [0, 6, 11, 31] {
        let expected = Row::new(FIRST, RowKind::Plt, u64::from(threshold), SavedFp::Register, 0);
        assert_eq!(Some(row(&plt(threshold))), expected);
    }
}

#[test]
fn a_realigned_frame_is_reached_through_memory() {
    // DW_CFA_def_cfa_expression: breg6 -16, deref
    let mut instructions = vec![0x0f, 3, 0x70 + FP, 0x70, 0x06];
    let deref = |saved| Row::new(FIRST, RowKind::Deref, 0, saved, -2);
    assert_eq!(Some(row(&instructions)), deref(SavedFp::Register));
    instructions.extend(FP_AT_FP);
    assert_eq!(Some(row(&instructions)), deref(SavedFp::AtFp));
    instructions.extend([0x80 | FP, 2]);
    unsupported(&instructions, Unsupported::FramePointer);
    // ..., plus_uconst 24
    let plus = row(&[0x0f, 5, 0x70 + FP, 0x70, 0x06, 0x23, 24]);
    assert_eq!(Some(plus), Row::new(FIRST, RowKind::Deref, 3, SavedFp::Register, -2));
}

#[test]
fn a_sum_written_as_an_expression_is_a_sum() {
    assert_eq!(Some(row(&[0x0f, 2, 0x70 + SP, 32])), Row::new(FIRST, RowKind::Sp, 4, SavedFp::Register, 0));
}

#[test]
fn large_frames_are_followed() {
    // 128 KiB, with the frame pointer saved at CFA - 16 and the base register below it.
    let far = row(&[0x0e, 0x80, 0x80, 0x08, 0x80 | FP, 2, 0x80 | BASE, 3]);
    assert_eq!(Some(far), Row::far(FIRST, 1 << 14, SavedFp::AtCfa, -2));
    assert_eq!(far.far_offset_bytes(), 128 << 10);
}

#[test]
fn a_frame_can_be_found_by_the_base_register() {
    // glibc's loader, in the trampolines of lazy binding: CFA = rbx + 24, rbx at CFA - 24.
    let found = row(&[0x0c, BASE, 24, 0x80 | BASE, 3]);
    let expected = Row::new(FIRST, RowKind::Base, 3, SavedFp::Register, 0).unwrap();
    assert_eq!(found, expected.with_base_saved(3));
    let out_of_reach = row(&[0x0e, 16, 0x80 | BASE, 32]);
    assert_eq!(Some(out_of_reach), Row::new(FIRST, RowKind::Sp, 2, SavedFp::Register, 0));
}

#[test]
fn an_undefined_return_address_ends_the_stack() {
    assert_eq!(row(&[0x07, RA]), Row::plain(FIRST, RowKind::End));
}

#[test]
fn a_signal_frame_is_one_that_the_kernel_pushes() {
    let compiled = |instructions: &[u8]| {
        let mut frames = Frames::eh_frame();
        let cie = frames.cie("S", AT_ENTRY);
        frames.fde(cie, CODE_ADDRESS, 64, instructions);
        let rows = compile_described(&*TestElf::new(CODE_BYTES, frames).build()).unwrap();
        assert_eq!([rows.rows()[0], rows.rows()[2]], [none(0), none(FIRST + 64)]);
        (rows.rows()[1], rows.statistics().unsupported(Unsupported::SignalFrame))
    };
    assert_eq!(compiled(KERNELS_FRAME), (Row::plain(FIRST, RowKind::Signal), 0));
    assert_eq!(compiled(&[0x07, RA]), (Row::plain(FIRST, RowKind::End), 0));
    let unsupported = (Row::plain(FIRST, RowKind::Unsupported), 1);
    assert_eq!(compiled(&[]), unsupported); // at CFA - 8, as in a call
    assert_eq!(compiled(&[0x80 | RA, 2]), unsupported); // at CFA - 16
    assert_eq!(compiled(&KERNELS_FRAME[6..]), unsupported); // CFA = SP + 8
    for changed in [2, 3, 5, 8, 10] {
        let mut instructions = KERNELS_FRAME.to_vec();
        instructions[changed] -= 1;
        assert_eq!(compiled(&instructions).0.kind(), RowKind::Unsupported as u64, "byte {changed}");
    }
}

#[test]
fn what_rows_cannot_express_is_not_guessed() {
    use Unsupported::{
        CfaExpression, CfaOffset, CfaRegister, FramePointer, Malformed, ReturnAddress, StackPointer,
    };
    unsupported(&[0x0c, 10, 0], CfaRegister); // CFA = r10
    unsupported(&[0x0f, 3, 0x70 + SP, 0, 0x06], CfaExpression); // CFA = *SP
    unsupported(&[0x0f, 4, 0x70 + FP, 0, 0x06, 0x06], CfaExpression); // CFA = **FP
    unsupported(&[0x0f, 1, 0xff], CfaExpression); // no such operation
    unsupported(&[0x0f, 3, 0x70 + FP, 0x70, 0x18], CfaExpression); // in an address space without a number
    unsupported(&[0x0f, 5, 0x70 + FP, 0x70, 0xa6, 8, 1], CfaExpression); // a typed word
    unsupported(&[0x0f, 3, 0xa5, SP, 1], CfaExpression); // a typed register
    unsupported(&[0x0e, 12], CfaOffset); // half a word
    unsupported(&[0x0e, 0x80, 0x80, 0x80, 0x02], CfaOffset); // 4 MiB
    unsupported(&[0x13, 1], CfaOffset); // negative
    unsupported(&[0x09, FP, 3], FramePointer); // in rbx
    unsupported(&[0x10, FP, 2, 0x70 + SP, 0], FramePointer); // where SP points to
    unsupported(&[0x80 | FP, 0x80, 0x20], FramePointer); // 32 KiB from the CFA
    unsupported(&[0x14, SP, 1], StackPointer); // CFA - 8
    unsupported(&[0x80 | RA, 2], ReturnAddress); // at CFA - 16
    unsupported(&[0x08, RA], ReturnAddress); // in its register
    unsupported(&[0x0b], Malformed); // DW_CFA_restore_state of nothing
    unsupported(&[0x41, 0x3f], Malformed); // no such instruction, later on
}

#[test]
fn of_overlapping_entries_the_one_that_begins_last_holds() {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", AT_ENTRY);
    frames.fde(cie, CODE_ADDRESS + 16, 16, &[0x0e, 24]);
    frames.fde(cie, CODE_ADDRESS, 64, &[0x0e, 16]);
    frames.fde(cie, CODE_ADDRESS + 16, 32, &[0x0e, 32]);
    let rows = compile_described(&*TestElf::new(CODE_BYTES, frames).build()).unwrap();
    let sp = |distance, words| Row::new(FIRST + distance, RowKind::Sp, words, SavedFp::Register, 0).unwrap();
    assert_eq!(rows.rows(), [none(0), sp(0, 2), sp(16, 3), none(FIRST + 32)]);
    assert_eq!(rows.statistics().overlapping, 2);
}

#[test]
fn entries_for_no_code_are_left_out() {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", AT_ENTRY);
    frames.fde(cie, 0, 64, &[]);
    frames.fde(cie, CODE_ADDRESS + CODE_BYTES - 1, 2, &[]);
    frames.fde(cie, CODE_ADDRESS + 8, 0, &[]);
    let elf = TestElf::new(CODE_BYTES, frames).build();
    assert!(matches!(compile_described(&*elf), Err(Error::NoCallFrames)));
}

#[test]
fn debug_frame_fills_what_eh_frame_leaves_open() {
    let mut eh_frame = Frames::eh_frame();
    let cie = eh_frame.cie("", AT_ENTRY);
    eh_frame.fde(cie, CODE_ADDRESS, 32, &[0x0e, 16]);
    let mut debug_frame = Frames::debug_frame();
    let cie = debug_frame.cie("", AT_ENTRY);
    debug_frame.fde(cie, CODE_ADDRESS, 32, &[0x0e, 24]).fde(cie, CODE_ADDRESS + 32, 32, &[0x0e, 32]);
    let elf = TestElf { debug_frame: Some(debug_frame), ..TestElf::new(CODE_BYTES, eh_frame) }.build();
    let rows = compile_described(&*elf).unwrap();
    let sp = |distance, words| Row::new(FIRST + distance, RowKind::Sp, words, SavedFp::Register, 0).unwrap();
    assert_eq!(rows.rows(), [none(0), sp(0, 2), sp(32, 4), none(FIRST + 64)]);
}

#[test]
fn the_program_header_leads_to_eh_frame_when_sections_are_stripped() {
    let mut frames = Frames::eh_frame();
    let cie = frames.cie("", AT_ENTRY);
    frames.fde(cie, CODE_ADDRESS, 64, &[0x41, 0x0e, 16]);
    let elf = TestElf { section_headers: false, ..TestElf::new(CODE_BYTES, frames) }.build();
    assert_eq!(compile_described(&*elf).unwrap().rows(), function(&[0x41, 0x0e, 16]).rows());
}

/// An instruction that a compiler might emit.
fn instruction() -> impl Strategy<Value = Vec<u8>> {
    let register = prop_oneof![Just(FP), Just(SP), Just(BASE), Just(RA), 0..17_u8];
    prop_oneof![
        (0..40_u8).prop_map(|delta| vec![0x40 | delta]),
        (0..80_u8).prop_map(|offset| vec![0x0e, offset & !7]),
        register.clone().prop_map(|register| vec![0x0d, register]),
        (prop_oneof![Just(FP), Just(SP)], 0..60_u8)
            .prop_map(|(register, offset)| vec![0x0c, register, offset]),
        (0..8_u8).prop_map(|words| vec![0x80 | FP, words]),
        (0..40_u8).prop_map(|words| vec![0x80 | BASE, words]),
        register.prop_map(|register| vec![0xc0 | register]),
        (0..32_u8).prop_map(plt),
        (0..0x7f_u8).prop_map(|displacement| vec![0x0f, 3, 0x70 + FP, displacement, 0x06]),
        Just(FP_AT_FP.to_vec()),
        Just(vec![0x0a]),
        Just(vec![0x0b]),
        vec(any::<u8>(), 1..4),
    ]
}

proptest! {
    #[test]
    fn whatever_the_instructions_rows_say_what_gimli_says(
        functions in vec((0..200_u64, 1..600_u32, vec(instruction(), 0..20)), 1..6)
    ) {
        let mut frames = Frames::eh_frame();
        let cie = frames.cie("", AT_ENTRY);
        let mut address = CODE_ADDRESS;
        for (gap, len, instructions) in functions {
            address += gap;
            frames.fde(cie, address, len, &instructions.concat());
            address += u64::from(len);
        }
        let elf = TestElf::new(CODE_BYTES, frames).build();
        Evaluated::new(&elf).assert_equal(&compile_described(&*elf).unwrap(), u64::MAX);
    }
}
