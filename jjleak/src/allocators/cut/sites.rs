//! Which instructions of a function to probe.
//!
//! A call begins *fresh*. A probe that sees size and block settles it at once; where only the size is known, it is
//! *noted*, and a later probe that sees the block settles it. The phase of a call must depend on where it is alone, so
//! that every call is settled once, or fails and is not noted either.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{InstructionInfoFactory, Register};
use jjleak_common::cookie::{Cookie, Inside};

use super::{
    effect::number,
    flow::{Flow, NoCut, Node},
    returned::{Returned, returned},
    state::{Place, Value, WORD},
};
use crate::allocators::site::Stepping;

/// What a probe does to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::allocators) enum Step {
    /// Notes it with its size.
    Note,
    /// Settles a noted one with its block.
    Settle,
    /// Both.
    Whole,
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Fresh,
    Noted,
    Settled,
}

/// What can be read at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// The register with the size that was asked for.
    pub(super) size: Option<u8>,
    /// Whether the result of the call is in `rax`; null if it will fail.
    pub(super) has_block: bool,
    /// How many words below the canonical frame address the caller's frame pointer is; 0 if it is in its register.
    pub(super) frame_pointer_words: u8,
    pub(super) cfa_words: u16,
    pub(super) stepping: Stepping,
}

/// A function, with what is known of every instruction.
struct Cut<'a> {
    flow: &'a Flow,
    views: BTreeMap<u64, View>,
    /// Where it is settled that the call will fail.
    failing: BTreeSet<u64>,
    before: BTreeMap<u64, Vec<u64>>,
}

/// The instructions to probe, what each does, and what can be read there.
pub(super) fn choose(flow: &Flow) -> Result<BTreeMap<u64, (Step, View)>, NoCut> {
    let cut = Cut::new(flow)?;
    let settled = cut.settled();
    let steps = cut.steps(&settled).ok_or(NoCut::NoSites)?;
    if !cut.is_exact(&steps) {
        return Err(NoCut::NoSites);
    }
    if !steps.values().any(|step| *step == Step::Whole) {
        return Err(NoCut::NoGain);
    }
    Ok(steps.into_iter().map(|(at, step)| (at, (step, cut.views[&at]))).collect())
}

impl<'a> Cut<'a> {
    fn new(flow: &'a Flow) -> Result<Self, NoCut> {
        let returned = returned(flow, &mut InstructionInfoFactory::new())?;
        let views = flow.nodes.iter().filter_map(|(&at, node)| Some((at, view(node, &returned[&at])?)));
        let failing = returned.iter().filter(|(_, returned)| **returned == Returned::Null);
        let mut before: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (&at, node) in &flow.nodes {
            for (to, _) in &node.next {
                before.entry(*to).or_default().push(at);
            }
        }
        let failing = failing.map(|(&at, _)| at).collect();
        Ok(Self { flow, views: views.collect(), failing, before })
    }

    fn next(&self, at: u64) -> impl Iterator<Item = u64> {
        self.flow.nodes[&at].next.iter().map(|(to, _)| *to)
    }

    fn before(&self, at: u64) -> &[u64] {
        self.before.get(&at).map_or(&[], Vec::as_slice)
    }

    fn can(&self, at: u64, step: Step) -> bool {
        self.views.get(&at).is_some_and(|view| match step {
            Step::Note => view.size.is_some(),
            Step::Settle => view.has_block,
            Step::Whole => view.size.is_some() && view.has_block,
        })
    }

    /// The instructions before which every call can be settled: as many as possible, so that calls are settled early.
    fn settled(&self) -> BTreeSet<u64> {
        let mut settled: BTreeSet<u64> = self.flow.nodes.keys().copied().collect();
        settled.remove(&self.flow.entry);
        loop {
            let holds = |&at: &u64| {
                // How far a call is that will fail does not matter.
                let may_follow = |to| settled.contains(&to) || self.failing.contains(&to);
                let leads_here = |&from: &u64| {
                    settled.contains(&from)
                        || self.failing.contains(&from)
                        || self.can(from, Step::Settle) && self.next(from).all(may_follow)
                };
                self.before(at).iter().all(leads_here) && self.next(at).all(may_follow)
            };
            let rest: BTreeSet<u64> = settled.iter().copied().filter(holds).collect();
            if rest.len() == settled.len() {
                return rest;
            }
            settled = rest;
        }
    }

