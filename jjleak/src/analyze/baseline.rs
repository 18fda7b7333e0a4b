//! What was there before, left out of what is there now.

use std::collections::HashMap;

use super::difference::{Matching, StackKey};
use crate::profile::{ProcessInfo, Profile, Totals};

/// What each stack held in a saved profile.
#[derive(Debug, Clone)]
pub struct Baseline {
    matching: Matching,
    stacks: HashMap<StackKey, Held>,
    /// PID and start time of the process whose profile it is; none where the file does not tell.
    process: Option<(u32, u64)>,
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
        let ProcessInfo { pid, start_time, .. } = profile.process;
        let process = (pid != 0 && start_time != 0).then_some((pid, start_time));
        Self { matching, stacks, process }
    }

    /// Whether it is of the very process, whose books begin empty whenever accounting begins: nothing that was there before is
    /// in them, and to take it out would hide what came since.
    #[must_use]
    pub fn is_of(&self, pid: u32, start_time: u64) -> bool {
        self.process == Some((pid, start_time))
    }

    /// Takes it out of a profile of another process, stack by stack; nothing becomes less than nothing. There are no verdicts
    /// then: they are on all that a call site does, and not on what is left of it.
    pub fn subtract_from(&self, profile: &mut Profile) {
        if self.is_of(profile.process.pid, profile.process.start_time) {
            return;
        }
        profile.unjudge();
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

/// Takes as much of one out of the other as is in both. When bytes are left, so is an object that they are in, if there was
/// one; when none are left of those that there were, so is no object.
fn take_out(from: &mut Totals, held: &mut Totals) {
    let bytes = from.bytes.min(held.bytes);
    let mut objects = from.objects.min(held.objects);
    if bytes < from.bytes {
        objects = objects.min(from.objects.saturating_sub(1));
    } else if from.bytes > 0 {
        objects = from.objects;
    }
    for (from, held, taken) in
        [(&mut from.bytes, &mut held.bytes, bytes), (&mut from.objects, &mut held.objects, objects)]
    {
        *from -= taken;
        *held = held.saturating_sub(taken);
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
        now.process.start_time += 1;
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
        now.process.pid += 1;
        Baseline::of(&before, Matching::default()).subtract_from(&mut now);
        assert_eq!(now.live(), before.live());
    }

    #[test]
    fn of_the_very_process_nothing_is_left_out() {
        let before = sample::judged();
        let mut now = before.clone();
        Baseline::of(&before, Matching::default()).subtract_from(&mut now);
        assert_eq!(now, before);
    }

    #[test]
    fn nothing_is_claimed_of_call_sites_of_which_a_part_is_left_out() {
        let before = sample::judged();
        let mut now = before.clone();
        now.process.pid += 1;
        Baseline::of(&before, Matching::default()).subtract_from(&mut now);
        assert!(now.verdicts.is_empty() && !now.is_judged());
    }

    #[test]
    fn bytes_that_are_left_are_in_an_object() {
        let taken = |mut from: Totals, mut held: Totals| {
            take_out(&mut from, &mut held);
            from
        };
        let totals = |bytes, objects| Totals { bytes, objects };
        assert_eq!(taken(totals(2000, 1), totals(500, 5)), totals(1500, 1));
        assert_eq!(taken(totals(2000, 4), totals(500, 4)), totals(1500, 1));
        assert_eq!(taken(totals(500, 4), totals(500, 4)), totals(0, 0));
        assert_eq!(taken(totals(500, 4), totals(800, 1)), totals(0, 0));
        // Blocks of no bytes are objects.
        assert_eq!(taken(totals(0, 4), totals(800, 1)), totals(0, 3));
        // Another tool's profile may not tell of objects.
        assert_eq!(taken(totals(2000, 0), totals(500, 5)), totals(1500, 0));
    }
}
