//! Follows one function along all its branches.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind};

use super::{Code, Frame};

/// Maximum number of instructions of a function; the longest in libraries have some ten thousand.
const MAX_INSTRUCTIONS: usize = 1 << 15;
/// Maximum number of calls of a function behind which its code is left out.
const MAX_ENDS: usize = 8;

/// The address of another function in an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// It is called there.
    Call(u64),
    /// Its address is taken; or that of a place in this function.
    Address(u64),
}

impl Name {
    pub(super) const fn address(self) -> u64 {
        match self {
            Self::Call(address) | Self::Address(address) => address,
        }
    }
}

/// Kinds of instructions at which a function is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// It returns.
    Return,
    /// It jumps to another function.
    Jump,
    /// It jumps to one of several places in it, which are unknown.
    Table,
    /// A call, behind which the code contradicts itself.
    Unknown,
}

/// An instruction that was followed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) frame: Frame,
    pub(super) length: u64,
    /// Instructions that may follow: the next one, and the target of a jump.
    next: [Option<u64>; 2],
    exit: Option<Exit>,
    /// True if what follows is behind a call that may not return.
    is_doubtful: bool,
    /// The first call that may not return, on the way to it.
    call: Option<u64>,
    /// A function that is called, or whose address is taken.
    pub(super) names: Option<Name>,
}

/// The instructions of a function, by address.
pub(super) type Instructions = BTreeMap<u64, Seen>;

/// Facts about other functions.
pub(super) struct Others<'any> {
    /// First instructions.
    pub(super) starts: &'any BTreeSet<u64>,
    /// Functions that return.
    pub(super) returning: &'any HashSet<u64>,
    /// Functions that never return, nor jump to any that might.
    pub(super) ending: &'any HashSet<u64>,
}

/// The way through a function.
struct Way<'any, 'data> {
    code: &'any Code<'data>,
    start: u64,
    others: &'any Others<'any>,
    /// Calls behind which the code is another function's.
    ends: HashSet<u64>,
    seen: Instructions,
    info: InstructionInfoFactory,
}

/// The code contradicts itself, behind this call.
struct Contradiction(Option<u64>);

/// Instructions of the function at `start`, as far as they are consistent; none if it is not a function. Takes the instructions
/// that were followed from `left`.
pub(super) fn follow(code: &Code<'_>, start: u64, others: &Others<'_>, left: &mut usize) -> Instructions {
    let (ends, seen) = (HashSet::new(), Instructions::new());
    let mut way = Way { code, start, others, ends, seen, info: InstructionInfoFactory::new() };
    loop {
        way.seen.clear();
        let outcome = way.follow(MAX_INSTRUCTIONS.min(*left));
        *left = left.saturating_sub(way.seen.len());
        match outcome {
            Ok(()) => return way.seen,
            Err(Contradiction(Some(call))) if way.ends.len() < MAX_ENDS && way.ends.insert(call) => {}
            Err(_) => return Instructions::new(),
        }
    }
}

/// Instructions from which the function returns: what they say is proven by where that is. A jump proves nothing: it could be to a
/// place in a function of which this is another place.
pub(super) fn returning(seen: &Instructions) -> HashSet<u64> {
    leading_to(seen, |it| it.exit == Some(Exit::Return))
}

/// Returns true if the function jumps to places in it that are unknown.
pub(super) fn has_table(seen: &Instructions) -> bool {
    seen.values().any(|it| it.exit == Some(Exit::Table))
}

/// Returns true if the function at `start` returns. That a function to which it jumps does is unknown.
pub(super) fn returns(seen: &Instructions, start: u64) -> bool {
    returning(seen).contains(&start)
}

/// Returns true if the function at `start` never returns, nor jumps to any that might.
pub(super) fn ends(seen: &Instructions, start: u64) -> bool {
    !seen.is_empty() && !leading_to(seen, |it| it.exit.is_some()).contains(&start)
}

/// Instructions from which one of these is reached.
fn leading_to(seen: &Instructions, is_end: impl Fn(&Seen) -> bool) -> HashSet<u64> {
    let mut before: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (at, instruction) in seen {
        for next in instruction.next.into_iter().flatten() {
            before.entry(next).or_default().push(*at);
        }
    }
    let mut open: Vec<_> = seen.iter().filter(|(_, it)| is_end(it)).map(|(at, _)| *at).collect();
    let mut reached: HashSet<_> = open.iter().copied().collect();
    while let Some(at) = open.pop() {
        open.extend(before.get(&at).into_iter().flatten().copied().filter(|at| reached.insert(*at)));
    }
    reached
}

/// Instructions that are reached from the first one without a call that may not return.
pub(super) fn certain(seen: &Instructions, start: u64) -> HashSet<u64> {
    let mut open = vec![start];
    let mut reached = HashSet::new();
    while let Some(at) = open.pop() {
        let Some(instruction) = seen.get(&at) else { continue };
        if reached.insert(at) && !instruction.is_doubtful {
            open.extend(instruction.next.into_iter().flatten());
        }
    }
    reached
}

