//! What was there before, left out of what is there now.

use std::collections::HashMap;

use super::difference::{Matching, StackKey};
use crate::profile::{Profile, Totals};

/// What each stack held in a saved profile.
#[derive(Debug, Clone)]
pub struct Baseline {
    matching: Matching,
    stacks: HashMap<StackKey, Held>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    live: Totals,
    allocated: Totals,
}

impl Baseline {
    /// Remembers what a profile holds.
    #[must_use]
    pub fn of(profile: &Profile, matching: Matching) -> Self {
        let mut stacks = HashMap::<StackKey, Held>::new();
        for stack in &profile.stacks {
            let held = stacks.entry(matching.key(&stack.frames)).or_default();
            held.live = [held.live, stack.live].into_iter().sum();
            held.allocated = [held.allocated, stack.allocated].into_iter().sum();
        }
        Self { matching, stacks }
    }

    /// Takes it out of a profile, stack by stack; nothing becomes less than nothing.
    pub fn subtract_from(&self, profile: &mut Profile) {
        let before = profile.live();
        let mut left = self.stacks.clone();
        for stack in &mut profile.stacks {
            if let Some(held) = left.get_mut(&self.matching.key(&stack.frames)) {
                take_out(&mut stack.live, &mut held.live);
                take_out(&mut stack.allocated, &mut held.allocated);
                if stack.live.is_nothing() {
                    stack.ages = None;
                    stack.blocks.clear();
                }
            }
        }
        let after = profile.live();
        // As much as is left out now is left out of the past, so that the curve ends where the figures stand.
        let out = Totals { bytes: before.bytes - after.bytes, objects: before.objects - after.objects };
        for moment in &mut profile.history {
            take_out(&mut moment.live, &mut { out });
        }
    }
}

/// Takes as much of one out of the other as is in both.
fn take_out(from: &mut Totals, held: &mut Totals) {
    for (from, held) in [(&mut from.bytes, &mut held.bytes), (&mut from.objects, &mut held.objects)] {
        let taken = (*from).min(*held);
        *from -= taken;
        *held -= taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    #[test]
    fn what_was_there_before_is_left_out_and_no_more() {
        let before = sample::profile();
        let mut now = before.clone();
        now.stacks[1].live = Totals { bytes: 2_000_000, objects: 20 };
        now.stacks[0].live = Totals { bytes: 600, objects: 1 };
        let baseline = Baseline::of(&before, Matching::default());
        baseline.subtract_from(&mut now);
        let live: Vec<_> = now.stacks.iter().map(|stack| stack.live.bytes).collect();
        assert_eq!(live, [0, 464_000, 0, 0, 0, 0]);
        assert_eq!(now.allocated(), Totals::default());
    }

    #[test]
    fn a_stack_that_is_there_twice_gives_what_was_there_before_once() {
        let mut before = sample::profile();
        before.stacks.truncate(1);
        let mut now = before.clone();
        now.stacks.push(now.stacks[0].clone());
        Baseline::of(&before, Matching::default()).subtract_from(&mut now);
        assert_eq!(now.live(), before.live());
    }
}
