//! Known content of registers and of the function's own stack frame before an instruction.

use std::collections::BTreeMap;

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use super::{
    effect::{Effect, general, is_call, number},
    understood::is_understood,
};

pub(super) const WORD: i64 = 8;

const REGISTERS: usize = 16;
const RAX: u8 = 0;
const RBP: u8 = 5;

/// Location of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// A register, by number.
    Register(u8),
    /// A word in the frame, at this offset in bytes from the canonical frame address.
    Slot(i64),
}

/// Content of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    /// The content of this register at the entry.
    Entry(u8),
    /// The requested size.
    Requested,
    Constant(u64),
    /// The canonical frame address plus this offset.
    Stack(i64),
    /// The result of the latest execution of the instruction at this address.
    Made(u64),
}

/// Known state before an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    registers: [Value; REGISTERS],
    slots: BTreeMap<i64, Value>,
    /// True if an address in the frame has escaped: any other code may write there.
    pub(super) exposed: bool,
    /// The register that the zero flag describes, and the number of its low bytes that were tested.
    tested: Option<(u8, usize)>,
}

impl State {
    /// State at the entry of a function.
    #[expect(clippy::cast_possible_truncation, reason = "there are 16 registers")]
    pub(super) fn entry(size: Option<Register>) -> Self {
        let mut registers: [Value; REGISTERS] = std::array::from_fn(|register| Value::Entry(register as u8));
        registers[usize::from(number(Register::RSP))] = Value::Stack(-WORD);
        if let Some(size) = size {
            registers[usize::from(number(size))] = Value::Requested;
        }
        Self { registers, slots: BTreeMap::new(), exposed: false, tested: None }
    }

    /// State at the entry of a function with a known first argument.
    pub(super) fn called_with(first: Option<u64>) -> Self {
        let mut state = Self::entry(None);
        if let Some(first) = first {
            state.registers[usize::from(number(Register::RDI))] = Value::Constant(first);
        }
        state
    }

    pub(super) fn register(&self, number: u8) -> Value {
        self.registers[usize::from(number)]
    }

    pub(super) fn get(&self, place: Place) -> Value {
        match place {
            Place::Register(number) => self.register(number),
            Place::Slot(at) => self.slots.get(&at).copied().unwrap_or(Value::Unknown),
        }
    }

    /// Places that contain a value, registers first.
    pub(super) fn find(&self, value: Value) -> impl Iterator<Item = Place> {
        self.places().filter(move |(_, held)| *held == value).map(|(place, _)| place)
    }

    #[expect(clippy::cast_possible_truncation, reason = "there are 16 registers")]
    fn places(&self) -> impl Iterator<Item = (Place, Value)> {
        let registers = self.registers.iter().enumerate();
        let registers = registers.map(|(number, &value)| (Place::Register(number as u8), value));
        registers.chain(self.slots.iter().map(|(&at, &value)| (Place::Slot(at), value)))
    }

    /// Distance of the stack pointer from the canonical frame address.
    pub(super) fn stack_pointer(&self) -> Option<i64> {
        match self.register(number(Register::RSP)) {
            Value::Stack(at) => Some(at),
            _ => None,
        }
    }

    /// Offset of a memory operand in the frame, if it is known to be there.
    pub(super) fn stack_address(
        &self,
        segment: Register,
        base: Register,
        index: Register,
        displacement: i64,
    ) -> Option<i64> {
        if index != Register::None || matches!(segment, Register::FS | Register::GS) || !base.is_gpr64() {
            return None;
        }
        match self.register(number(base)) {
            Value::Stack(at) => at.checked_add(displacement),
            _ => None,
        }
    }

    pub(super) fn memory_operand(&self, instruction: &Instruction) -> Option<i64> {
        self.stack_address(
            instruction.memory_segment(),
            instruction.memory_base(),
            instruction.memory_index(),
            instruction.memory_displacement64().cast_signed(),
        )
    }

