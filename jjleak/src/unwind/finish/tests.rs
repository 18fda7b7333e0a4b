use std::collections::BTreeMap;

use jjleak_common::unwind::ToScheduler;

use super::*;

const PAGE: u64 = 0x7fff_0000_0000;
const SP: u64 = PAGE + 0x100;
const STACK: u64 = 2 * PAGE_BYTES;
/// Return addresses: of functions that keep the frame pointer, that do not, and of the outermost one.
const BY_FP: u64 = 0x1000;
const BY_SP: u64 = 0x2000;
const ROOT: u64 = 0x3000;
const LAYER: u16 = 3;

/// A stack of two pages with these words at offsets from the stack pointer; the walk stands at `at`.
fn copy(at: u64, frame_pointer: u64, words: &[(u64, u64)]) -> StackCopy {
    let mut bytes = [0; 2 * StackCopy::PAGE_BYTES];
    for (offset, word) in words {
        let at = usize::try_from(SP + offset - PAGE).unwrap();
        bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
    let (pages, _) = bytes.as_chunks();
    let walk = Unfinished {
        hash: 1,
        row: 0,
        image: 1,
        taken_ns: 0,
        instruction_pointer: at,
        stack_pointer: SP,
        frame_pointer,
        base_saved: 0,
        stack_begin: PAGE,
        stack_end: PAGE + STACK,
        copied_at: PAGE,
        copied_pages: 3,
        after_call: 1,
        unproven: 0,
        by_frame_pointer: 0,
        frame_pointer_hashed: 1,
        reserved: [0; 4],
    };
    StackCopy {
        walk,
        pages: pages.iter().map(|page| Some(Arc::new(StackPage::new(page, &Arc::default())))).collect(),
        hashed: vec![u64::MAX; 16],
    }
}

fn rows() -> BTreeMap<u64, Row> {
    let row = |kind, offset, saved, fp_offset| Row::new(0, kind, offset, saved, fp_offset).unwrap();
    BTreeMap::from([
        (BY_FP, row(RowKind::Fp, 2, SavedFp::AtCfa, -2)),
        (BY_SP, row(RowKind::Sp, 4, SavedFp::Register, 0)),
        (ROOT, Row::plain(0, RowKind::End)),
    ])
}

/// The same copy, with the word at this offset from the stack pointer not hashed.
fn without(mut copy: StackCopy, offset: u64) -> StackCopy {
    let place = usize::try_from((SP + offset - PAGE) / WORD).unwrap();
    copy.hashed[place / 64] &= !(1 << (place % 64));
    copy
}

fn walk(copy: &StackCopy, rows: &BTreeMap<u64, Row>) -> Finished {
    // Rows are those of the calls, a byte in front of return addresses.
    finish(copy, &[StackFrame(7)], |address| {
        rows.get(&(address + 1)).map_or(Code::Unknown, |row| Code::Known(*row, LAYER))
    })
}

fn addresses(finished: &Finished) -> Vec<u64> {
    finished.frames.iter().map(|frame| frame.address()).collect()
}

#[test]
fn a_walk_goes_on_behind_the_known_frames_to_the_root() {
    // 32 bytes up, the caller keeps its frame pointer; its CFA is 16 bytes above.
    let frame = SP + 0x40;
    let copy = copy(BY_SP, frame, &[(0x18, BY_FP), (0x40, 0), (0x48, ROOT)]);

    let finished = walk(&copy, &rows());

    assert_eq!(addresses(&finished), [7, BY_SP, BY_FP, ROOT]);
    assert_eq!(finished.status, StackStatus::Complete);
    assert!(finished.frames[1..].iter().all(|frame| frame.layer() == LAYER));
}

#[test]
fn a_stack_through_a_frame_without_rows_is_not_called_complete() {
    let mut rows = rows();
    rows.insert(BY_FP, Row::plain(0, RowKind::FramePointer));
    let copy = copy(BY_SP, SP + 0x40, &[(0x18, BY_FP), (0x40, 0), (0x48, ROOT)]);

    let finished = walk(&copy, &rows);

    assert_eq!(
        (addresses(&finished), finished.status),
        (vec![7, BY_SP, BY_FP, ROOT], StackStatus::FramePointers)
    );
    assert!(finished.frames[3].is_by_frame_pointer() && !finished.frames[2].is_by_frame_pointer());
}

/// Frames and status of a walk, and whether it awaits code.
fn outcome(finished: &Finished) -> (Vec<u64>, StackStatus, bool) {
    (addresses(finished), finished.status, finished.awaits_code)
}

#[test]
fn a_walk_that_leaves_what_was_copied_keeps_its_frames_and_stays_unfinished() {
    let row = |words| Row::new(0, RowKind::Sp, words, SavedFp::Register, 0).unwrap();
    let far = BTreeMap::from([(BY_SP, row(STACK / WORD))]);
    let unfinished = (vec![7, BY_SP], StackStatus::NoMapping, false);
    assert_eq!(outcome(&walk(&copy(BY_SP, 0, &[]), &far)), unfinished);
    // A page without memory has no words, which are not zero.
    let mut absent = copy(BY_SP, 0, &[]);
    absent.pages[1] = None;
    let into_page = BTreeMap::from([(BY_SP, row(PAGE_BYTES / WORD))]);
    assert_eq!(outcome(&walk(&absent, &into_page)), unfinished);
}

#[test]
fn a_word_that_was_not_hashed_decides_nothing() {
    let unfinished = |frames: &[u64]| (frames.to_vec(), StackStatus::NoMapping, false);
    let words = [(0x18, BY_FP), (0x40, 0), (0x48, ROOT)];
    let all = copy(BY_SP, SP + 0x40, &words);
    assert_eq!(outcome(&walk(&without(all.clone(), 0x18), &rows())), unfinished(&[7, BY_SP]));
    assert_eq!(outcome(&walk(&without(all.clone(), 0x48), &rows())), unfinished(&[7, BY_SP, BY_FP]));
    // The saved frame pointer is not used by the outer frame.
    assert_eq!(walk(&without(all, 0x40), &rows()).status, StackStatus::Complete);
    // A return address of zero that was not hashed can be any word in another stack of the row.
    let zero = without(copy(BY_SP, 0, &[]), 0x18);
    assert_eq!(outcome(&walk(&zero, &rows())), unfinished(&[7, BY_SP]));
}

#[test]
fn a_saved_frame_pointer_that_was_not_hashed_is_not_followed() {
    let words = [(0x18, BY_FP), (0x40, SP + 0x60), (0x48, BY_FP), (0x60, 0), (0x68, ROOT)];
    let all = copy(BY_SP, SP + 0x40, &words);
    assert_eq!(walk(&all, &rows()).status, StackStatus::Complete);
    let finished = walk(&without(all.clone(), 0x40), &rows());
    assert_eq!(outcome(&finished), (vec![7, BY_SP, BY_FP, BY_FP], StackStatus::NoMapping, false));
    let mut register = copy(BY_FP, SP + 0x40, &[(0x40, 0), (0x48, ROOT)]);
    register.walk.frame_pointer_hashed = 0;
    assert_eq!(outcome(&walk(&register, &rows())), (vec![7, BY_FP], StackStatus::NoMapping, false));
    // In code without call frame information, it need not be one.
    let mut by_frame_pointers = rows();
    by_frame_pointers.insert(BY_FP, Row::plain(0, RowKind::FramePointer));
    assert_eq!(walk(&all, &by_frame_pointers).status, StackStatus::FramePointers);
    assert_eq!(walk(&without(all, 0x40), &by_frame_pointers).status, StackStatus::BrokenChain);
}

#[test]
fn the_word_that_leads_to_a_realigned_frame_is_hashed() {
    let mut rows = rows();
    rows.insert(BY_SP, Row::new(0, RowKind::Deref, 0, SavedFp::AtFp, -1).unwrap());
    let all = copy(BY_SP, SP + 0x40, &[(0x38, SP + 0x80), (0x40, 0), (0x78, ROOT)]);
    assert_eq!(walk(&all, &rows).status, StackStatus::Complete);
    let finished = walk(&without(all, 0x38), &rows);
    assert_eq!(outcome(&finished), (vec![7, BY_SP], StackStatus::NoMapping, false));
}

#[test]
fn bits_below_the_walks_first_word_are_not_its_own() {
    let rows = BTreeMap::from([(BY_SP, Row::new(0, RowKind::Base, 2, SavedFp::Register, 0).unwrap())]);
    let mut below = copy(BY_SP, 0, &[(0x28, ROOT)]);
    below.walk.base_saved = 0x10;
    assert!(below.is_hashed(SP - 0x10) && !below.is_hashed(SP - 0x18));
    assert_eq!(walk(&below, &rows).status, StackStatus::BadFrame);
}

#[test]
fn a_frame_that_needs_more_than_the_stack_leaves_it_unfinished() {
    let fields = ToScheduler { cfa: 1, goroutine_at: 1, room: 1, thread_in_g: 1, pointer_in_g: 1 };
    let rows = BTreeMap::from([(BY_SP, Row::go_to_scheduler(0, &fields).unwrap())]);
    let finished = walk(&copy(BY_SP, 0, &[]), &rows);
    assert_eq!(outcome(&finished), (vec![7, BY_SP], StackStatus::NoMapping, false));
}

#[test]
fn a_rule_that_rows_cannot_express_ends_the_walk_behind_its_frame() {
    let rows = BTreeMap::from([(BY_SP, Row::plain(0, RowKind::Unsupported))]);
    let finished = walk(&copy(BY_SP, 0, &[]), &rows);
    assert_eq!(outcome(&finished), (vec![7, BY_SP], StackStatus::Unsupported, false));
}

#[test]
fn a_walk_that_a_signal_leads_to_another_stack_stays_unfinished() {
    let mut rows = rows();
    rows.insert(BY_FP, Row::plain(0, RowKind::Signal));
    // The row at the address itself: no call is in front of it.
    rows.insert(BY_SP + 1, Row::plain(0, RowKind::FramePointer));
    let other = PAGE - (1 << 20);
    let registers = [(40 + 10 * 8, SP + 0x400), (40 + 15 * 8, other), (40 + 16 * 8, BY_SP)];
    let finished = walk(&copy(BY_FP, 0, &registers), &rows);
    assert_eq!(outcome(&finished), (vec![7, BY_FP, BY_SP], StackStatus::NoMapping, false));
}

#[test]
fn code_that_stays_unknown_and_impossible_frames_end_the_walk_with_their_status() {
    let unknown = walk(&copy(BY_SP, 0, &[(0x18, 0x9999)]), &rows());
    assert_eq!(outcome(&unknown), (vec![7, BY_SP], StackStatus::NoMapping, true));
    // The frame pointer leads below the stack pointer.
    let below = walk(&copy(BY_FP, SP - 0x80, &[]), &rows());
    assert_eq!(below.status, StackStatus::BadFrame);
    let zero = walk(&copy(BY_SP, 0, &[]), &rows());
    assert_eq!(outcome(&zero), (vec![7, BY_SP], StackStatus::Complete, false));
}

#[test]
fn a_frame_that_a_signal_interrupted_is_not_behind_a_call() {
    let mut rows = rows();
    rows.insert(BY_FP, Row::plain(0, RowKind::Signal));
    // The row at the address itself: no call is in front of it.
    rows.insert(ROOT + 1, Row::plain(0, RowKind::End));
    let copy = copy(BY_FP, 0, &[(40 + 15 * 8, SP + 0x400), (40 + 16 * 8, ROOT)]);

    let finished = walk(&copy, &rows);

    assert_eq!((addresses(&finished), finished.status), (vec![7, BY_FP, ROOT], StackStatus::Complete));
}

#[test]
fn a_trampoline_finds_its_frame_by_the_register_that_the_called_frame_has_saved() {
    let mut rows = rows();
    rows.insert(BY_FP, Row::new(0, RowKind::Base, 2, SavedFp::Register, 0).unwrap());
    let mut copy = copy(BY_FP, 0, &[(0x30, 0), (0x38, ROOT)]);
    let base = SP + 0x30;
    let page = Arc::get_mut(copy.pages[0].as_mut().unwrap()).unwrap();
    let at = usize::try_from(SP - 0x10 - PAGE).unwrap();
    page.bytes[at..at + 8].copy_from_slice(&base.to_ne_bytes());
    assert_eq!(walk(&copy, &rows).status, StackStatus::Unsupported, "where it was saved is not known");
    copy.walk.base_saved = 0x10;

    let finished = walk(&copy, &rows);

    assert_eq!((addresses(&finished), finished.status), (vec![7, BY_FP, ROOT], StackStatus::Complete));
}

/// Frame pointer of an interpreted frame, the words that describe it, and the stack pointer of its caller.
const INTERPRETED: u64 = SP + 0x80;
const METHOD: u64 = 0x7f00_0000_1000;
const BYTECODE: u64 = 0x7f00_0000_2345;
const IN_INTERPRETER: u64 = 0x5000;

/// A stack that stands in the interpreter, called by compiled code with a frame of six words.
fn interpreted() -> StackCopy {
    let sender = INTERPRETED + 0x20;
    let words = [
        (INTERPRETED - SP - 0x40, BYTECODE),
        (INTERPRETED - SP - 0x18, METHOD),
        (INTERPRETED - SP - 0x08, sender),
        (INTERPRETED - SP, SP + 0xf0),
        (INTERPRETED - SP + 8, BY_SP),
        (sender - SP + 0x28, ROOT),
    ];
    copy(IN_INTERPRETER, INTERPRETED, &words)
}

fn walk_java(copy: &StackCopy) -> Finished {
    let compiled = Row::new(0, RowKind::Sp, 6, SavedFp::AtCfa, -2).unwrap();
    finish(copy, &[StackFrame(7)], |address| match address + 1 {
        IN_INTERPRETER => Code::Interpreter,
        BY_SP => Code::Known(compiled, LAYER),
        ROOT => Code::Known(Row::plain(0, RowKind::End), LAYER),
        _ => Code::Unknown,
    })
}

#[test]
fn interpreted_and_compiled_java_frames_lead_to_their_callers() {
    let finished = walk_java(&interpreted());
    assert_eq!(finished.status, StackStatus::Complete);
    assert_eq!(finished.frames[1], InterpretedFrame::pack(METHOD, BYTECODE));
    assert_eq!(addresses(&finished)[2..], [BY_SP, ROOT]);
}

#[test]
fn an_interpreted_frame_is_known_only_by_words_that_all_stacks_of_the_row_have() {
    for below in [interpreter::SENDER_STACK_POINTER, interpreter::METHOD, interpreter::BYTECODE] {
        let finished = walk_java(&without(interpreted(), INTERPRETED - SP - below));
        assert_eq!(outcome(&finished), (vec![7], StackStatus::NoMapping, false), "{below}");
    }
    let bad = copy(IN_INTERPRETER, INTERPRETED, &[(INTERPRETED - SP - 0x18, METHOD + 1)]);
    assert_eq!(walk_java(&bad).status, StackStatus::BadFrame);
}

#[test]
fn the_wrapper_of_a_native_method_is_left_by_its_frame_pointer_if_that_is_its_own() {
    let words = |frame: u64| [(frame, SP + 0xf0), (frame + 8, ROOT), (0x28, ROOT)];
    let walk = |copy: &StackCopy| {
        finish(copy, &[StackFrame(7)], |address| match address + 1 {
            BY_SP => Code::Wrapper(6, LAYER),
            _ => Code::Known(Row::plain(0, RowKind::End), LAYER),
        })
    };
    for frame in [0x20, 0x30, 0x60] {
        let finished = walk(&copy(BY_SP, SP + frame, &words(frame)));
        assert_eq!((addresses(&finished), finished.status), (vec![7, BY_SP, ROOT], StackStatus::Complete));
    }
    let mut unhashed = copy(BY_SP, SP + 0x60, &words(0x60));
    unhashed.walk.frame_pointer_hashed = 0;
    assert_eq!(outcome(&walk(&unhashed)), (vec![7], StackStatus::NoMapping, false));
}
