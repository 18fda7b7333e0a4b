//! Functions that run the runtime's own functions on the scheduler's stack: `runtime.systemstack` and `runtime.morestack`.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use jjleak_common::unwind::{Row, ToRunning};

use super::{
    super::WORD,
    code::{is_call, load, stack_pointer_from, store, thread_variable, words, writes_stack_pointer},
};

/// Content of a register while `runtime.systemstack` switches back.
#[derive(Clone, Copy)]
enum Held {
    /// The thread's variable at this distance below the thread pointer: the current goroutine.
    Current(i64),
    /// The thread that runs the current goroutine.
    Thread { below_thread: i64, thread_in_g: u64 },
    /// The goroutine that the thread runs.
    Running { below_thread: i64, thread_in_g: u64, running_in_m: u64 },
    /// A constant.
    Constant(i64),
}

/// The way back from the call in `runtime.systemstack`: the instructions after it load the stack pointer from the goroutine.
pub(super) fn systemstack(
    instructions: &[Instruction],
    written: usize,
    depth: impl Fn(u64) -> Option<i64>,
) -> Option<ToRunning> {
    let call = written + instructions[written..].iter().position(is_call)?;
    let mut held: Vec<(Register, Held)> = Vec::new();
    for instruction in &instructions[call + 1..] {
        let of = |register| held.iter().rev().find(|(it, _)| *it == register).map(|it| it.1);
        if let Some((to, value)) = step(instruction, of) {
            held.push((to, value));
        } else if let Some((Register::RSP, base, pointer_in_g)) = load(instruction) {
            let Some(Held::Running { below_thread, thread_in_g, running_in_m }) = of(base) else {
                return None;
            };
            let is_switch_there = is_switch(&instructions[..call], pointer_in_g);
            return is_switch_there.then_some(ToRunning {
                cfa: u64::try_from(depth(instruction.next_ip())?).ok()? / WORD + 1,
                below_thread: words(u64::try_from(below_thread).ok()?)?,
                thread_in_g: words(thread_in_g)?,
                running_in_m: words(running_in_m)?,
                pointer_in_g: words(pointer_in_g)?,
            });
        } else if writes_stack_pointer(instruction) || is_call(instruction) {
            return None;
        }
    }
    None
}

/// The register that an instruction sets, and its content.
fn step(instruction: &Instruction, of: impl Fn(Register) -> Option<Held>) -> Option<(Register, Held)> {
    if instruction.code() == Code::Mov_rm64_imm32 && instruction.op0_kind() == OpKind::Register {
        return Some((instruction.op0_register(), Held::Constant(instruction.immediate32to64())));
    }
    if let Some((to, base, offset)) = thread_variable(instruction) {
        let base = match base {
            Register::None => 0,
            base => match of(base)? {
                Held::Constant(base) => base,
                _ => return None,
            },
        };
        return Some((to, Held::Current(base.checked_add(offset)?.checked_neg()?)));
    }
    let (to, base, offset) = load(instruction)?;
    let held = match of(base)? {
        _ if to == Register::RSP => return None,
        Held::Current(below_thread) => Held::Thread { below_thread, thread_in_g: offset },
        Held::Thread { below_thread, thread_in_g } => {
            Held::Running { below_thread, thread_in_g, running_in_m: offset }
        }
        Held::Running { .. } | Held::Constant(_) => return None,
    };
    Some((to, held))
}

/// Returns true if the instructions before a call set the stack pointer to the word at this offset in a goroutine, and to
/// nothing below it.
fn is_switch(before: &[Instruction], pointer_in_g: u64) -> bool {
    let Some(read) = before.iter().rposition(|it| load(it).is_some_and(|it| it.2 == pointer_in_g)) else {
        return false;
    };
    let Some((to, ..)) = load(&before[read]) else { return false };
    let is_set =
        to == Register::RSP || before[read + 1..].iter().any(|it| stack_pointer_from(it) == Some(to));
    let lowers = |it: &Instruction| {
        matches!(
            it.mnemonic(),
            Mnemonic::Sub | Mnemonic::Add | Mnemonic::And | Mnemonic::Lea | Mnemonic::Push
        )
    };
    is_set && !before[read + 1..].iter().any(lowers)
}

/// The row at the call in `runtime.morestack`, which never returns: the goroutine has saved where its function starts again.
pub(super) fn morestack(before: &[Instruction], running: &ToRunning) -> Option<Row> {
    let pointer_in_g = running.pointer_in_g * WORD;
    let saves = |offset| before.iter().any(|it| store(it).is_some_and(|it| it.2 == offset));
    if !is_switch(before, pointer_in_g) || !saves(pointer_in_g) || !saves(pointer_in_g + WORD) {
        return None;
    }
    Row::go_to_running(0, &ToRunning { cfa: 0, ..*running })
}
