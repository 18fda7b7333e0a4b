//! A processor that runs a function under adverse conditions: shared memory reads as anything, called functions change everything
//! that the psABI permits, and they write to the frame if they may know its address.

#![expect(clippy::cast_possible_truncation, reason = "a processor's registers have parts")]

mod arithmetic;

use std::collections::BTreeMap;

use fastrand::Rng;
use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};

use super::super::{
    effect::{is_call, number},
    flow::Flow,
};
use super::{Site, Step};
use arithmetic::{extended, low};

const SP: u8 = 4;
const BP: u8 = 5;
const ACCUMULATOR: u8 = 0;
/// Registers that a call may change, which include those of its arguments.
const CALLER_SAVED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// Address and size of the stack.
const STACK: u64 = 0x7000_0000_0000;
const STACK_BYTES: u64 = 1 << 16;
/// Limit of steps per run: paths can be endless.
const MOST_STEPS: usize = 2000;

/// Result of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// As the probes reported.
    Exact,
    /// The function did not return.
    Never,
    /// Other than the probes reported, or outside the code that the proof covers.
    Wrong(String),
}

/// Random numbers, the same for the same seed.
#[derive(Debug, Clone)]
pub(super) struct Random(Rng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0.usize(..limit)
    }

    /// A random word, often one that code tests for; never an address on the stack.
    fn word(&mut self) -> u64 {
        match self.below(8) {
            0..=2 => 0,
            3 => 1,
            4 => self.bits() & 0xff,
            5 => self.bits() | 1 << 63,
            _ => self.bits() & 0xfff_ffff_fff0,
        }
    }
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of the processor's")]
struct Flags {
    zero: bool,
    sign: bool,
    carry: bool,
    overflow: bool,
}

