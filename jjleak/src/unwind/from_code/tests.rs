//! Rows from code against the call frame information of the same code, and by hand.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use jjleak_common::unwind::{Row, RowKind, SavedFp};

use super::functions::{self, Described};
use super::known::{Known, code_sections, search};
use super::{Code, Gaps};
use crate::file_content::{Content, LazyFile};
use crate::unwind::{compile, compile_described};

const BEGIN: u64 = 0x1000;

/// Rows of the code by offset. A function begins at its beginning, and others at `starts`.
fn rows(code: &[u8], starts: &[u64]) -> Vec<(u64, Row)> {
    let end = BEGIN + code.len() as u64;
    let known = Known {
        elf: Content::from(code),
        sections: Vec::new(),
        certain: starts.iter().map(|offset| BEGIN + offset).chain([BEGIN]).collect(),
        doubtful: HashSet::new(),
        has_all: true,
    };
    let gaps = Gaps(std::iter::once(BEGIN..end).collect());
    let described = functions::describe(&Code { bytes: vec![(BEGIN, code)], gaps }, &known);
    described.iter().map(|it| (it.address - BEGIN, it.row)).collect()
}

fn by_sp(words: u64, saved_at: Option<i64>) -> Row {
    let saved = if saved_at.is_some() { SavedFp::AtCfa } else { SavedFp::Register };
    Row::new(0, RowKind::Sp, words, saved, saved_at.unwrap_or_default()).unwrap()
}

#[test]
fn a_function_is_followed_along_its_branches() {
    // push %rbp; sub $16, %rsp; test %edi, %edi; je 1f; xor %ebp, %ebp; 1: add $16, %rsp; pop %rbp; ret
    let code =
        [0x55, 0x48, 0x83, 0xec, 16, 0x85, 0xff, 0x74, 2, 0x31, 0xed, 0x48, 0x83, 0xc4, 16, 0x5d, 0xc3];
    let rows = rows(&code, &[]);
    assert_eq!(rows.len(), 8);
    assert_eq!(rows[0], (0, by_sp(1, None)));
    assert_eq!(rows[2], (5, by_sp(4, Some(-2))));
    // Whether the register still has it depends on the way; the word on the stack has it in any case.
    assert_eq!(rows[5], (11, by_sp(4, Some(-2))));
    assert_eq!(rows[7], (16, by_sp(1, None)));
}

#[test]
fn ways_that_disagree_have_no_rows() {
    // test %edi, %edi; je 1f; push %rax; 1: ret
    assert_eq!(rows(&[0x85, 0xff, 0x74, 1, 0x50, 0xc3], &[]), []);
}

#[test]
fn a_frame_pointer_that_is_used_for_something_else_is_found_where_it_was_saved() {
    // push %rbp; mov %rdi, %rbp; call +0; pop %rbp; ret
    let code = [0x55, 0x48, 0x89, 0xfd, 0xe8, 0, 0, 0, 0, 0x5d, 0xc3];
    assert_eq!(rows(&code, &[])[2], (4, by_sp(2, Some(-2))));
}

#[test]
fn behind_a_call_that_does_not_return_begins_another_function() {
    // sub $8, %rsp; call exit; next: push %rbx; pop %rbx; ret
    let code = [0x48, 0x83, 0xec, 8, 0xe8, 0x10, 0, 0, 0, 0x53, 0x5b, 0xc3];
    // It gets no rows of this one. If it is known, it has its own.
    let own = [(0, by_sp(1, None)), (4, by_sp(2, None))];
    assert_eq!(rows(&code, &[]), own);
    let others = [(9, by_sp(1, None)), (10, by_sp(2, None)), (11, by_sp(1, None))];
    assert_eq!(rows(&code, &[9]), [&own[..], &others].concat());
}

#[test]
fn a_function_can_end_with_a_call() {
    // push %rbx; call *%rax; test %eax, %eax; je 1f; pop %rbx; ret; nop; 1: call *%rcx; next: ret
    let code = [0x53, 0xff, 0xd0, 0x85, 0xc0, 0x74, 3, 0x5b, 0xc3, 0x90, 0xff, 0xd1, 0xc3];
    let found: Vec<_> = rows(&code, &[12]).into_iter().map(|(at, _)| at).collect();
    assert_eq!(found, [0, 1, 3, 5, 7, 8, 12]);
}

#[test]
fn a_thread_begins_where_the_frame_pointer_is_cleared() {
    // As musl's clone: test %eax, %eax; jne 1f; xor %ebp, %ebp; pop %rdi; call *%r9; hlt; 1: ret
    let code = [0x85, 0xc0, 0x75, 7, 0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1, 0xf4, 0xc3];
    let rows = rows(&code, &[]);
    assert_eq!(rows[3], (6, Row::plain(0, RowKind::End)));
    assert_eq!(rows[4], (7, Row::plain(0, RowKind::End)));
    assert_eq!(rows[5], (11, by_sp(1, None)));
}

