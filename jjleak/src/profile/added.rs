//! Profiles of several instances of a program, added up.

use std::collections::HashMap;
use std::sync::Arc;

use jjleak_common::stack::StackStatus;

use super::merge::add_count;
use super::threads::add;
use super::{DistinctIds, Frame, Profile, SharedFrame};

/// Identity of a frame across processes, in each of which code has other addresses.
#[derive(PartialEq, Eq, Hash)]
struct Place {
    symbol: String,
    module: String,
    file: String,
    line: u32,
    /// 0 if the code has a name.
    address: u64,
}

impl Place {
    fn of(frame: &Frame) -> Self {
        Self {
            symbol: frame.symbol.clone(),
            module: frame.module.clone(),
            file: frame.file.clone(),
            line: frame.line,
            address: if frame.symbol.is_empty() { frame.address } else { 0 },
        }
    }
}

impl Profile {
    /// Sum of profiles: stacks with the same functions, modules, lines and status are one. It has no verdicts, which are on one process.
    /// `None` without profiles.
    #[must_use]
    pub fn added(profiles: Vec<Self>) -> Option<Self> {
        let number = profiles.len();
        let mut profiles = profiles.into_iter();
        let mut sum = profiles.next()?;
        let mut places = Places::default();
        let first = std::mem::take(&mut sum.stacks);
        let mut stacks = Vec::new();
        let mut ids = DistinctIds::default();
        let blocks_per_stack = sum.coverage.blocks_per_stack;
        let mut take = |all: Vec<_>| {
            for mut stack in all {
                let known = places.find(&stack, stacks.len());
                if let Some(known) = known {
                    add(&mut stacks[known], &stack, blocks_per_stack);
                    continue;
                }
                stack.id = ids.distinct(stack.id);
                stacks.push(stack);
            }
        };
        take(first);
        for profile in profiles {
            take(profile.stacks);
            sum.started_at = sum.started_at.min(profile.started_at);
            sum.taken_at = sum.taken_at.max(profile.taken_at);
            sum.unknown_frees = sum.unknown_frees.saturating_add(profile.unknown_frees);
            for (name, count) in profile.lost {
                add_count(sum.lost.entry(name.clone()).or_default(), &name, count);
            }
        }
        sum.stacks = stacks;
        if number > 1 {
            sum.process.comm = format!("{number} profiles of {}", sum.process.comm);
            sum.process.pid = 0;
            sum.history.clear();
            sum.growth.clear();
            sum.unjudge();
        }
        Some(sum)
    }
}

/// Indexes of stacks by the identities of their frames.
#[derive(Default)]
struct Places {
    frames: HashMap<Place, u32>,
    /// Numbers of frames that are shared within a profile.
    known: HashMap<*const Frame, (SharedFrame, u32)>,
    stacks: HashMap<(Vec<u32>, StackStatus), usize>,
}

impl Places {
    /// Index of a stack that was found before; otherwise it gets the index `next`.
    fn find(&mut self, stack: &super::StackProfile, next: usize) -> Option<usize> {
        let key = stack.frames.iter().map(|frame| self.number(frame)).collect();
        let index = *self.stacks.entry((key, stack.status)).or_insert(next);
        (index != next).then_some(index)
    }

    fn number(&mut self, frame: &SharedFrame) -> u32 {
        if let Some((_, number)) = self.known.get(&Arc::as_ptr(frame)) {
            return *number;
        }
        let next = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        let number = *self.frames.entry(Place::of(frame)).or_insert(next);
        // The frame is kept, so that no other one gets its address.
        self.known.insert(Arc::as_ptr(frame), (Arc::clone(frame), number));
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    #[test]
    fn stacks_of_two_instances_with_code_at_other_addresses_are_one() {
        let one = sample::judged();
        let mut other = one.clone();
        for stack in &mut other.stacks {
            let moved = stack.frames.iter().map(|frame| {
                let is_named = !frame.symbol.is_empty();
                Arc::new(Frame { address: frame.address + u64::from(is_named) * 0x1000, ..(**frame).clone() })
            });
            stack.frames = moved.collect();
        }
        let mut extra = one.stacks[0].clone();
        extra.frames = extra.frames.list()[..1].into();
        other.stacks.push(extra.clone());

        let sum = Profile::added(vec![one.clone(), other]).unwrap();

        assert_eq!(sum.stacks.len(), one.stacks.len() + 1);
        for (stack, before) in sum.stacks.iter().zip(&one.stacks) {
            assert_eq!(stack.live.bytes, 2 * before.live.bytes);
            assert_eq!(stack.allocated.objects, 2 * before.allocated.objects);
        }
        assert_eq!(sum.live().bytes, 2 * one.live().bytes + extra.live.bytes);
        let ids: std::collections::HashSet<_> = sum.stacks.iter().map(|stack| stack.id).collect();
        assert_eq!(ids.len(), sum.stacks.len());
        assert!(sum.verdicts.is_empty() && sum.process.comm.starts_with("2 profiles of "));
    }
}
