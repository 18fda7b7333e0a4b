//! Rows for functions of Go's runtime that set the stack pointer. The instructions with which they switch back show where the
//! caller's state is saved.

use std::ops::Range;

mod code;
mod running;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};
use jjleak_common::unwind::{Row, RowKind, SavedFp, ToRunning, ToScheduler};

use self::code::{depth_at, is_call, load, stack_pointer_from, store, words, writes_stack_pointer};
use super::{
    WORD, sp_row,
    table::{Function, Table},
};

/// Maximum size of a function that is disassembled; `runtime.cgocallback` has about 300 bytes.
const MAX_CODE_BYTES: u64 = 1024;

/// Maximum number of functions that are disassembled. Each of the eight names can have two: a function, and a wrapper for callers
/// with other calling conventions.
pub(super) const MAX_SPECIAL: usize = 16;

/// Function that runs another one on the scheduler's stack.
pub(super) const SYSTEMSTACK: &[u8] = b"runtime.systemstack";

/// Offset of the stack's upper end in a goroutine (`g.stack.hi`).
const STACK_END_IN_G: u64 = 8;

/// Returns true if a function's rows come from its code, because its table is insufficient.
pub(super) fn is_special(name: &[u8]) -> bool {
    matches!(
        name,
        b"runtime.asmcgocall"
            | b"runtime.callCgoMmap"
            | b"runtime.callCgoMunmap"
            | b"runtime.cgocallback"
            | b"runtime.mcall"
            | b"runtime.morestack"
            | b"crosscall2"
            | SYSTEMSTACK
    )
}

/// The way from the scheduler's stack back to the goroutine that the thread runs, from the code of `runtime.systemstack`.
pub(super) fn to_running(code: &[u8], function: &Function<'_>, table: &Table<'_>) -> Option<ToRunning> {
    let instructions = instructions(code, function)?;
    let depths: Vec<_> = table.depths(function).collect();
    let written = instructions.iter().position(writes_stack_pointer)?;
    running::systemstack(&instructions, written, |address| depth_at(&depths, address))
}

/// The instructions of a function; `None` if it is too large to be one of the runtime's.
fn instructions(code: &[u8], function: &Function<'_>) -> Option<Vec<Instruction>> {
    let Range { start, end } = function.addresses;
    let decoder = Decoder::with_ip(u64::BITS, code, start, DecoderOptions::NONE);
    (end - start <= MAX_CODE_BYTES).then(|| decoder.into_iter().collect())
}

/// The rows of a [special](is_special) function, with their addresses. Code of unknown form is unsupported.
pub(super) fn rows(
    code: &[u8],
    function: &Function<'_>,
    table: &Table<'_>,
    running: Option<&ToRunning>,
) -> Vec<(u64, Row)> {
    let unsupported = || vec![(function.addresses.start, Row::plain(0, RowKind::Unsupported))];
    let Some(instructions) = instructions(code, function) else { return unsupported() };
    let depths: Vec<_> = table.depths(function).collect();
    let depth = |address| depth_at(&depths, address);
    if function.name == b"crosscall2" {
        return crosscall(&instructions, &depths);
    }
    let Some(written) = instructions.iter().position(writes_stack_pointer) else { return unsupported() };
    // Calls before the switch are on the caller's stack.
    let mut rows: Vec<_> = depths.iter().map(|(from, depth)| (*from, sp_row(*depth))).collect();
    rows.retain(|(from, _)| *from < instructions[written].ip());
    rows.push((instructions[written].ip(), Row::plain(0, RowKind::Unsupported)));
    let calls = (written..instructions.len()).filter(|index| is_call(&instructions[*index]));
    for index in calls {
        let (call, row) = (
            &instructions[index],
            match function.name {
                b"runtime.asmcgocall" | b"runtime.callCgoMmap" | b"runtime.callCgoMunmap" => {
                    asmcgocall(&instructions, index, depth)
                }
                b"runtime.cgocallback" => cgocallback(&instructions, written, index, depth),
                b"runtime.morestack" => running.and_then(|it| running::morestack(&instructions[..index], it)),
                SYSTEMSTACK => running.and_then(|it| Row::go_to_running(0, it)),
                _ => Some(Row::plain(0, RowKind::End)),
            },
        );
        if let Some(row) = row {
            rows.push((call.ip(), row));
            rows.push((call.next_ip(), Row::plain(0, RowKind::Unsupported)));
        }
        // Only this function has further calls, on the scheduler's stack.
        if function.name != b"runtime.asmcgocall" {
            break;
        }
    }
    rows
}

