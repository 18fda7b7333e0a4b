//! Effects of one instruction on registers and on the function's own stack frame.

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::{
    state::{Place, State, Value, WORD},
    understood::is_understood,
};
use crate::allocators::placement::ARGUMENTS;

/// Registers that a call may change (psABI x86-64, 3.2.1).
const CALLER_SAVED: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

/// The effects of an instruction, given the state before it.
#[derive(Debug, Default)]
pub(super) struct Effect {
    /// Numbers of overwritten registers.
    pub(super) registers: Vec<u8>,
    /// Overwritten bytes of the frame: offsets from the canonical frame address.
    pub(super) stack: Vec<(i64, i64)>,
    /// True if any part of the frame may have changed.
    pub(super) all_stack: bool,
    /// True if an address in the frame has escaped from the places that are followed.
    pub(super) exposes: bool,
    /// Whole words that are copied: to, from.
    pub(super) moves: Vec<(Place, Place)>,
}

impl Effect {
    /// Returns true if the place is overwritten.
    pub(super) fn changes(&self, place: Place) -> bool {
        match place {
            Place::Register(number) => self.registers.contains(&number),
            Place::Slot(at) => {
                self.all_stack || self.stack.iter().any(|&(from, to)| at < to && from < at + WORD)
            }
        }
    }

    /// The place from which the instruction copied the value of a place, if it did.
    pub(super) fn origin(&self, place: Place) -> Option<Place> {
        self.moves.iter().find(|(to, _)| *to == place).map(|&(_, from)| from)
    }

    pub(super) fn of(instruction: &Instruction, state: &State, info: &mut InstructionInfoFactory) -> Self {
        let mut effect = Self::default();
        if is_call(instruction) {
            effect.registers.extend(CALLER_SAVED.map(number));
            effect.stack.extend(state.stack_pointer().map(|below| (i64::MIN, below)));
            return effect;
        }
        let used = info.info(instruction);
        let written = used.used_registers().iter().filter(|used| writes(used.access()));
        effect.registers.extend(written.filter_map(|used| general(used.register())));
        if !is_understood(instruction) {
            // Also the registers in which a system call returns.
            effect.registers.extend([Register::RAX, Register::RCX, Register::R11].map(number));
            effect.all_stack = true;
            effect.exposes = true;
            return effect;
        }
        for memory in used.used_memory().iter().filter(|memory| writes(memory.access())) {
            let at = state.stack_address(
                memory.segment(),
                memory.base(),
                memory.index(),
                memory.displacement().cast_signed(),
            );
            match (at, i64::try_from(memory.memory_size().size())) {
                (Some(at), Ok(size)) if size > 0 => effect.stack.push((at, at + size)),
                (Some(_), _) => effect.all_stack = true,
                (None, _) => {
                    effect.all_stack |=
                        [memory.base(), memory.index()].into_iter().any(|it| may_be_of_stack(it, state));
                }
            }
        }
        effect.moves.extend(moved(instruction, state));
        effect.exposes = exposes(instruction, state, &effect.moves, info);
        effect
    }

    /// Returns true if the instruction writes to the return address or to the caller's part of the stack.
    pub(super) fn leaves_frame(&self) -> bool {
        self.stack.iter().any(|&(_, to)| to > -WORD)
    }
}

/// Returns true if an instruction makes an address in the frame escape from a register that addresses frames. An address in any
/// other register counts as escaped already.
fn exposes(
    instruction: &Instruction,
    state: &State,
    moves: &[(Place, Place)],
    info: &mut InstructionInfoFactory,
) -> bool {
    let is_address = |register: Register| {
        [Register::RSP, Register::RBP].contains(&register.full_register())
            && general(register).is_some_and(|it| matches!(state.register(it), Value::Stack(_)))
    };
    if instruction.mnemonic() == Mnemonic::Lea {
        let parts = [instruction.memory_base(), instruction.memory_index()];
        let is_followed =
            instruction.op0_register().is_gpr64() && state.memory_operand(instruction).is_some();
        return parts.into_iter().any(is_address) && !is_followed;
    }
    let moves_stack_pointer = matches!(instruction.mnemonic(), Mnemonic::Add | Mnemonic::Sub)
        && instruction.op0_register() == Register::RSP
        && instruction.op1_kind() != OpKind::Register;
    if moves_stack_pointer || !moves.is_empty() {
        return false;
    }
    let used = info.info(instruction);
    (0..instruction.op_count()).any(|index| {
        instruction.op_kind(index) == OpKind::Register
            && is_address(instruction.op_register(index))
            && used.op_access(index) != OpAccess::Write
    })
}

/// The word that an instruction copies: to, from.
fn moved(instruction: &Instruction, state: &State) -> Option<(Place, Place)> {
    match instruction.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 => {
            Some((operand(instruction, 0, state)?, operand(instruction, 1, state)?))
        }
        Code::Push_r64 => {
            let to = Place::Slot(state.stack_pointer()? - WORD);
            Some((to, Place::Register(general(instruction.op0_register())?)))
        }
        Code::Pop_r64 => {
            let from = Place::Slot(state.stack_pointer()?);
            Some((Place::Register(general(instruction.op0_register())?), from))
        }
        Code::Leaveq => {
            let Value::Stack(frame) = state.register(number(Register::RBP)) else { return None };
            Some((Place::Register(number(Register::RBP)), Place::Slot(frame)))
        }
        _ => None,
    }
}

fn operand(instruction: &Instruction, index: u32, state: &State) -> Option<Place> {
    match instruction.op_kind(index) {
        OpKind::Register => general(instruction.op_register(index)).map(Place::Register),
        OpKind::Memory => state.memory_operand(instruction).map(Place::Slot),
        _ => None,
    }
}

/// Returns true if the register may be part of an address on the stack: of the function's own frame, or a value that the caller
/// left in a register that is not an argument.
fn may_be_of_stack(part: Register, state: &State) -> bool {
    let arguments = ARGUMENTS.map(number);
    part.full_register() == Register::RSP
        || general(part).is_some_and(|part| match state.register(part) {
            Value::Stack(_) => true,
            Value::Entry(register) => !arguments.contains(&register),
            _ => false,
        })
}

pub(super) fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
        && instruction.mnemonic() != Mnemonic::Syscall
}

const fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite)
}

/// Number of a general-purpose register, or of the one that contains it.
pub(super) fn general(register: Register) -> Option<u8> {
    let full = register.full_register();
    full.is_gpr64().then(|| number(full))
}

/// Number of a 64-bit register in instruction encodings.
#[expect(clippy::cast_possible_truncation, reason = "there are 16 of them")]
pub(super) fn number(register: Register) -> u8 {
    register.number() as u8
}
