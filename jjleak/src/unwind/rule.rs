//! Converts a row of a DWARF unwind table into a row for the kernel.
//!
//! Only the CFA, the return address, the frame pointer and the base register matter: a row's CFA is the caller's stack pointer,
//! and no CFA that a row can express needs another register. Register numbers and defaults: System V ABI for x86-64, "DWARF
//! Definition"; operations: DWARF 5, sections 2.5 and 6.4.

use gimli::{
    CfaRule, Encoding, EndianSlice, LittleEndian, Operation, Register, RegisterRule, UnwindContextStorage,
    UnwindExpression, UnwindSection, UnwindTableRow, X86_64,
};
use jjleak_common::unwind::{Row, RowKind, SavedFp};

/// Bytes of call frame information.
pub(super) type Bytes<'data> = EndianSlice<'data, LittleEndian>;

const FP: Register = X86_64::RBP;
const SP: Register = X86_64::RSP;
/// The base register: glibc's trampolines for lazy binding compute their CFA from it.
const BASE: Register = X86_64::RBX;
const RA: Register = X86_64::RA;

/// A call pushes the return address, which is therefore directly below the CFA.
const RETURN_ADDRESS_FROM_CFA: i64 = -8;

/// Offsets of the interrupted stack pointer and instruction pointer from the stack pointer in the frame that the kernel pushes
/// for a signal handler, once the handler has returned (`uc_mcontext` in `struct ucontext`).
const SP_FROM_SP: i64 = 160;
const IP_FROM_SP: i64 = 168;

/// Unit of the offsets in rows.
const WORD_BYTES: i64 = 8;

/// Number of operations in the longest CFA expression that a row can express, that of a PLT entry.
const MAX_OPERATIONS: usize = 9;

/// Capacity for the state of an unwind table. x86-64 has 17 registers with rules, and 16 more vector registers when mixed with
/// the Windows calling convention; the depth is the limit of gimli for all targets.
pub(super) struct Room;

impl UnwindContextStorage<usize> for Room {
    type Rules = [(Register, RegisterRule<usize>); 33];
    type Stack = Box<[UnwindTableRow<usize, Self>; 4]>;
}

/// Reason why a row cannot express a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// The CFA is not relative to the stack pointer, the frame pointer or `rbx`: mostly in the first instructions of functions
    /// that realign the stack.
    CfaRegister,
    /// The CFA is an expression of no known form.
    CfaExpression,
    /// The offset of the CFA is not in whole words, or too large.
    CfaOffset,
    /// The caller's frame pointer is neither in its register nor on the stack within range.
    FramePointer,
    /// The caller's stack pointer is not the CFA.
    StackPointer,
    /// The return address is not directly below the CFA.
    ReturnAddress,
    /// A frame to which no call returns, other than the one that the kernel pushes for a signal handler.
    SignalFrame,
    /// The rules could not be evaluated.
    Malformed,
}

impl Unsupported {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::CfaRegister,
        Self::CfaExpression,
        Self::CfaOffset,
        Self::FramePointer,
        Self::StackPointer,
        Self::ReturnAddress,
        Self::SignalFrame,
        Self::Malformed,
    ];
}

/// Rule for the CFA; offsets in bytes.
enum Cfa {
    Sp(i64),
    Fp(i64),
    Base(i64),
    Plt { threshold: u64 },
    Deref { displacement: i64, offset: i64 },
}

/// Converts the rules of `table_row`, which apply from `address` on.
pub(super) fn express<'data, S: UnwindSection<Bytes<'data>>>(
    section: &S,
    encoding: Encoding,
    table_row: &UnwindTableRow<usize, Room>,
    address: u32,
) -> Result<Row, Unsupported> {
    match table_row.register(RA) {
        Some(RegisterRule::Offset(RETURN_ADDRESS_FROM_CFA)) => {}
        Some(RegisterRule::Undefined) => return Ok(Row::plain(address, RowKind::End)),
        _ => return Err(Unsupported::ReturnAddress),
    }
    if !matches!(table_row.register(SP), None | Some(RegisterRule::ValOffset(0))) {
        return Err(Unsupported::StackPointer);
    }
    let cfa = cfa(section, encoding, table_row.cfa())?;
    let row = row(section, encoding, table_row, cfa, address)?;
    Ok(row.with_base_saved(saved_base(table_row)))
}