/// Content of a register while `runtime.asmcgocall` switches back.
#[derive(Clone, Copy)]
enum Held {
    /// The word at this offset from the stack pointer.
    Kept(u64),
    /// The upper end of the stack of the goroutine stored at this offset.
    StackEnd(u64),
    /// The upper end of the stack of the goroutine stored at `goroutine_at`, minus the depth stored at `depth_at`.
    Pointer { goroutine_at: u64, depth_at: u64 },
}

/// The row at a call of C code, from the source of the stack pointer that is restored after it.
fn asmcgocall(instructions: &[Instruction], call: usize, depth: impl Fn(u64) -> Option<i64>) -> Option<Row> {
    let mut held: Vec<(Register, Held)> = Vec::new();
    let of = |held: &[(Register, Held)], register| {
        held.iter().rev().find(|(it, _)| *it == register).map(|it| it.1)
    };
    for instruction in &instructions[call + 1..] {
        if let Some((Register::RSP, Register::RSP, offset)) = load(instruction) {
            let cfa = u64::try_from(depth(instruction.next_ip())?).ok()? / WORD + 1;
            return Row::go_stay(0, cfa, words(offset)?);
        }
        if let Some((to, base, offset)) = load(instruction) {
            match of(&held, base) {
                _ if base == Register::RSP => held.push((to, Held::Kept(offset))),
                Some(Held::Kept(at)) if offset == STACK_END_IN_G => held.push((to, Held::StackEnd(at))),
                _ => held.retain(|(register, _)| *register != to),
            }
        } else if instruction.code() == Code::Sub_r64_rm64 && instruction.memory_base() == Register::RSP {
            let Some(Held::StackEnd(goroutine_at)) = of(&held, instruction.op0_register()) else {
                return None;
            };
            let depth_at = instruction.memory_displacement64();
            held.push((instruction.op0_register(), Held::Pointer { goroutine_at, depth_at }));
        } else if let Some(from) = stack_pointer_from(instruction) {
            let cfa = u64::try_from(depth(instruction.next_ip())?).ok()? / WORD + 1;
            return match of(&held, from)? {
                Held::Kept(at) => Row::go_stay(0, cfa, words(at)?),
                Held::Pointer { goroutine_at, depth_at } if depth_at + WORD == goroutine_at => {
                    to_scheduler(&instructions[..call], cfa, words(goroutine_at)?)
                }
                _ => None,
            };
        } else if writes_stack_pointer(instruction) || instruction.flow_control() != FlowControl::Next {
            return None;
        }
    }
    None
}

/// The row at a call on the scheduler's stack, to which the preceding instructions have switched.
fn to_scheduler(before: &[Instruction], cfa: u64, goroutine_at: u64) -> Option<Row> {
    let switched = before.iter().rposition(|it| load(it).is_some_and(|(to, ..)| to == Register::RSP))?;
    let (_, _, pointer_in_g) = load(&before[switched])?;
    let room = before[switched + 1..].iter().find(|it| it.mnemonic() == Mnemonic::Sub)?;
    let aligned = before[switched + 1..].iter().find(|it| it.mnemonic() == Mnemonic::And)?;
    if room.op0_register() != Register::RSP || aligned.op0_register() != Register::RSP {
        return None;
    }
    // The goroutine is in a register; the first field read from it is its thread.
    let of_g = |it: &&Instruction| load(it).is_some_and(|(_, base, _)| base == Register::RDI);
    let (_, _, thread_in_g) = load(before[..switched].iter().find(of_g)?)?;
    Row::go_to_scheduler(
        0,
        &ToScheduler {
            cfa,
            goroutine_at,
            room: words(room.immediate(1))?,
            thread_in_g: words(thread_in_g)?,
            pointer_in_g: words(pointer_in_g)?,
        },
    )
}