impl Way<'_, '_> {
    fn follow(&mut self, most: usize) -> Result<(), Contradiction> {
        let mut open = vec![(self.start, Frame::ENTRY, None)];
        while let Some((at, frame, call)) = open.pop() {
            self.follow_block(at, frame, call, most, &mut open)?;
        }
        Ok(())
    }

    /// Follows instructions up to the next jump or return, or to instructions that were followed before.
    fn follow_block(
        &mut self,
        at: u64,
        mut frame: Frame,
        mut call: Option<u64>,
        most: usize,
        open: &mut Vec<(u64, Frame, Option<u64>)>,
    ) -> Result<(), Contradiction> {
        let Some(mut decoder) = self.code.decoder(at) else { return Err(Contradiction(call)) };
        // True directly behind a call that may not return, or behind its padding.
        let mut is_behind_call = false;
        loop {
            let at = decoder.ip();
            if let Some(before) = self.seen.get(&at) {
                let agrees = before.frame.agrees(frame);
                return if agrees { Ok(()) } else { Err(Contradiction(call.or(before.call))) };
            }
            if is_behind_call && self.is_other(at) {
                // The call is the function's end.
                return Ok(());
            }
            if self.is_other(at) || self.seen.len() >= most || !decoder.can_decode() {
                return Err(Contradiction(call));
            }
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return Err(Contradiction(call));
            }
            let mut seen = Seen {
                frame,
                length: instruction.len() as u64,
                next: [None; 2],
                exit: None,
                is_doubtful: false,
                call,
                names: named(&instruction),
            };
            let goes_on = self.advance(&instruction, &mut seen, &mut frame, open)?;
            if seen.is_doubtful {
                call = call.or(Some(at));
            }
            is_behind_call = seen.is_doubtful || is_behind_call && instruction.mnemonic() == Mnemonic::Nop;
            // Another function's code follows: this one has ended, by a jump in place of a call and a return.
            let falls = goes_on && !(self.is_other(instruction.next_ip()) && frame.can_leave());
            if goes_on && !falls {
                seen.exit = Some(Exit::Jump);
            }
            seen.next[0] = falls.then(|| instruction.next_ip());
            self.seen.insert(at, seen);
            if !falls {
                return Ok(());
            }
        }
    }

    /// Does what an instruction does, and returns true if the next one follows it.
    fn advance(
        &mut self,
        instruction: &Instruction,
        seen: &mut Seen,
        frame: &mut Frame,
        open: &mut Vec<(u64, Frame, Option<u64>)>,
    ) -> Result<bool, Contradiction> {
        match instruction.flow_control() {
            FlowControl::Next if instruction.mnemonic() == Mnemonic::Hlt => return Ok(false),
            FlowControl::Next => *frame = frame.step(instruction, &mut self.info),
            FlowControl::Return => {
                seen.exit = Some(Exit::Return);
                return if frame.can_leave() { Ok(false) } else { Err(Contradiction(seen.call)) };
            }
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let target = instruction.near_branch_target();
                if self.is_other(target) {
                    if !frame.can_leave() {
                        return Err(Contradiction(seen.call));
                    }
                    seen.exit = Some(Exit::Jump);
                } else {
                    seen.next[1] = Some(target);
                    open.push((target, *frame, seen.call));
                }
                return Ok(instruction.flow_control() == FlowControl::ConditionalBranch);
            }
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => {}
            FlowControl::Call | FlowControl::IndirectCall => {
                if self.ends.contains(&instruction.ip()) {
                    seen.exit = Some(Exit::Unknown);
                    return Ok(false);
                }
                let target = (instruction.op0_kind() == OpKind::NearBranch64)
                    .then(|| instruction.near_branch_target());
                if target.is_some_and(|target| self.others.ending.contains(&target)) {
                    return Ok(false);
                }
                seen.is_doubtful = !target.is_some_and(|target| self.others.returning.contains(&target));
            }
            // A jump to another function, or one of several targets that are unknown.
            FlowControl::IndirectBranch => {
                seen.exit = Some(if frame.can_leave() { Exit::Jump } else { Exit::Table });
                return Ok(false);
            }
            FlowControl::Interrupt | FlowControl::Exception => return Ok(false),
            FlowControl::XbeginXabortXend => return Err(Contradiction(seen.call)),
        }
        Ok(true)
    }

    /// Returns true if this address belongs to another function, or to code with call frame information.
    fn is_other(&self, at: u64) -> bool {
        at != self.start && self.others.starts.contains(&at) || !self.code.gaps.contains(at)
    }
}

/// The function that an instruction calls, or whose address it takes.
pub(super) fn named(instruction: &Instruction) -> Option<Name> {
    match instruction.flow_control() {
        FlowControl::Call if instruction.op0_kind() == OpKind::NearBranch64 => {
            Some(Name::Call(instruction.near_branch_target()))
        }
        FlowControl::Next
            if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() =>
        {
            Some(Name::Address(instruction.ip_rel_memory_address()))
        }
        _ => None,
    }
}
