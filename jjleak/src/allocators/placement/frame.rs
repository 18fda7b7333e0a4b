//! Parts of a function's entry state that still hold before an instruction of its entry block.

use iced_x86::{Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use jjleak_common::cookie::Cookie;

const WORD: i64 = 8;

/// The stack before an instruction, while the relevant registers still hold their entry values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    /// Distance from the stack pointer up to the canonical frame address.
    cfa_words: u16,
    return_slot: ReturnSlot,
}

/// Access of the function to its return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReturnSlot {
    Unseen,
    /// The function used the stack pointer as an address or copied it, and may have read the return address.
    Exposed,
}

impl Frame {
    /// The frame at the entry: only the return address is on the stack.
    pub(super) const ENTRY: Self = Self { cfa_words: 1, return_slot: ReturnSlot::Unseen };

    /// Distance from the stack pointer up to the canonical frame address.
    pub(super) const fn cfa_words(self) -> u16 {
        self.cfa_words
    }

    /// Returns true if a return probe can be armed here: the kernel replaces the word at the stack pointer
    /// (`arch_uretprobe_hijack_return_addr`), which must therefore be the return address, and not read yet.
    pub(super) fn takes_return_probe(self) -> bool {
        self.cfa_words == Self::ENTRY.cfa_words && self.return_slot == ReturnSlot::Unseen
    }

    /// The frame after the instruction; `None` if the instruction writes a register of `kept`, or the distance to the canonical
    /// frame address becomes unknown.
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
        // The stack above the return address is the caller's; the cookie cannot encode larger distances.
        (Self::ENTRY.cfa_words..=Cookie::MAX_CFA_WORDS)
            .contains(&cfa_words)
            .then_some(Self { cfa_words, ..self })
    }
}

/// Effect of an instruction on the stack pointer.
enum StackEffect {
    None,
    /// Adds this many bytes to it.
    Moves(i64),
    /// Gives the function an address in the stack.
    Exposes,
    /// Sets it to another value.
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

/// The immediate that an addition or subtraction adds to its target; `None` if the operand is not an immediate.
fn added_immediate(instruction: &Instruction) -> Option<i64> {
    let immediate = instruction.try_immediate(1).ok()?.cast_signed();
    if instruction.mnemonic() == Mnemonic::Sub { immediate.checked_neg() } else { Some(immediate) }
}

/// Returns true if a push pushes an immediate, or a register other than the stack pointer; false for memory.
fn pushes_plain_value(instruction: &Instruction) -> bool {
    match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().full_register() != Register::RSP,
        _ => instruction.try_immediate(0).is_ok(),
    }
}

/// Returns true if the instruction writes any part of the 64-bit register, even conditionally.
fn writes(info: &InstructionInfo, register: Register) -> bool {
    info.used_registers().iter().any(|used| {
        used.register().full_register() == register
            && matches!(
                used.access(),
                OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite
            )
    })
}