/// The row at the call of Go code: the stack pointer is saved with the scheduler, and the one saved there before is at the stack
/// pointer.
fn cgocallback(
    instructions: &[Instruction],
    written: usize,
    call: usize,
    depth: impl Fn(u64) -> Option<i64>,
) -> Option<Row> {
    stack_pointer_from(&instructions[written])?;
    let before = &instructions[..written];
    let kept = before.iter().rposition(|it| store(it).is_some_and(|(from, ..)| from == Register::RSP))?;
    let (_, _, pointer_in_g) = store(&before[kept])?;
    let (older, base, at) = store(before.get(kept.checked_sub(1)?)?)?;
    let (loaded, _, from) = load(before.get(kept.checked_sub(2)?)?)?;
    let keeps_older = (older, base, at, from) == (loaded, Register::RSP, 0, pointer_in_g);
    let restores =
        instructions[call..].iter().find(|it| load(it).is_some_and(|(to, ..)| to == Register::RSP));
    let goes_back = restores.and_then(load).is_some_and(|(_, _, offset)| offset == pointer_in_g);
    if !keeps_older || !goes_back {
        return None;
    }
    Row::go_to_goroutine(0, u64::try_from(depth(instructions[call].ip())?).ok()? / WORD + 1)
}

/// Rows of a function that saves the frame pointer of the C code that calls it.
fn crosscall(instructions: &[Instruction], depths: &[(u64, i64)]) -> Vec<(u64, Row)> {
    let depth = |at| depth_at(depths, at);
    let saved = saved_frame_pointer(instructions, depth);
    let Some((range, saved_at)) = saved else {
        return depths
            .first()
            .map(|(from, _)| (*from, Row::plain(0, RowKind::Unsupported)))
            .into_iter()
            .collect();
    };
    let mut begins: Vec<_> = depths.iter().map(|(from, _)| *from).chain([range.start, range.end]).collect();
    begins.sort_unstable();
    begins.dedup();
    let row = |at| {
        let row = sp_row(depth(at)?);
        if !range.contains(&at) {
            return Some(row);
        }
        Row::new(0, RowKind::Sp, row.offset_bytes() / WORD, SavedFp::AtCfa, saved_at)
    };
    begins.into_iter().map(|at| (at, row(at).unwrap_or(Row::plain(0, RowKind::Unsupported)))).collect()
}

/// Range of addresses in which the caller's frame pointer is on the stack, and its distance from the CFA in words.
fn saved_frame_pointer(
    instructions: &[Instruction],
    depth: impl Fn(u64) -> Option<i64>,
) -> Option<(Range<u64>, i64)> {
    let is_push = |it: &Instruction| it.code() == Code::Push_r64 && it.op0_register() == Register::RBP;
    let is_store =
        |it: &Instruction| store(it).is_some_and(|it| (it.0, it.1) == (Register::RBP, Register::RSP));
    let save = instructions.iter().find(|it| is_push(it) || is_store(it))?;
    let is_restore = |it: &Instruction| {
        let is_load = load(it).is_some_and(|it| (it.0, it.1) == (Register::RBP, Register::RSP));
        let is_pop = it.code() == Code::Pop_r64 && it.op0_register() == Register::RBP;
        if is_push(save) { is_pop } else { is_load }
    };
    let restore = instructions.iter().find(|it| is_restore(it))?;
    let from_pointer =
        if is_push(save) { -WORD.cast_signed() } else { i64::try_from(store(save)?.2).ok()? };
    let from_cfa = from_pointer - depth(save.ip())? - WORD.cast_signed();
    Some((save.next_ip()..restore.next_ip(), from_cfa / WORD.cast_signed()))
}
