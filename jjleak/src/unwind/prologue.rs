//! Follows the first instructions of a function, to compute its canonical frame address (CFA) from the code alone.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use jjleak_common::unwind::{Row, RowKind};

/// Maximum number of bytes read of a function.
pub(super) const MAX_BYTES: u64 = 96;

/// Comparison of rows with code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Followed {
    /// True if they agree; `None` if the code does not move the stack pointer, as far as it was followed.
    pub(super) agrees: Option<bool>,
    /// Number of calls found, each with the same CFA in the row of its return address.
    pub(super) calls: u32,
}

/// Location of the CFA according to the code.
struct Frame {
    /// Distance from the stack pointer.
    from_stack_pointer: u64,
    /// Distance from the frame pointer, if that is set.
    from_frame_pointer: Option<u64>,
}

/// Follows the code of a function and compares it with its rows; the first row belongs to the first instruction.
pub(super) fn follow(rows: &[Row], code: &[u8]) -> Followed {
    let Some(first) = rows.first() else { return Followed::default() };
    let begin = u64::from(first.address());
    let mut decoder = Decoder::with_ip(u64::BITS, code, begin, DecoderOptions::NONE);
    let mut frame = Frame { from_stack_pointer: 8, from_frame_pointer: None };
    let (mut followed, mut index) = (Followed::default(), 0);
    while decoder.can_decode() {
        let at = decoder.ip();
        let instruction = decoder.decode();
        let mut moved = false;
        while let Some(next) = rows.get(index + 1).filter(|next| u64::from(next.address()) <= at) {
            if u64::from(next.address()) != at {
                // A rule changes in the middle of an instruction.
                followed.agrees = Some(false);
                return followed;
            }
            index += 1;
            moved = true;
        }
        let Some(agrees) = frame.agrees(rows[index]) else { return followed };
        if !agrees {
            followed.agrees = Some(false);
            return followed;
        }
        if moved {
            followed.agrees = Some(true);
        }
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            FlowControl::Call | FlowControl::IndirectCall => {
                // The row of the return address is that of the call, and agrees.
                followed.calls += 1;
                continue;
            }
            _ => return followed,
        }
        if frame.step(&instruction).is_none() {
            return followed;
        }
    }
    followed
}

impl Frame {
    /// Returns true if a row agrees; `None` if the row uses a rule that is not followed.
    fn agrees(&self, row: Row) -> Option<bool> {
        if row.kind() == RowKind::Sp as u64 {
            return Some(row.offset_bytes() == self.from_stack_pointer);
        }
        let distance = self.from_frame_pointer.filter(|_| row.kind() == RowKind::Fp as u64)?;
        Some(row.offset_bytes() == distance)
    }

    /// Applies an instruction; `None` if it cannot be followed.
    fn step(&mut self, instruction: &Instruction) -> Option<()> {
        let (target, source) = (instruction.op0_register(), instruction.op1_register());
        let has_constant = instruction.op_count() == 2
            && matches!(
                instruction.op1_kind(),
                OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64
            );
        let constant = || has_constant.then(|| instruction.immediate(1));
        // Displacement of a `lea` from the stack pointer.
        let distance = || {
            let is_plain =
                instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None;
            is_plain.then(|| instruction.memory_displacement64())
        };
        let cfa = self.from_stack_pointer;
        match (instruction.mnemonic(), target) {
            (Mnemonic::Pop, Register::RSP) => return None,
            (Mnemonic::Push | Mnemonic::Pop, _) => {
                self.from_stack_pointer =
                    cfa.wrapping_sub(i64::from(instruction.stack_pointer_increment()).cast_unsigned());
            }
            (Mnemonic::Sub, Register::RSP) => self.from_stack_pointer = cfa.wrapping_add(constant()?),
            (Mnemonic::Add, Register::RSP) => self.from_stack_pointer = cfa.wrapping_sub(constant()?),
            (Mnemonic::Lea, Register::RSP) => self.from_stack_pointer = cfa.wrapping_sub(distance()?),
            (Mnemonic::Lea, Register::RBP) => {
                self.from_frame_pointer = distance().map(|distance| cfa.wrapping_sub(distance));
            }
            (Mnemonic::Mov, Register::RBP) if source == Register::RSP => self.from_frame_pointer = Some(cfa),
            (Mnemonic::Cmp | Mnemonic::Test, _) => {}
            (Mnemonic::Enter | Mnemonic::Leave | Mnemonic::Pushfq | Mnemonic::Popfq | Mnemonic::Xchg, _) => {
                return None;
            }
            (_, Register::RSP | Register::ESP | Register::SP | Register::SPL) => return None,
            (_, Register::RBP | Register::EBP) => self.from_frame_pointer = None,
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use jjleak_common::unwind::SavedFp;

    use super::*;

    fn row(address: u32, kind: RowKind, offset_bytes: u64) -> Row {
        Row::new(address, kind, offset_bytes / 8, SavedFp::Register, 0).unwrap()
    }

    /// `push %rbp; mov %rsp, %rbp; push %rbx; sub $24, %rsp; call`.
    const CODE: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x83, 0xec, 0x18, 0xe8, 0, 0, 0, 0, 0xc3];

    #[test]
    fn a_prologue_agrees_with_its_rows_by_either_register() {
        let by_frame_pointer =
            [row(0x100, RowKind::Sp, 8), row(0x101, RowKind::Sp, 16), row(0x104, RowKind::Fp, 16)];
        let by_stack_pointer = [
            row(0x100, RowKind::Sp, 8),
            row(0x101, RowKind::Sp, 16),
            row(0x105, RowKind::Sp, 24),
            row(0x109, RowKind::Sp, 48),
        ];
        for rows in [&by_frame_pointer[..], &by_stack_pointer] {
            assert_eq!(follow(rows, CODE), Followed { agrees: Some(true), calls: 1 });
        }
    }

    #[test]
    fn rows_of_other_code_disagree() {
        let of_another_size = [row(0, RowKind::Sp, 8), row(1, RowKind::Sp, 16), row(5, RowKind::Sp, 32)];
        let in_the_middle = [row(0, RowKind::Sp, 8), row(1, RowKind::Sp, 16), row(3, RowKind::Fp, 16)];
        let too_late = [row(0, RowKind::Sp, 8), row(4, RowKind::Sp, 16)];
        for rows in [of_another_size, in_the_middle] {
            assert_eq!(follow(&rows, CODE).agrees, Some(false));
        }
        assert_eq!(follow(&too_late, CODE).agrees, Some(false));
    }

    #[test]
    fn code_that_leaves_the_stack_alone_says_nothing() {
        // mov %rdi, %rax; ret
        let said = follow(&[row(0, RowKind::Sp, 8)], &[0x48, 0x89, 0xf8, 0xc3]);
        assert_eq!(said, Followed::default());
        assert_eq!(follow(&[], CODE), Followed::default());
    }
}
