//! Forms of instructions in functions of Go's runtime.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::super::WORD;

/// The distance from the stack pointer to the return address at one address.
pub(super) fn depth_at(depths: &[(u64, i64)], address: u64) -> Option<i64> {
    depths.iter().take_while(|(from, _)| *from <= address).last().map(|(_, depth)| *depth)
}

/// `mov offset(base), to` of a whole word.
pub(super) fn load(instruction: &Instruction) -> Option<(Register, Register, u64)> {
    let is_plain = instruction.code() == Code::Mov_r64_rm64
        && instruction.op1_kind() == OpKind::Memory
        && is_by_base(instruction);
    is_plain
        .then(|| (instruction.op0_register(), instruction.memory_base(), instruction.memory_displacement64()))
}

/// `mov from, offset(base)` of a whole word.
pub(super) fn store(instruction: &Instruction) -> Option<(Register, Register, u64)> {
    let is_plain = instruction.code() == Code::Mov_rm64_r64
        && instruction.op0_kind() == OpKind::Memory
        && is_by_base(instruction);
    is_plain
        .then(|| (instruction.op1_register(), instruction.memory_base(), instruction.memory_displacement64()))
}

fn is_by_base(instruction: &Instruction) -> bool {
    instruction.segment_prefix() == Register::None
        && instruction.memory_index() == Register::None
        && !matches!(instruction.memory_base(), Register::None | Register::RIP)
}

/// The register from which the stack pointer is set.
pub(super) fn stack_pointer_from(instruction: &Instruction) -> Option<Register> {
    let is_move = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register;
    (is_move && instruction.op0_register() == Register::RSP).then(|| instruction.op1_register())
}

/// Returns true if the instruction sets or aligns the stack pointer, which the function's table does not record.
pub(super) fn writes_stack_pointer(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::And)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == Register::RSP
}

/// `mov fs:offset(base), to`, a read of a thread's variable; with or without a base.
pub(super) fn thread_variable(instruction: &Instruction) -> Option<(Register, Register, i64)> {
    let is_plain = instruction.code() == Code::Mov_r64_rm64
        && instruction.segment_prefix() == Register::FS
        && instruction.memory_index() == Register::None;
    is_plain.then(|| {
        let offset = instruction.memory_displacement64().cast_signed();
        (instruction.op0_register(), instruction.memory_base(), offset)
    })
}

pub(super) fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

pub(super) fn words(bytes: u64) -> Option<u64> {
    bytes.is_multiple_of(WORD).then_some(bytes / WORD)
}
