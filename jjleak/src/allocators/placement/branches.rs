//! Branches into a function past its first instruction.
//!
//! Both parts measure the *sealed prefix* of a function: the number of its first bytes that control reaches only from
//! the entry, without a jump. Every call passes a probe site in the sealed prefix exactly once, and nothing else does. A branch
//! back to the entry itself does not break the seal: it passes entry and site equally often, which makes the site equivalent to
//! the entry.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use std::ops::Range;

/// Length of the prefix that the function's own branches do not enter; 0 if that cannot be known.
///
/// A jump through a register or a table may have any target. A jump through a fixed slot of memory (`jmp [rip+x]`) is a call into
/// another module and leaves the function.
pub(super) fn sealed_within(code: &[u8]) -> u64 {
    let mut sealed = code.len() as u64;
    for instruction in Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        match target_of(&instruction) {
            Target::Next | Target::At(0) => {}
            Target::At(target) => sealed = sealed.min(target),
            Target::Unknown => return 0,
        }
    }
    sealed
}

enum Target {
    /// The next instruction, or code outside the function.
    Next,
    /// This offset from the entry, among others; "negative" ones wrap around.
    At(u64),
    Unknown,
}

fn target_of(instruction: &Instruction) -> Target {
    if instruction.is_invalid() {
        return Target::Unknown;
    }
    match (instruction.op0_kind(), instruction.flow_control()) {
        (OpKind::NearBranch64, _) => Target::At(instruction.near_branch_target()),
        (OpKind::NearBranch16 | OpKind::NearBranch32, _) => Target::Unknown,
        (_, FlowControl::IndirectBranch) if !instruction.is_ip_rel_memory_operand() => Target::Unknown,
        _ => Target::Next,
    }
}

/// The prefixes of functions that no branch from the rest of the file's code enters, such as one from the cold parts that compilers
/// split off.
///
/// Stripped files do not show where instructions begin. Therefore every byte is treated as a possible beginning: anything that
/// could be a `jmp`, `jcc` or `call` with a 32-bit displacement counts. False matches cost speed, never correctness. Cold parts
/// are in another section, out of range of 8-bit displacements.
pub(in crate::allocators) struct Sealed<'a> {
    /// Their addresses.
    functions: &'a [Range<u64>],
    /// From the lowest to the highest.
    around: Range<u64>,
    /// Length of each prefix.
    pub(in crate::allocators) lengths: Vec<u64>,
}

impl<'a> Sealed<'a> {
    /// The whole functions.
    pub(in crate::allocators) fn new(functions: &'a [Range<u64>]) -> Self {
        let lowest = functions.iter().map(|function| function.start).min().unwrap_or_default();
        let highest = functions.iter().map(|function| function.end).max().unwrap_or_default();
        let lengths = functions.iter().map(|function| function.end - function.start).collect();
        Self { functions, around: lowest..highest, lengths }
    }

    /// Restricts the prefixes to what the branches in this code do not enter.
    pub(in crate::allocators) fn restrict(&mut self, address: u64, code: &[u8]) {
        for (position, target) in far_targets(address, code) {
            if !self.around.contains(&target) {
                continue;
            }
            for (function, length) in self.functions.iter().zip(&mut self.lengths) {
                if !function.contains(&position) && target > function.start {
                    *length = (*length).min(target - function.start);
                }
            }
        }
    }
}

/// Address and target of everything that could be a branch with a 32-bit displacement.
fn far_targets(address: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes.len()).filter_map(move |at| {
        let opcode_len = match bytes[at..] {
            [0xe8 | 0xe9, ..] => 1,
            [0x0f, 0x80..=0x8f, ..] => 2,
            _ => return None,
        };
        let displacement = i32::from_le_bytes(*bytes[at + opcode_len..].first_chunk()?);
        let position = address.wrapping_add(at as u64);
        let next = position.wrapping_add((opcode_len + size_of_val(&displacement)) as u64);
        Some((position, next.wrapping_add_signed(displacement.into())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sealed prefixes of functions, with code at 0x1000.
    fn sealed(code: &[u8], functions: &[Range<u64>]) -> Vec<u64> {
        let mut sealed = Sealed::new(functions);
        sealed.restrict(0x1000, code);
        sealed.lengths
    }

    #[test]
    fn a_jump_from_a_cold_part_breaks_the_seal_at_its_target() {
        // 0x1000: call 0x2000 (outside the function); 0x1005..0x1020: the function; 0x1020: jmp 0x1008
        let mut code = [0x90; 0x30];
        code[..5].copy_from_slice(&[0xe8, 0xfb, 0x0f, 0x00, 0x00]);
        code[0x20..0x25].copy_from_slice(&[0xe9, 0xe3, 0xff, 0xff, 0xff]);

        assert_eq!(sealed(&code, &[0x1005..0x1020, 0x1010..0x1020]), [3, 0x10]);
    }

    /// Addresses of the function in tests with only one.
    const FUNCTION: Range<u64> = 0x1010..0x1018;

    #[test]
    fn calls_of_the_function_itself_break_no_seal() {
        // 0x1000: jne 0x1010
        let code = [0x0f, 0x85, 0x0a, 0x00, 0x00, 0x00];

        assert_eq!(sealed(&code, &[FUNCTION]), [8]);
    }

    #[test]
    fn a_branch_cut_off_by_the_end_of_the_code_is_none() {
        assert_eq!(sealed(&[0xe9, 0x0d], &[FUNCTION]), [8]);
    }
}