/// Converts the rules of a signal frame (augmentation `S`), whose caller was interrupted rather than called. Other code than
/// signal handlers' return has such entries, too: the first frames of coroutines, for example.
pub(super) fn express_signal_frame<'data, S: UnwindSection<Bytes<'data>>>(
    section: &S,
    encoding: Encoding,
    table_row: &UnwindTableRow<usize, Room>,
    address: u32,
) -> Result<Row, Unsupported> {
    let (cfa, place) = match (table_row.cfa(), table_row.register(RA)) {
        (_, Some(RegisterRule::Undefined)) => return Ok(Row::plain(address, RowKind::End)),
        (CfaRule::Expression(cfa), Some(RegisterRule::Expression(place))) => (*cfa, place),
        _ => return Err(Unsupported::SignalFrame),
    };
    let [cfa, place] = [cfa, place].map(|expression| operations(section, encoding, expression));
    match (cfa.as_deref(), place.as_deref()) {
        (
            Some(
                [
                    Operation::RegisterOffset { register: SP, offset: SP_FROM_SP, .. },
                    Operation::Deref { size: 8, .. },
                ],
            ),
            Some([Operation::RegisterOffset { register: SP, offset: IP_FROM_SP, .. }]),
        ) => Ok(Row::plain(address, RowKind::Signal)),
        _ => Err(Unsupported::SignalFrame),
    }
}

fn row<'data, S: UnwindSection<Bytes<'data>>>(
    section: &S,
    encoding: Encoding,
    table_row: &UnwindTableRow<usize, Room>,
    cfa: Cfa,
    address: u32,
) -> Result<Row, Unsupported> {
    let (saved, saved_at) = saved_frame_pointer(section, encoding, table_row)?;
    let row = |kind, offset, saved_at| {
        let offset = words(offset).and_then(|offset| u64::try_from(offset).ok());
        let offset =
            offset.filter(|&offset| offset <= Row::MAX_OFFSET_WORDS).ok_or(Unsupported::CfaOffset)?;
        Row::new(address, kind, offset, saved, saved_at).ok_or(Unsupported::FramePointer)
    };
    match (cfa, saved) {
        (Cfa::Sp(offset), _) => match words(offset).and_then(|offset| u64::try_from(offset).ok()) {
            Some(offset) if offset > Row::MAX_OFFSET_WORDS => {
                Row::far(address, offset, saved, saved_at).ok_or(Unsupported::CfaOffset)
            }
            _ => row(RowKind::Sp, offset, saved_at),
        },
        (Cfa::Fp(offset), _) => row(RowKind::Fp, offset, saved_at),
        (Cfa::Base(offset), _) => row(RowKind::Base, offset, saved_at),
        // These kinds have no room for the place where the frame pointer is saved.
        (Cfa::Deref { displacement, offset }, SavedFp::Register | SavedFp::AtFp) => {
            row(RowKind::Deref, offset, words(displacement).ok_or(Unsupported::CfaExpression)?)
        }
        (Cfa::Plt { threshold }, SavedFp::Register) => {
            Row::new(address, RowKind::Plt, threshold, saved, saved_at).ok_or(Unsupported::CfaOffset)
        }
        _ => Err(Unsupported::FramePointer),
    }
}

/// Number of words from the saved base register up to the CFA; 0 if unknown.
fn saved_base(table_row: &UnwindTableRow<usize, Room>) -> u64 {
    match table_row.register(BASE) {
        Some(RegisterRule::Offset(offset)) => {
            let words = offset.checked_neg().and_then(words);
            words.and_then(|words| u64::try_from(words).ok()).unwrap_or_default()
        }
        _ => 0,
    }
}

