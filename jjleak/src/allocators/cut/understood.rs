//! Instructions that the proof understands: those that compilers generate for C with integers and pointers.
//!
//! The disassembler reports the effects on registers for all instructions. `effect` derives the effects on memory, and on
//! addresses in the frame, for these only.

use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, OpKind, Register};

pub(super) fn is_understood(instruction: &Instruction) -> bool {
    let operands = (0..instruction.op_count()).all(|index| match instruction.op_kind(index) {
        OpKind::Register => is_plain(instruction.op_register(index)),
        OpKind::Memory => has_plain_address(instruction),
        OpKind::NearBranch64
        | OpKind::Immediate8
        | OpKind::Immediate16
        | OpKind::Immediate32
        | OpKind::Immediate64
        | OpKind::Immediate8to16
        | OpKind::Immediate8to32
        | OpKind::Immediate8to64
        | OpKind::Immediate32to64 => true,
        _ => false,
    });
    operands && is_known(instruction)
}

fn is_known(instruction: &Instruction) -> bool {
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    match instruction.mnemonic() {
        // A return that pops arguments does not belong to a C function. Prefixed returns are for old processors.
        Mnemonic::Ret => instruction.op_count() == 0 && !instruction.has_repne_prefix(),
        _ if repeats => false,
        Mnemonic::Mov
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Lea
        | Mnemonic::Add
        | Mnemonic::Sub
        | Mnemonic::And
        | Mnemonic::Or
        | Mnemonic::Xor
        | Mnemonic::Not
        | Mnemonic::Neg
        | Mnemonic::Inc
        | Mnemonic::Dec
        | Mnemonic::Shl
        | Mnemonic::Shr
        | Mnemonic::Sar
        | Mnemonic::Cmp
        | Mnemonic::Test
        | Mnemonic::Xchg
        | Mnemonic::Cmpxchg
        | Mnemonic::Xadd
        | Mnemonic::Imul
        | Mnemonic::Mul
        | Mnemonic::Bsr
        | Mnemonic::Bsf
        | Mnemonic::Cdqe
        | Mnemonic::Leave
        | Mnemonic::Nop
        | Mnemonic::Endbr64
        | Mnemonic::Jmp
        | Mnemonic::Call
        | Mnemonic::Ud2
        | Mnemonic::Int3 => true,
        // Whole words only.
        Mnemonic::Push => instruction.stack_pointer_increment() == -8,
        Mnemonic::Pop => instruction.stack_pointer_increment() == 8 && is_register(instruction),
        _ => {
            let depends = instruction.condition_code() != ConditionCode::None;
            // Conditional moves and sets, but not loops.
            depends && (instruction.flow_control() == FlowControl::Next || instruction.is_jcc_short_or_near())
        }
    }
}

fn is_register(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register
}

/// Returns true for a general-purpose register, except the second byte of one.
fn is_plain(register: Register) -> bool {
    register.is_gpr() && !matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

/// Returns true for a 64-bit address.
fn has_plain_address(instruction: &Instruction) -> bool {
    let is_plain = |register: Register| register == Register::None || register.is_gpr64();
    (is_plain(instruction.memory_base()) || instruction.memory_base() == Register::RIP)
        && is_plain(instruction.memory_index())
}