pub(super) struct Machine<'a> {
    flow: &'a Flow,
    sites: &'a [Site],
    random: Random,
    registers: [u64; 16],
    flags: Flags,
    stack: BTreeMap<u64, u8>,
    /// True if others know an address in the frame.
    escaped: bool,
    noted: Option<u64>,
    given: Vec<(u64, u64)>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(flow: &'a Flow, sites: &'a [Site], random: Random) -> Self {
        let mut machine = Self {
            flow,
            sites,
            random,
            registers: [0; 16],
            flags: Flags::default(),
            stack: BTreeMap::new(),
            escaped: false,
            noted: None,
            given: Vec::new(),
        };
        machine.registers = std::array::from_fn(|_| machine.random.word());
        machine.registers[usize::from(SP)] = STACK + STACK_BYTES / 2;
        machine
    }

    /// Runs the function, with its size in this register.
    pub(super) fn run(mut self, size: Register) -> End {
        let [requested, sp, frame_pointer] = [number(size), SP, BP].map(|it| self.register(it));
        let mut at = self.flow.entry;
        for _ in 0..MOST_STEPS {
            let Some(node) = self.flow.nodes.get(&at) else { return wrong("it left the flow", at) };
            for site in self.sites {
                if self.flow.entry.wrapping_add_signed(site.inside.distance.into()) == at
                    && let Err(what) = self.hit(site, sp, frame_pointer)
                {
                    return wrong(what, at);
                }
            }
            let instruction = node.instruction;
            if instruction.mnemonic() == Mnemonic::Ret {
                let given = std::mem::take(&mut self.given);
                return match self.register(ACCUMULATOR) {
                    _ if self.register(SP) != sp => wrong("it returns from elsewhere", at),
                    _ if self.noted.is_some() => wrong("it is not settled", at),
                    0 if given.is_empty() => End::Exact,
                    block if given == [(block, requested)] => End::Exact,
                    block => {
                        End::Wrong(format!("{requested:#x} bytes at {block:#x}, reported was {given:x?}"))
                    }
                };
            }
            if node.next.is_empty() {
                return End::Never;
            }
            at = self.step(&instruction);
        }
        End::Never
    }

    /// Checks what a probe at this site reports.
    fn hit(&mut self, site: &Site, sp: u64, frame_pointer: u64) -> Result<(), &'static str> {
        let frame = self.register(SP) + 8 * u64::from(site.cfa_words);
        if frame != sp + 8 {
            return Err("the frame is elsewhere");
        }
        let words = u64::from(site.inside.frame_pointer_words);
        let kept = if words == 0 { self.register(BP) } else { self.read(frame - 8 * words, 8) };
        if kept != frame_pointer {
            return Err("the frame pointer is elsewhere");
        }
        let asked = self.register(site.inside.size);
        let asked = match site.step {
            Step::Note if self.noted.is_some() => return Err("it is noted twice"),
            Step::Note => {
                self.noted = Some(asked);
                return Ok(());
            }
            Step::Settle => self.noted.take().ok_or("it is not noted")?,
            Step::Whole => asked,
        };
        let block = self.register(ACCUMULATOR);
        if block != 0 {
            self.given.push((block, asked));
        }
        Ok(())
    }

    /// Runs an instruction; returns the address of the next.
    fn step(&mut self, it: &Instruction) -> u64 {
        let next = it.next_ip();
        if is_call(it) {
            self.call();
            return next;
        }
        let bytes = operand_bytes(it, 0);
        match it.mnemonic() {
            Mnemonic::Jmp => return it.near_branch_target(),
            _ if it.is_jcc_short_or_near() => {
                return if self.holds(it.condition_code()) { it.near_branch_target() } else { next };
            }
            Mnemonic::Nop | Mnemonic::Endbr64 => {}
            Mnemonic::Mov | Mnemonic::Movzx => {
                let value = self.operand(it, 1);
                self.set(it, 0, value);
            }
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                let value = extended(self.operand(it, 1), operand_bytes(it, 1));
                self.set(it, 0, value);
            }
            Mnemonic::Lea => {
                let address = self.address(it, 1);
                self.set(it, 0, address);
            }
            Mnemonic::Push => {
                let value = self.operand(it, 0);
                self.registers[usize::from(SP)] -= 8;
                self.write(self.register(SP), 8, value);
            }
            Mnemonic::Pop => {
                let value = self.read(self.register(SP), 8);
                self.registers[usize::from(SP)] += 8;
                self.set(it, 0, value);
            }
            Mnemonic::Leave => {
                let frame = self.register(BP);
                self.registers[usize::from(BP)] = self.read(frame, 8);
                self.registers[usize::from(SP)] = frame.wrapping_add(8);
            }
            Mnemonic::Xchg | Mnemonic::Xadd => {
                let [one, other] = [0, 1].map(|index| self.operand(it, index));
                let first = if it.mnemonic() == Mnemonic::Xadd { one.wrapping_add(other) } else { other };
                if it.mnemonic() == Mnemonic::Xadd {
                    self.add(one, other, bytes);
                }
                self.set(it, 1, one);
                self.set(it, 0, first);
            }
            Mnemonic::Cmpxchg => {
                let [old, new] = [0, 1].map(|index| self.operand(it, index));
                let expected = low(self.register(ACCUMULATOR), bytes);
                self.subtract(expected, old, bytes);
                if expected == old {
                    self.set(it, 0, new);
                } else {
                    self.set_register(ACCUMULATOR, bytes, old);
                }
            }
            Mnemonic::Cdqe => {
                self.registers[0] = extended(low(self.registers[0], 4), 4);
            }
            Mnemonic::Mul => {
                let product = u128::from(low(self.registers[0], bytes)) * u128::from(self.operand(it, 0));
                let parts = [product as u64, (product >> (8 * bytes)) as u64];
                self.set_register(0, bytes, parts[0]);
                self.set_register(2, bytes, parts[1]);
                self.any_flags();
            }
            Mnemonic::Imul => self.multiply(it, bytes),
            _ if it.condition_code() != ConditionCode::None => self.conditional(it),
            _ => self.compute(it, bytes),
        }
        next
    }

    /// Runs an instruction that computes a number and flags from one or two numbers.
    fn compute(&mut self, it: &Instruction, bytes: u32) {
        let one = self.operand(it, 0);
        let other = if it.op_count() > 1 { self.operand(it, 1) } else { 1 };
        let result = match it.mnemonic() {
            Mnemonic::Add | Mnemonic::Inc => self.add(one, other, bytes),
            Mnemonic::Sub | Mnemonic::Cmp | Mnemonic::Dec => self.subtract(one, other, bytes),
            Mnemonic::Neg => self.subtract(0, one, bytes),
            Mnemonic::Not => !one,
            Mnemonic::And | Mnemonic::Test => self.logic(one & other, bytes),
            Mnemonic::Or => self.logic(one | other, bytes),
            Mnemonic::Xor => self.logic(one ^ other, bytes),
            Mnemonic::Shl | Mnemonic::Shr | Mnemonic::Sar => {
                let by = other & if bytes == 8 { 63 } else { 31 };
                if by == 0 {
                    return;
                }
                let result = match it.mnemonic() {
                    Mnemonic::Shl => one << by,
                    Mnemonic::Shr => one >> by,
                    _ => (extended(one, bytes).cast_signed() >> by).cast_unsigned(),
                };
                self.logic(result, bytes);
                self.flags.carry = self.random.below(2) == 0;
                result
            }
            Mnemonic::Bsr | Mnemonic::Bsf => {
                self.any_flags();
                self.flags.zero = other == 0;
                match it.mnemonic() {
                    _ if other == 0 => one,
                    Mnemonic::Bsr => u64::from(other.ilog2()),
                    _ => u64::from(other.trailing_zeros()),
                }
            }
            other => panic!("{other:?} is understood, and cannot be run"),
        };
        if !matches!(it.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) {
            self.set(it, 0, result);
        }
    }

    fn multiply(&mut self, it: &Instruction, bytes: u32) {
        match it.op_count() {
            1 => {
                let product = self.operand(it, 0).wrapping_mul(self.registers[0]);
                let high = self.random.word();
                self.set_register(0, bytes, product);
                self.set_register(2, bytes, high);
            }
            count => {
                let product = self.operand(it, count - 2).wrapping_mul(self.operand(it, count - 1));
                self.set(it, 0, product);
            }
        }
        self.any_flags();
    }

    fn conditional(&mut self, it: &Instruction) {
        let holds = self.holds(it.condition_code());
        // A set has one operand, a move two; a 32-bit move clears the upper half even if the condition is false.
        let value = match it.op_count() {
            1 => holds.into(),
            _ if holds => self.operand(it, 1),
            _ => self.operand(it, 0),
        };
        self.set(it, 0, value);
    }

    /// Applies the effects of a called function that has returned.
    fn call(&mut self) {
        let is_told = CALLER_SAVED.iter().any(|&it| is_stack(self.register(it)));
        if self.escaped || is_told {
            self.escaped = true;
            for at in self.register(SP)..STACK + STACK_BYTES / 2 {
                let byte = self.random.bits() as u8;
                self.stack.insert(at, byte);
            }
        }
        self.stack.retain(|&at, _| at >= self.registers[usize::from(SP)]);
        for register in CALLER_SAVED {
            self.registers[usize::from(register)] = self.random.word();
        }
        self.any_flags();
    }

    fn register(&self, number: u8) -> u64 {
        self.registers[usize::from(number)]
    }

    fn set_register(&mut self, number: u8, bytes: u32, value: u64) {
        let old = &mut self.registers[usize::from(number)];
        *old = match bytes {
            1 | 2 => *old & !low(u64::MAX, bytes) | low(value, bytes),
            _ => low(value, bytes),
        };
    }

    fn operand(&mut self, it: &Instruction, index: u32) -> u64 {
        let bytes = operand_bytes(it, index);
        match it.op_kind(index) {
            OpKind::Register => low(self.register(number(it.op_register(index).full_register())), bytes),
            OpKind::Memory => self.read(self.address(it, index), bytes),
            _ => low(it.immediate(index), operand_bytes(it, 0)),
        }
    }

    fn set(&mut self, it: &Instruction, index: u32, value: u64) {
        let bytes = operand_bytes(it, index);
        match it.op_kind(index) {
            OpKind::Register => {
                self.set_register(number(it.op_register(index).full_register()), bytes, value);
            }
            _ => self.write(self.address(it, index), bytes, value),
        }
    }

    fn address(&self, it: &Instruction, index: u32) -> u64 {
        let value = |register: Register, _, _| {
            Some(if register.is_gpr() { self.register(number(register)) } else { 0 })
        };
        it.virtual_address(index, 0, value).unwrap()
    }

    fn read(&mut self, address: u64, bytes: u32) -> u64 {
        let word = self.random.word();
        if !is_stack(address) {
            return low(word, bytes);
        }
        let byte = |at: u32| {
            let fresh = word.to_le_bytes()[at as usize];
            u64::from(*self.stack.entry(address + u64::from(at)).or_insert(fresh)) << (8 * at)
        };
        (0..bytes).map(byte).sum()
    }

    fn write(&mut self, address: u64, bytes: u32, value: u64) {
        if is_stack(address) {
            let value = value.to_le_bytes().into_iter().take(bytes as usize);
            self.stack.extend((address..).zip(value));
        } else {
            self.escaped |= is_stack(value);
        }
    }
}

/// Width of an operand in bytes.
fn operand_bytes(it: &Instruction, index: u32) -> u32 {
    if it.op_count() <= index {
        return 8;
    }
    match it.op_kind(index) {
        OpKind::Register => it.op_register(index).size() as u32,
        OpKind::Memory => it.memory_size().size() as u32,
        _ => 8,
    }
}

fn wrong(what: &str, at: u64) -> End {
    End::Wrong(format!("{what} at {at:#x}"))
}

fn is_stack(address: u64) -> bool {
    (STACK..STACK + STACK_BYTES).contains(&address)
}
