//! Decodes calls and jumps.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

use super::chain::Function;

/// Opcode of a relative call: `call rel32`.
const CALL: u8 = 0xe8;
/// Length of such a call.
pub(super) const CALL_BYTES: usize = 5;
/// Length to read of a stub: a marker for indirect jumps (`endbr64`), and a jump.
pub(super) const STUB_BYTES: usize = 16;
/// Maximum size of a function to decode.
pub(super) const MAX_FUNCTION_BYTES: u64 = 1 << 20;

const BITS: u32 = 64;

/// Target of a relative call that has these last bytes and ends at this address.
pub(super) fn called(bytes: [u8; CALL_BYTES], end: u64) -> Option<u64> {
    let [CALL, distance @ ..] = bytes else { return None };
    Some(end.wrapping_add_signed(i32::from_le_bytes(distance).into()))
}

/// Target of a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Jump {
    /// This address.
    To(u64),
    /// The address stored at this one.
    Through(u64),
}

/// The word through which a stub jumps first, if the bytes are a stub for a function of another file; the dynamic loader writes
/// that word.
pub(super) fn stub(bytes: &[u8], address: u64) -> Option<u64> {
    let mut decoder = Decoder::with_ip(BITS, bytes, address, DecoderOptions::NONE);
    let mut instruction = decoder.decode();
    if instruction.code() == Code::Endbr64 {
        instruction = decoder.decode();
    }
    match jump(&instruction) {
        Some(Jump::Through(word)) => Some(word),
        _ => None,
    }
}

/// Jumps from a part of a function's code to outside of the function, with the addresses after the instructions; `None` unless
/// all are known. An indirect jump through a register may leave the function, or use a jump table within it.
pub(super) fn exits(code: &[u8], part: &Range<u64>, function: &Function) -> Option<Vec<(u64, Jump)>> {
    let mut exits = Vec::new();
    let mut falls_through = true;
    for instruction in Decoder::with_ip(BITS, code, part.start, DecoderOptions::NONE) {
        if instruction.is_invalid() {
            return None;
        }
        falls_through =
            matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
        if !is_jump(&instruction) {
            continue;
        }
        match jump(&instruction)? {
            // A jump to its own entry may be a loop or a recursive call.
            Jump::To(to) if function.holds(to) => {}
            exit => exits.push((instruction.next_ip(), exit)),
        }
    }
    (!falls_through).then_some(exits)
}

fn is_jump(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::IndirectBranch
    )
}

fn jump(instruction: &Instruction) -> Option<Jump> {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => instruction
            .op0_kind()
            .eq(&OpKind::NearBranch64)
            .then(|| Jump::To(instruction.near_branch_target())),
        FlowControl::IndirectBranch => {
            let is_word =
                instruction.op0_kind() == OpKind::Memory && instruction.memory_base() == Register::RIP;
            is_word.then(|| Jump::Through(instruction.ip_rel_memory_address()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_backwards() {
        assert_eq!(called([0xe8, 0xfb, 0xff, 0xff, 0xff], 0x1000), Some(0xffb));
        assert_eq!(called([0xff, 0x15, 0, 0, 0], 0x1000), None);
    }

    #[test]
    fn stubs_of_each_kind_jump_through_a_word() {
        let plain = [0xff, 0x25, 0x10, 0, 0, 0];
        let marked = [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x10, 0, 0, 0];
        assert_eq!(stub(&plain, 0x1000), Some(0x1016));
        assert_eq!(stub(&marked, 0x1000), Some(0x101b));
        assert_eq!(stub(&[0x55, 0x48, 0x89, 0xe5], 0x1000), None);
    }

    fn exits(code: &[u8]) -> Option<Vec<(u64, Jump)>> {
        let part = 0x1000..0x1000 + code.len() as u64;
        super::exits(code, &part, &Function { start: 0x1000, code: vec![part.clone()] })
    }

    #[test]
    fn jumps_out_of_a_function_are_its_exits() {
        // je +5; jmp 0x2000; ret
        let code = [0x74, 0x05, 0xe9, 0xf9, 0x0f, 0, 0, 0xc3];
        assert_eq!(exits(&code), Some(vec![(0x1007, Jump::To(0x2000))]));
        // jmp *0x10(%rip)
        assert_eq!(exits(&[0xff, 0x25, 0x10, 0, 0, 0]), Some(vec![(0x1006, Jump::Through(0x1016))]));
    }

    #[test]
    fn exits_of_code_that_is_not_understood_are_not_known() {
        assert_eq!(exits(&[0xff, 0xe0]), None, "jmp *%rax leads anywhere");
        assert_eq!(exits(&[0x90]), None, "it goes on behind its end");
        assert_eq!(exits(&[0x06, 0xc3]), None, "no instruction of x86-64");
    }
}