    /// The probes by which calls are settled there; `None` where that cannot be.
    fn steps(&self, settled: &BTreeSet<u64>) -> Option<BTreeMap<u64, Step>> {
        let crosses = |at: u64| {
            !settled.contains(&at)
                && !self.failing.contains(&at)
                && self.flow.nodes[&at].next.iter().any(|(to, _)| settled.contains(to))
        };
        let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
        let mut noted = BTreeSet::new();
        let mut waiting = Vec::new();
        for &at in self.flow.nodes.keys().filter(|&&at| crosses(at)) {
            let whole = self.can(at, Step::Whole);
            steps.insert(at, if whole { Step::Whole } else { Step::Settle });
            if !whole {
                waiting.push(at);
            }
        }
        // Calls are noted as late as that can be.
        while let Some(at) = waiting.pop() {
            if at == self.flow.entry || settled.contains(&at) {
                return None;
            }
            if !noted.insert(at) {
                continue;
            }
            match steps.get_mut(&at) {
                Some(Step::Settle) => {}
                Some(step @ Step::Whole) => *step = Step::Settle,
                // Another way leads here that has been noted already.
                Some(Step::Note) => {
                    steps.remove(&at);
                    waiting.extend(self.next(at));
                }
                None => waiting.extend(self.next(at)),
            }
            for &from in self.before(at) {
                if !noted.contains(&from) && self.can(from, Step::Note) && !steps.contains_key(&from) {
                    steps.insert(from, Step::Note);
                    waiting.extend(self.next(from));
                } else if steps.get(&from) != Some(&Step::Note) {
                    waiting.push(from);
                }
            }
        }
        Some(steps)
    }

    /// The proof: follows every way from the entry, and sees that each call is settled once, or fails and has left no
    /// note.
    fn is_exact(&self, steps: &BTreeMap<u64, Step>) -> bool {
        let mut seen = BTreeSet::new();
        let mut waiting = vec![(self.flow.entry, Phase::Fresh, false)];
        while let Some(way @ (at, phase, failing)) = waiting.pop() {
            if !seen.insert(way) {
                continue;
            }
            let failing = failing || self.failing.contains(&at);
            let phase = match (steps.get(&at), phase) {
                (None, phase) => phase,
                (Some(Step::Note), Phase::Fresh) if self.can(at, Step::Note) => Phase::Noted,
                (Some(Step::Settle), Phase::Noted) if self.can(at, Step::Settle) => Phase::Settled,
                (Some(Step::Whole), Phase::Fresh) if self.can(at, Step::Whole) => Phase::Settled,
                _ => return false,
            };
            if self.flow.nodes[&at].returns()
                && phase != Phase::Settled
                && !(failing && phase == Phase::Fresh)
            {
                return false;
            }
            waiting.extend(self.next(at).map(|to| (to, phase, failing)));
        }
        true
    }
}

/// What can be read at an instruction; `None` where no probe can be.
fn view(node: &Node, returned: &Returned) -> Option<View> {
    if node.stepping == Stepping::SingleStep {
        return None;
    }
    let state = &node.state;
    let cfa_words =
        u16::try_from(-state.stack_pointer()? / WORD).ok().filter(|&it| it <= Cookie::MAX_CFA_WORDS)?;
    if state.stack_pointer()? % WORD != 0 {
        return None;
    }
    let rax = Place::Register(number(Register::RAX));
    let has_block = matches!(returned, Returned::In(places) if places.contains(&rax));
    let size_register = |place: Place| match place {
        Place::Register(number) => Inside::SIZE_REGISTERS.contains(&number).then_some(number),
        Place::Slot(_) => None,
    };
    let frame_pointer = number(Register::RBP);
    let frame_pointer_words = state.find(Value::Entry(frame_pointer)).find_map(|place| match place {
        Place::Register(number) => (number == frame_pointer).then_some(0),
        Place::Slot(at) if at % WORD == 0 => {
            u8::try_from(-at / WORD).ok().filter(|&words| words <= Inside::MAX_FRAME_POINTER_WORDS)
        }
        Place::Slot(_) => None,
    })?;
    Some(View {
        size: state.find(Value::Requested).find_map(size_register),
        has_block,
        frame_pointer_words,
        cfa_words,
        stepping: node.stepping,
    })
}
