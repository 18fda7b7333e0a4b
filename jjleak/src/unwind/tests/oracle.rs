//! The caller of a frame according to gimli's interpreter and according to our rows, on a synthetic machine.

use gimli::{
    CfaRule, Encoding, EndianSlice, EvaluationResult, Expression, FrameDescriptionEntry, LittleEndian,
    Location, Register, RegisterRule, UnwindSection, UnwindTableRow, Value,
};
use jjleak_common::unwind::{Row, RowKind, SavedFp};

type Bytes<'data> = EndianSlice<'data, LittleEndian>;

/// CFA of a frame, and the registers of its caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Caller {
    cfa: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    /// Address of the caller's saved base register (`rbx`), if it is within a row's range.
    base_at: Option<u64>,
    return_address_at: u64,
}

/// Number of `rbx` in the System V ABI for x86-64.
const BASE: Register = Register(3);

/// Offsets of `uc_mcontext.gregs[REG_RSP]` and `[REG_RIP]` from the stack pointer in the frame that the kernel pushes.
const SP_FROM_SP: u64 = 160;
const IP_FROM_SP: u64 = 168;

/// Known facts about a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Unknown,
    Unsupported,
    Signal,
    Outermost,
    Called(Caller),
}

/// A processor that stopped at an instruction. Each register has a value that differs from every other register plus a small
/// offset, and all words of memory have different contents.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) instruction_pointer: u64,
}

impl Machine {
    fn register(self, register: Register) -> u64 {
        if register == Register(16) {
            self.instruction_pointer
        } else {
            0x7f00_0000_0000 + (u64::from(register.0) << 32)
        }
    }

    fn word(address: u64) -> u64 {
        address.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    }

    /// Applies a row as the kernel does.
    pub(super) fn apply(self, row: Option<Row>) -> Frame {
        let Some(row) = row else { return Frame::Unknown };
        let [fp, sp] = [6, 7].map(|register| self.register(Register(register)));
        let kind = |kind: RowKind| row.kind() == kind as u64;
        let cfa = match () {
            () if kind(RowKind::None) => return Frame::Unknown,
            () if kind(RowKind::Unsupported) => return Frame::Unsupported,
            () if kind(RowKind::Signal) => return Frame::Signal,
            () if kind(RowKind::End) => return Frame::Outermost,
            () if kind(RowKind::Sp) => sp + row.offset_bytes(),
            () if kind(RowKind::FarSp) => sp + row.far_offset_bytes(),
            () if kind(RowKind::Fp) => fp + row.offset_bytes(),
            () if kind(RowKind::Base) => self.register(BASE) + row.offset_bytes(),
            () if kind(RowKind::Plt) => {
                let pushed = self.instruction_pointer % 16 >= row.offset_bytes() / 8;
                sp + if pushed { 16 } else { 8 }
            }
            () if kind(RowKind::Deref) => {
                Self::word(fp.wrapping_add(row.fp_offset_bytes())).wrapping_add(row.offset_bytes())
            }
            () => panic!("compiled code has no rows of kind {}", row.kind()),
        };
        let frame_pointer = match row.saved() {
            saved if saved == SavedFp::Register as u64 => fp,
            saved if saved == SavedFp::AtCfa as u64 => Self::word(cfa.wrapping_add(row.fp_offset_bytes())),
            _ => Self::word(fp),
        };
        Frame::Called(Caller {
            cfa,
            stack_pointer: cfa,
            frame_pointer,
            base_at: (row.base_saved_bytes() > 0).then(|| cfa.wrapping_sub(row.base_saved_bytes())),
            return_address_at: cfa.wrapping_sub(8),
        })
    }