#[test]
fn an_aligned_stack_is_left_by_the_frame_pointer() {
    // push %rbp; mov %rsp, %rbp; and $-32, %rsp; call *%rax; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xe0, 0xff, 0xd0, 0xc9, 0xc3];
    let aligned = Row::new(0, RowKind::Fp, 2, SavedFp::AtCfa, -2).unwrap();
    let rows = rows(&code, &[]);
    assert_eq!((rows[3], rows[5]), ((8, aligned), (11, by_sp(1, None))));
}

#[test]
fn a_place_to_jump_to_is_no_function() {
    // push %rbx; lea 1f(%rip), %rax; jmp *%rax; 1: call *%rbx; jmp *%rax: an interpreter, whose instructions jump to the next one.
    let code = [0x53, 0x48, 0x8d, 0x05, 2, 0, 0, 0, 0xff, 0xe0, 0xff, 0xd3, 0xff, 0xe0];
    assert_eq!(rows(&code, &[]), [(0, by_sp(1, None)), (1, by_sp(2, None)), (8, by_sp(2, None))]);
}

#[test]
fn what_is_no_function_has_no_rows() {
    // A return that finds no return address; an unknown stack pointer; no code.
    for code in [&[0x50, 0xc3][..], &[0x48, 0x89, 0xc4, 0xc3], &[0x06], &[]] {
        assert_eq!(rows(code, &[]), [], "{code:x?}");
    }
}

/// Compares all instructions of a file's functions with its call frame information. Returns how many agree, and how many do not.
fn compare(path: &Path) -> (u32, u32) {
    let file = fs::read(path).unwrap();
    let elf = Content::from(&*file);
    let described = compile_described(elf).unwrap();
    let sections = code_sections(elf).unwrap();
    let gaps = Gaps(sections.iter().map(|section| section.addresses.clone()).collect());
    let known = Known::locate(elf, sections.clone(), &gaps).unwrap();
    let code = Code::read(elf, &sections, gaps);
    let (mut agreeing, mut disagreeing) = (0, 0);
    for Described { address, row: found, .. } in functions::describe(&code, &known) {
        let Some(row) = described.find(address) else { continue };
        // By the other register; or nothing is said of it.
        if found.kind() != row.kind() || row.kind() != RowKind::Sp as u64 {
            continue;
        }
        let same = found.offset_bytes() == row.offset_bytes() && saves_alike(found, row);
        *(if same { &mut agreeing } else { &mut disagreeing }) += 1;
    }
    (agreeing, disagreeing)
}

/// From where the frame pointer is saved up to where it changes, both the word and the register have it.
fn saves_alike(found: Row, row: Row) -> bool {
    let has_register = [found, row].iter().any(|row| row.saved() == SavedFp::Register as u64);
    has_register || (found.saved(), found.fp_offset_bytes()) == (row.saved(), row.fp_offset_bytes())
}

#[test]
fn rows_from_code_are_those_of_the_call_frame_information() {
    let own = std::env::current_exe().unwrap();
    let (agreeing, disagreeing) = compare(&own);
    assert!(agreeing > 100_000 && disagreeing * 10_000 < agreeing, "{agreeing}, {disagreeing}");
}

#[test]
fn padding_between_functions_does_not_make_all_code_be_read() {
    let own = fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let file = LazyFile::new(&own).unwrap();
    let elf = Content::from(&file);

    compile(elf).unwrap();

    let held = file.held().iter().filter(|is_held| **is_held).count() as u64 * (64 << 10);
    let code: u64 = code_sections(elf).unwrap().iter().map(|it| it.addresses.end - it.addresses.start).sum();
    assert!(held * 2 < code, "{held} of {code} bytes");
}

#[test]
fn a_call_at_the_end_of_a_piece_that_is_read_leads_to_a_function() {
    const LENGTH: usize = (1 << 20) + 100;
    let function = BEGIN + LENGTH as u64;
    // Each has one call, which begins so many bytes before the second piece, between instructions of one byte.
    for before in 0..20 {
        let at = (1 << 20) - before;
        let mut content = vec![0x90; LENGTH];
        let distance = u32::try_from(LENGTH - (at + 5)).unwrap();
        content[at] = 0xe8;
        content[at + 1..at + 5].copy_from_slice(&distance.to_le_bytes());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&content, 0).unwrap();
        let file = LazyFile::new(&file).unwrap();
        let code =
            Code { bytes: Vec::new(), gaps: Gaps(std::iter::once(function..function + 100).collect()) };
        let mut starts = BTreeSet::new();

        search(Content::from(&file), BEGIN, 0..LENGTH as u64, &code, &mut starts);

        assert_eq!(starts, [function].into(), "{before}");
    }
}
