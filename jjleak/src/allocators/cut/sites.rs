//! Chooses the instructions of a function to probe.
//!
//! A call begins *fresh*. A probe that reads both size and block *settles* it at once; where only the size is known, a probe
//! *notes* the call, and a later probe that reads the block settles it. The phase of a call must depend on its current
//! instruction alone. Then every call is settled exactly once, or fails without being noted.

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

/// Effect of a probe on the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::allocators) enum Step {
    /// Notes the call with its size.
    Note,
    /// Settles a noted call with its block.
    Settle,
    /// Does both.
    Whole,
}

/// Progress of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Fresh,
    Noted,
    Settled,
}

/// Values that can be read at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KnownValues {
    /// The register with the requested size.
    pub(super) size: Option<u8>,
    /// True if `rax` contains the result of the call; null if the call will fail.
    pub(super) has_block: bool,
    /// Distance in words from the caller's saved frame pointer up to the canonical frame address; 0 if it is in its register.
    pub(super) frame_pointer_words: u8,
    pub(super) cfa_words: u16,
    pub(super) stepping: Stepping,
}

/// A function, with the known facts about every instruction.
struct Cut<'a> {
    flow: &'a Flow,
    views: BTreeMap<u64, KnownValues>,
    /// Instructions at which the call is certain to fail.
    failing: BTreeSet<u64>,
    before: BTreeMap<u64, Vec<u64>>,
}

/// The instructions to probe, with the step of each and the values that can be read there.
pub(super) fn choose(flow: &Flow) -> Result<BTreeMap<u64, (Step, KnownValues)>, NoCut> {
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

    /// The instructions before which every call can be settled: as many as possible, to settle calls early.
    fn settled(&self) -> BTreeSet<u64> {
        let mut settled: BTreeSet<u64> = self.flow.nodes.keys().copied().collect();
        settled.remove(&self.flow.entry);
        loop {
            let holds = |&at: &u64| {
                // The phase of a call that will fail does not matter.
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

    /// The probes that settle calls at these instructions; `None` if that is impossible.
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
        // Note calls as late as possible.
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
                // Another path to this instruction is noted already.
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

    /// The proof: follows every path from the entry, and checks that each call is settled once, or fails without being noted.
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

/// Values that can be read at an instruction; `None` if it cannot carry a probe.
fn view(node: &Node, returned: &Returned) -> Option<KnownValues> {
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
    Some(KnownValues {
        size: state.find(Value::Requested).find_map(size_register),
        has_block,
        frame_pointer_words,
        cfa_words,
        stepping: node.stepping,
    })
}