    /// Evaluates the rules with gimli; `None` if that needs more state than the machine has.
    pub(super) fn evaluate<'data>(
        self,
        section: &impl UnwindSection<Bytes<'data>>,
        entry: &FrameDescriptionEntry<Bytes<'data>>,
        rules: &UnwindTableRow<usize>,
    ) -> Option<Frame> {
        let encoding = entry.cie().encoding();
        if rules.register(Register(16)) == Some(RegisterRule::Undefined) {
            return Some(Frame::Outermost);
        }
        let cfa = match rules.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.register(*register).wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => self.run(expression.get(section).ok()?, encoding, None)?,
        };
        let address = |register| {
            Some(match rules.register(Register(register))? {
                RegisterRule::Offset(offset) => cfa.wrapping_add_signed(offset),
                RegisterRule::Expression(expression) => {
                    self.run(expression.get(section).ok()?, encoding, Some(cfa))?
                }
                _ => return None,
            })
        };
        let value = |register, unchanged| {
            Some(match rules.register(Register(register)) {
                None => unchanged,
                Some(RegisterRule::SameValue | RegisterRule::Undefined) => self.register(Register(register)),
                Some(RegisterRule::Register(other)) => self.register(other),
                Some(RegisterRule::ValOffset(offset)) => cfa.wrapping_add_signed(offset),
                Some(RegisterRule::ValExpression(expression)) => {
                    self.run(expression.get(section).ok()?, encoding, Some(cfa))?
                }
                Some(_) => Self::word(address(register)?),
            })
        };
        let return_address_at = address(16)?;
        if entry.is_signal_trampoline() {
            let [sp, ip] = [SP_FROM_SP, IP_FROM_SP].map(|offset| self.register(Register(7)) + offset);
            return (cfa == Self::word(sp) && return_address_at == ip).then_some(Frame::Signal);
        }
        Some(Frame::Called(Caller {
            cfa,
            stack_pointer: value(7, cfa)?,
            frame_pointer: value(6, self.register(Register(6)))?,
            base_at: base_within_reach(rules).map(|offset| cfa.wrapping_add_signed(offset)),
            return_address_at,
        }))
    }

    fn run(self, expression: Expression<Bytes<'_>>, encoding: Encoding, initial: Option<u64>) -> Option<u64> {
        let mut evaluation = expression.evaluation(encoding);
        evaluation.set_max_iterations(1000);
        if let Some(initial) = initial {
            evaluation.set_initial_value(initial);
        }
        let mut state = evaluation.evaluate().ok()?;
        loop {
            state = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(self.register(register))).ok()?
                }
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    evaluation.resume_with_memory(Value::Generic(Self::word(address))).ok()?
                }
                _ => return None,
            };
        }
        match evaluation.as_result() {
            [piece] => match piece.location {
                Location::Address { address } => Some(address),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Offset of the saved base register from the CFA, if a row must be able to express it.
fn base_within_reach(rules: &UnwindTableRow<usize>) -> Option<i64> {
    let is_far = matches!(rules.cfa(), CfaRule::RegisterAndOffset { register: Register(7), offset } if *offset > 8 * 0x3fff);
    match rules.register(BASE) {
        Some(RegisterRule::Offset(offset)) if !is_far => {
            (offset % 8 == 0 && (-31 * 8..0).contains(&offset)).then_some(offset)
        }
        _ => None,
    }
}

/// Returns true if a row must be able to express the rules: the plain ones, which nearly all code has.
pub(super) fn is_plain(rules: &UnwindTableRow<usize>) -> bool {
    let whole = |offset: i64, limit: i64| offset % 8 == 0 && offset.abs() <= limit * 8;
    let cfa = match rules.cfa() {
        CfaRule::RegisterAndOffset { register: Register(3 | 6), offset } => {
            *offset >= 0 && whole(*offset, 0x3fff)
        }
        CfaRule::RegisterAndOffset { register: Register(7), offset } => {
            *offset >= 0 && whole(*offset, 0x7_ffff)
        }
        _ => false,
    };
    let frame_pointer = match rules.register(Register(6)) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => true,
        Some(RegisterRule::Offset(offset)) => whole(offset, 63),
        _ => false,
    };
    cfa && frame_pointer
        && rules.register(Register(7)).is_none()
        && rules.register(Register(16)) == Some(RegisterRule::Offset(-8))
}