/// Location of the caller's frame pointer, and its distance in words from the CFA.
fn saved_frame_pointer<'data, S: UnwindSection<Bytes<'data>>>(
    section: &S,
    encoding: Encoding,
    table_row: &UnwindTableRow<usize, Room>,
) -> Result<(SavedFp, i64), Unsupported> {
    match table_row.register(FP) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => Ok((SavedFp::Register, 0)),
        Some(RegisterRule::Offset(offset)) => {
            words(offset).map(|offset| (SavedFp::AtCfa, offset)).ok_or(Unsupported::FramePointer)
        }
        Some(RegisterRule::Expression(address)) => match operations(section, encoding, address).as_deref() {
            Some([Operation::RegisterOffset { register: FP, offset: 0, .. }]) => Ok((SavedFp::AtFp, 0)),
            _ => Err(Unsupported::FramePointer),
        },
        _ => Err(Unsupported::FramePointer),
    }
}

fn cfa<'data, S: UnwindSection<Bytes<'data>>>(
    section: &S,
    encoding: Encoding,
    rule: &CfaRule<usize>,
) -> Result<Cfa, Unsupported> {
    use Operation::{And, Deref, Ge, Plus, PlusConstant, RegisterOffset, Shl, UnsignedConstant};
    let expression = match *rule {
        CfaRule::RegisterAndOffset { register: SP, offset } => return Ok(Cfa::Sp(offset)),
        CfaRule::RegisterAndOffset { register: FP, offset } => return Ok(Cfa::Fp(offset)),
        CfaRule::RegisterAndOffset { register: BASE, offset } => return Ok(Cfa::Base(offset)),
        CfaRule::RegisterAndOffset { .. } => return Err(Unsupported::CfaRegister),
        CfaRule::Expression(expression) => expression,
    };
    match operations(section, encoding, expression).as_deref() {
        Some([RegisterOffset { register: SP, offset, .. }]) => Ok(Cfa::Sp(*offset)),
        Some([RegisterOffset { register: FP, offset, .. }]) => Ok(Cfa::Fp(*offset)),
        // GCC's expression for functions that realign the stack.
        Some([RegisterOffset { register: FP, offset: displacement, .. }, Deref { size: 8, .. }]) => {
            Ok(Cfa::Deref { displacement: *displacement, offset: 0 })
        }
        Some(
            [
                RegisterOffset { register: FP, offset: displacement, .. },
                Deref { size: 8, .. },
                PlusConstant { value },
            ],
        ) => {
            let offset = i64::try_from(*value).map_err(|_| Unsupported::CfaOffset)?;
            Ok(Cfa::Deref { displacement: *displacement, offset })
        }
        // The linkers' expression for `.plt`: an entry has 16 bytes and pushes a word at `threshold`.
        Some(
            [
                RegisterOffset { register: SP, offset: 8, .. },
                RegisterOffset { register: RA, offset: 0, .. },
                UnsignedConstant { value: 15 },
                And,
                UnsignedConstant { value: threshold },
                Ge,
                UnsignedConstant { value: 3 },
                Shl,
                Plus,
            ],
        ) => Ok(Cfa::Plt { threshold: *threshold }),
        _ => Err(Unsupported::CfaExpression),
    }
}

/// The operations of an expression; `None` if it is longer than any known form, contains an operation of none, or is malformed.
fn operations<'data, S: UnwindSection<Bytes<'data>>>(
    section: &S,
    encoding: Encoding,
    expression: UnwindExpression<usize>,
) -> Option<Vec<Operation<Bytes<'data>>>> {
    let operations = expression.get(section).ok()?.operations(encoding);
    let operations: Vec<_> = operations.take(MAX_OPERATIONS + 1).collect::<Result<_, _>>().ok()?;
    (operations.len() <= MAX_OPERATIONS && operations.iter().all(is_of_plain_words)).then_some(operations)
}

/// Returns true if an operation uses plain words of registers and memory. Its other variants also take a value of a type of the
/// program, or the number of an address space (`DW_OP_xderef`), which changes the meaning of the operations that follow, or
/// leaves them without one.
const fn is_of_plain_words(operation: &Operation<Bytes<'_>>) -> bool {
    /// Type offset of untyped values.
    const UNTYPED: usize = 0;
    match operation {
        Operation::Deref { base_type, space, .. } => base_type.0 == UNTYPED && !*space,
        Operation::RegisterOffset { base_type, .. } => base_type.0 == UNTYPED,
        _ => true,
    }
}

fn words(bytes: i64) -> Option<i64> {
    (bytes % WORD_BYTES == 0).then_some(bytes / WORD_BYTES)
}
