//! Rows of the C function with which cgo starts a thread's Go code: `crosscall1`, called `crosscall_amd64` before Go 1.20.
//!
//! It is assembly without call frame information, and stripped programs have no symbol for it. Its code is the same in all
//! versions (`runtime/cgo/gcc_amd64.S`).

use jjleak_common::unwind::{Row, RowKind, SavedFp};

/// `push` of `rbx`, `rbp` and `r12` to `r15`; `mov %rdi, %rbx; mov %rdx, %rdi; call *%rsi; call *%rbx`; `pop` of all registers in
/// the opposite order; `ret`.
pub(super) const CODE: &[u8] = &[
    0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x48, 0x89, 0xfb, 0x48, 0x89, 0xd7, 0xff,
    0xd6, 0xff, 0xd3, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3,
];

/// Distance of the instructions that move the stack pointer from the function's start, and the CFA's offset in words before the
/// first and after each.
const CFAS: [(u32, u64); 13] = [
    (0, 1),
    (1, 2),
    (2, 3),
    (4, 4),
    (6, 5),
    (8, 6),
    (10, 7),
    (22, 6),
    (24, 5),
    (26, 4),
    (28, 3),
    (29, 2),
    (30, 1),
];

/// Words from the CFA to the caller's frame pointer, the second register on the stack.
const FRAME_POINTER_FROM_CFA: i64 = -3;

/// The function's rows if it starts at `begin`.
pub(super) fn rows(begin: u32) -> impl Iterator<Item = Row> {
    CFAS.into_iter().filter_map(move |(distance, words)| {
        let address = begin + distance;
        if words < FRAME_POINTER_FROM_CFA.unsigned_abs() {
            return Row::new(address, RowKind::Sp, words, SavedFp::Register, 0);
        }
        Row::new(address, RowKind::Sp, words, SavedFp::AtCfa, FRAME_POINTER_FROM_CFA)
    })
}
