//! Turns a row of a DWARF unwind table into a row for the kernel.
//!
//! Only the CFA, the return address, the frame pointer and the base register matter: a row's CFA is the caller's stack
//! pointer, and no CFA that a row can express needs another register. Register numbers and defaults: System V ABI for x86-64, "DWARF
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
/// glibc's trampolines that bind calls find their frames by it.
const BASE: Register = X86_64::RBX;
const RA: Register = X86_64::RA;

/// A call pushes the return address, so it lies right below the CFA.
const RETURN_ADDRESS_FROM_CFA: i64 = -8;

/// The offsets of rows count words.
const WORD_BYTES: i64 = 8;

/// Operations of the longest CFA expression that a row can express, that of a PLT entry.
const MAX_OPERATIONS: usize = 9;

/// Room for the state of an unwind table. x86-64 has 17 registers with rules, and 16 more vector registers when the
/// Windows calling convention is mixed in; the depth is what gimli allows for all.
pub(super) struct Room;

impl UnwindContextStorage<usize> for Room {
    type Rules = [(Register, RegisterRule<usize>); 33];
    type Stack = Box<[UnwindTableRow<usize, Self>; 4]>;
}

/// Why a rule cannot be expressed by a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// The CFA is relative to another register than the stack or frame pointer or `rbx`: mostly the first instructions of
    /// functions that realign the stack.
    CfaRegister,
    /// The CFA is an expression of no known form.
    CfaExpression,
    /// The CFA's offset is not in whole words, or too large.
    CfaOffset,
    /// The caller's frame pointer is somewhere else than in its register or on the stack within reach.
    FramePointer,
    /// The caller's stack pointer is not the CFA.
    StackPointer,
    /// The return address is not right below the CFA.
    ReturnAddress,
    /// The rules could not be evaluated.
    Malformed,
}

impl Unsupported {
    /// Every reason; its index is the reason's number.
    pub const ALL: [Self; 7] = [
        Self::CfaRegister,
        Self::CfaExpression,
        Self::CfaOffset,
        Self::FramePointer,
        Self::StackPointer,
        Self::ReturnAddress,
        Self::Malformed,
    ];
}

/// How to find the CFA; offsets in bytes.
enum Cfa {
    Sp(i64),
    Fp(i64),
    Base(i64),
    Plt { threshold: u64 },
    Deref { displacement: i64, offset: i64 },
}

/// Expresses the rules of `table_row`, which hold from `address` on.
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
        // These kinds have no room for where the frame pointer is saved.
        (Cfa::Deref { displacement, offset }, SavedFp::Register | SavedFp::AtFp) => {
            row(RowKind::Deref, offset, words(displacement).ok_or(Unsupported::CfaExpression)?)
        }
        (Cfa::Plt { threshold }, SavedFp::Register) => {
            Row::new(address, RowKind::Plt, threshold, saved, saved_at).ok_or(Unsupported::CfaOffset)
        }
        _ => Err(Unsupported::FramePointer),
    }
}

/// How many words below the CFA the base register is saved; 0 when it is not known.
fn saved_base(table_row: &UnwindTableRow<usize, Room>) -> u64 {
    match table_row.register(BASE) {
        Some(RegisterRule::Offset(offset)) => {
            let words = offset.checked_neg().and_then(words);
            words.and_then(|words| u64::try_from(words).ok()).unwrap_or_default()
        }
        _ => 0,
    }
}

/// Where the caller's frame pointer is, and how many words from the CFA.
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
        // What GCC writes for functions that realign the stack.
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
        // What linkers write for `.plt`: an entry of 16 bytes pushes a word at `threshold`.
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

/// The operations of an expression; `None` when it has more than any known form, has one that none has, or is malformed.
fn operations<'data, S: UnwindSection<Bytes<'data>>>(
    section: &S,
    encoding: Encoding,
    expression: UnwindExpression<usize>,
) -> Option<Vec<Operation<Bytes<'data>>>> {
    let operations = expression.get(section).ok()?.operations(encoding);
    let operations: Vec<_> = operations.take(MAX_OPERATIONS + 1).collect::<Result<_, _>>().ok()?;
    (operations.len() <= MAX_OPERATIONS && operations.iter().all(is_of_plain_words)).then_some(operations)
}

/// Whether an operation is on words as they are in registers and memory. Its other variants take a value of a type of the
/// program's, or the number of an address space besides (`DW_OP_xderef`): what follows means something else then, or nothing.
const fn is_of_plain_words(operation: &Operation<Bytes<'_>>) -> bool {
    /// The offset that no type has.
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
