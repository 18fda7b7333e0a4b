//! What still holds of a function's entry state before an instruction of its entry block.

use iced_x86::{Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use jjleak_common::cookie::Cookie;

const WORD: i64 = 8;

/// The stack before an instruction, while the registers that matter still hold their entry values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// From the stack pointer up to the canonical frame address.
    cfa_words: u16,
    return_slot: ReturnSlot,
}

/// Whether the function may have looked at its return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReturnSlot {
    Unseen,
    /// The function used the stack pointer as an address or copied it.
    Exposed,
}

impl Frame {
    /// At the entry: only the return address is on the stack.
    pub(super) const ENTRY: Self = Self { cfa_words: 1, return_slot: ReturnSlot::Unseen };

    /// From the stack pointer up to the canonical frame address.
    pub(super) const fn cfa_words(self) -> u16 {
        self.cfa_words
    }

    /// Whether a return probe can be armed here: the kernel swaps the word at the stack pointer
    /// (`arch_uretprobe_hijack_return_addr`), so that must be the return address, and not yet read.
    pub(super) fn takes_return_probe(self) -> bool {
        self.cfa_words == Self::ENTRY.cfa_words && self.return_slot == ReturnSlot::Unseen
    }

    /// The frame after the instruction; `None` when it writes a register of `kept`, or the distance to the
    /// canonical frame address is not known any more.
    pub(super) fn after(
        self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
        kept: &[Register],
    ) -> Option<Self> {
        let info = info.info(instruction);
        if kept.iter().any(|&register| writes(info, register)) {
            return None;
        }
        match stack_effect(instruction, info) {
            StackEffect::None => Some(self),
            StackEffect::Exposes => Some(Self { return_slot: ReturnSlot::Exposed, ..self }),
            StackEffect::Moves(bytes) => self.moved(bytes),
            StackEffect::Unknown => None,
        }
    }

    fn moved(self, bytes: i64) -> Option<Self> {
        if bytes % WORD != 0 {
            return None;
        }
        let words = i64::from(self.cfa_words).checked_sub(bytes / WORD)?;
        let cfa_words = u16::try_from(words).ok()?;
        // Above its return address the stack is the caller's; deeper than the cookie can say is no use.
        (Self::ENTRY.cfa_words..=Cookie::MAX_CFA_WORDS)
            .contains(&cfa_words)
            .then_some(Self { cfa_words, ..self })
    }
}

/// What an instruction does with the stack pointer.
enum StackEffect {
    None,
    /// Adds this many bytes to it.
    Moves(i64),
    /// Lets the function see the stack by address.
    Exposes,
    /// Sets it to something else.
    Unknown,
}

fn stack_effect(instruction: &Instruction, info: &InstructionInfo) -> StackEffect {
    let target = instruction.op0_register();
    match instruction.mnemonic() {
        Mnemonic::Push if pushes_plain_value(instruction) => {
            StackEffect::Moves(instruction.stack_pointer_increment().into())
        }
        Mnemonic::Pop
            if instruction.op0_kind() == OpKind::Register && target.full_register() != Register::RSP =>
        {
            StackEffect::Moves(instruction.stack_pointer_increment().into())
        }
        Mnemonic::Add | Mnemonic::Sub if target == Register::RSP => {
            added_immediate(instruction).map_or(StackEffect::Unknown, StackEffect::Moves)
        }
        Mnemonic::Lea
            if target == Register::RSP
                && instruction.memory_base() == Register::RSP
                && instruction.memory_index() == Register::None =>
        {
            StackEffect::Moves(instruction.memory_displacement64().cast_signed())
        }
        _ if writes(info, Register::RSP) => StackEffect::Unknown,
        _ if info.used_registers().iter().any(|used| used.register().full_register() == Register::RSP) => {
            StackEffect::Exposes
        }
        _ => StackEffect::None,
    }
}

/// What an addition or subtraction adds to its target; `None` when that is not in the instruction.
fn added_immediate(instruction: &Instruction) -> Option<i64> {
    let immediate = instruction.try_immediate(1).ok()?.cast_signed();
    if instruction.mnemonic() == Mnemonic::Sub { immediate.checked_neg() } else { Some(immediate) }
}

/// Whether a push pushes an immediate, or a register other than the stack pointer; not memory.
fn pushes_plain_value(instruction: &Instruction) -> bool {
    match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().full_register() != Register::RSP,
        _ => instruction.try_immediate(0).is_ok(),
    }
}

/// Whether the instruction writes any part of the 64-bit register, be it conditionally.
fn writes(info: &InstructionInfo, register: Register) -> bool {
    info.used_registers().iter().any(|used| {
        used.register().full_register() == register
            && matches!(
                used.access(),
                OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite
            )
    })
}