    /// State after the instruction.
    pub(super) fn after(&self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Self {
        let effect = Effect::of(instruction, self, info);
        let made = Value::Made(instruction.ip());
        let mut after = self.clone();
        // The result of an earlier execution is a different value.
        after.registers.iter_mut().chain(after.slots.values_mut()).for_each(|value| {
            if *value == made {
                *value = Value::Unknown;
            }
        });
        for &register in &effect.registers {
            after.registers[usize::from(register)] = Value::Unknown;
        }
        after.slots.retain(|&at, _| !effect.changes(Place::Slot(at)));
        for &(to, from) in &effect.moves {
            after.set(to, self.get(from));
        }
        if let Some((to, value)) = self.computed(instruction) {
            after.set(Place::Register(to), value);
        } else if let [one] = effect.registers[..]
            && effect.moves.is_empty()
        {
            after.set(Place::Register(one), made);
        } else if is_call(instruction) {
            after.set(Place::Register(RAX), made);
        }
        after.registers[usize::from(number(Register::RSP))] = self.moved_stack_pointer(instruction, &effect);
        if let Some(top) = after.stack_pointer() {
            after.slots.retain(|&at, _| at >= top);
        } else {
            after.slots.clear();
        }
        after.exposed |= effect.exposes || after.exposes();
        after.forget_exposed();
        after.tested = self.tested_after(instruction, &effect);
        after
    }

    fn set(&mut self, place: Place, value: Value) {
        match place {
            Place::Register(number) => self.registers[usize::from(number)] = value,
            Place::Slot(at) => {
                self.slots.insert(at, value);
            }
        }
    }

    /// Discards the frame's content once others may write there at any time.
    fn forget_exposed(&mut self) {
        if self.exposed {
            self.slots.clear();
        }
    }

    /// Returns true if an address in the frame is outside the registers that address frames.
    fn exposes(&self) -> bool {
        let own = [Register::RSP, Register::RBP].map(|register| Place::Register(number(register)));
        self.places().any(|(place, value)| matches!(value, Value::Stack(_)) && !own.contains(&place))
    }

    /// The register for which the instruction computes a known value.
    fn computed(&self, instruction: &Instruction) -> Option<(u8, Value)> {
        if !is_understood(instruction) {
            return None;
        }
        let target = instruction.op0_register();
        let to = general(target).filter(|_| target.is_gpr64() || target.is_gpr32());
        let narrow = |value: u64| if target.is_gpr32() { value & u64::from(u32::MAX) } else { value };
        let same = instruction.op_count() == 2
            && instruction.op1_kind() == OpKind::Register
            && instruction.op1_register() == target;
        let immediate = || instruction.try_immediate(1).ok();
        match instruction.mnemonic() {
            Mnemonic::Xor if same => Some((to?, Value::Constant(0))),
            Mnemonic::Mov => match instruction.op1_kind() {
                OpKind::Register if target.is_gpr32() => {
                    match self.register(general(instruction.op1_register())?) {
                        Value::Constant(value) => Some((to?, Value::Constant(narrow(value)))),
                        _ => None,
                    }
                }
                OpKind::Register | OpKind::Memory => None,
                _ => Some((to?, Value::Constant(narrow(immediate()?)))),
            },
            Mnemonic::And => match (self.register(to?), immediate()) {
                (Value::Constant(value), Some(mask)) => Some((to?, Value::Constant(narrow(value & mask)))),
                _ => None,
            },
            Mnemonic::Lea if target.is_gpr64() => {
                Some((to?, Value::Stack(self.memory_operand(instruction)?)))
            }
            _ => None,
        }
    }

    fn moved_stack_pointer(&self, instruction: &Instruction, effect: &Effect) -> Value {
        let rsp = number(Register::RSP);
        let Some(at) = self.stack_pointer() else { return Value::Unknown };
        let target = instruction.op0_register();
        match instruction.mnemonic() {
            _ if is_call(instruction) => Value::Stack(at),
            Mnemonic::Push | Mnemonic::Pop if target != Register::RSP => {
                Value::Stack(at + i64::from(instruction.stack_pointer_increment()))
            }
            Mnemonic::Add | Mnemonic::Sub if target == Register::RSP => {
                let Ok(immediate) = instruction.try_immediate(1) else { return Value::Unknown };
                let by = immediate.cast_signed();
                let moved = if instruction.mnemonic() == Mnemonic::Sub {
                    at.checked_sub(by)
                } else {
                    at.checked_add(by)
                };
                moved.map_or(Value::Unknown, Value::Stack)
            }
            Mnemonic::Lea if target == Register::RSP => {
                self.memory_operand(instruction).map_or(Value::Unknown, Value::Stack)
            }
            Mnemonic::Mov if target == Register::RSP => {
                effect.origin(Place::Register(rsp)).map_or(Value::Unknown, |from| self.get(from))
            }
            Mnemonic::Leave => match self.register(number(Register::RBP)) {
                Value::Stack(frame) => Value::Stack(frame + WORD),
                _ => Value::Unknown,
            },
            _ if effect.registers.contains(&rsp) => Value::Unknown,
            _ => Value::Stack(at),
        }
    }

    fn tested_after(&self, instruction: &Instruction, effect: &Effect) -> Option<(u8, usize)> {
        if is_understood(instruction)
            && instruction.mnemonic() == Mnemonic::Test
            && instruction.op0_kind() == OpKind::Register
            && instruction.op1_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register()
        {
            let register = instruction.op0_register();
            return Some((general(register)?, register.size()));
        }
        let lost = is_call(instruction) || instruction.rflags_modified() != 0;
        self.tested.filter(|(register, _)| !lost && !effect.registers.contains(register))
    }

    /// State on one branch of a conditional jump; `None` if that branch cannot be taken.
    pub(super) fn on_branch(&self, jump: &Instruction, taken: bool) -> Option<Self> {
        let is_zero = match jump.mnemonic() {
            Mnemonic::Je => taken,
            Mnemonic::Jne => !taken,
            _ => return Some(self.clone()),
        };
        let Some((register, bytes)) = self.tested else { return Some(self.clone()) };
        let value = self.register(register);
        if let Value::Constant(constant) = value {
            let seen = if bytes >= 8 { constant } else { constant & ((1 << (8 * bytes)) - 1) };
            return ((seen == 0) == is_zero).then(|| self.clone());
        }
        let mut state = self.clone();
        if is_zero && bytes == 8 {
            if value != Value::Unknown {
                for place in self.find(value).collect::<Vec<_>>() {
                    state.set(place, Value::Constant(0));
                }
            }
            state.set(Place::Register(register), Value::Constant(0));
        }
        Some(state)
    }

    /// Keeps what holds in both states. Returns true if this state changes.
    pub(super) fn join(&mut self, other: &Self) -> bool {
        let before = self.clone();
        // A register that is no longer known to contain an address can still be used to write to the frame.
        let frames = [self.register(RBP), other.register(RBP)];
        let is_lost = frames[0] != frames[1] && frames.iter().any(|it| matches!(it, Value::Stack(_)));
        for (mine, theirs) in self.registers.iter_mut().zip(&other.registers) {
            if mine != theirs {
                *mine = Value::Unknown;
            }
        }
        self.slots.retain(|at, value| other.slots.get(at) == Some(value));
        self.exposed |= other.exposed || is_lost;
        self.forget_exposed();
        if self.tested != other.tested {
            self.tested = None;
        }
        *self != before
    }

    /// The places that are known to be zero.
    pub(super) fn zeros(&self) -> impl Iterator<Item = Place> {
        self.find(Value::Constant(0))
    }
}
