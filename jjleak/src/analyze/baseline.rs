//! Baseline: subtracts a saved profile from the current one.

use std::collections::HashMap;

use super::difference::{Matching, StackKey};
use crate::profile::{BlockDetails, ProcessInfo, Profile, Totals, standard_error};

/// Bytes and blocks of each stack in a saved profile.
#[derive(Debug, Clone)]
pub struct Baseline {
    matching: Matching,
    stacks: HashMap<StackKey, Held>,
    /// PID and start time of the profiled process; `None` if the file does not record them.
    process: Option<(u32, u64)>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Held {
    live: Totals,
    allocated: Totals,
    /// Squares of the standard errors of `live`, in bytes and objects.
    live_variance: (f64, f64),
}

impl Baseline {
    /// Indexes a profile's live totals by stack.
    #[must_use]
    pub fn of(profile: &Profile, matching: Matching) -> Self {
        let mut stacks = HashMap::<StackKey, Held>::new();
        for stack in &profile.stacks {
            let held = stacks.entry(matching.key(&stack.frames)).or_default();
            held.live = [held.live, stack.live].into_iter().sum();
            held.allocated = [held.allocated, stack.allocated].into_iter().sum();
            let (bytes, objects) = variance(stack.live_error.totals());
            held.live_variance.0 += bytes;
            held.live_variance.1 += objects;
        }
        let ProcessInfo { pid, start_time, .. } = profile.process;
        let process = (pid != 0 && start_time != 0).then_some((pid, start_time));
        Self { matching, stacks, process }
    }

    /// Indexes a dump, which has all that the process held then: it can be subtracted from later ones of the same process.
    #[must_use]
    pub fn of_dump(profile: &Profile, matching: Matching) -> Self {
        Self { process: None, ..Self::of(profile, matching) }
    }

    /// Returns whether the profile is of this very process. Its accounting begins empty each time, so nothing
    /// from before is in it; subtracting the baseline would hide what came since.
    #[must_use]
    pub fn is_of(&self, pid: u32, start_time: u64) -> bool {
        self.process == Some((pid, start_time))
    }

    /// Subtracts the baseline from a profile of another process, stack by stack, never below zero. It drops
    /// the verdicts: they describe all that a call site does, not the remainder.
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
                let (bytes, objects) = variance(stack.live_error.totals());
                stack.live_error = stack
                    .live_error
                    .totals()
                    .map(|_| Totals {
                        bytes: standard_error(bytes + held.live_variance.0),
                        objects: standard_error(objects + held.live_variance.1),
                    })
                    .into();
                if stack.live.is_nothing() {
                    let (cohorts, growth) = (stack.details.cohorts.clone(), stack.details.growth);
                    stack.details = BlockDetails { cohorts, growth, ..BlockDetails::default() }.into();
                }
            }
        }
        let after = profile.live();
        // Subtract the same amount from the history, so that the curve ends at the current figures.
        let out = Totals { bytes: before.bytes - after.bytes, objects: before.objects - after.objects };
        for moment in &mut profile.history {
            take_out(&mut moment.live, &mut { out });
        }
    }
}

/// Squares of standard errors; 0 for exact figures.
#[expect(clippy::cast_precision_loss, reason = "a standard error has no use for more than 53 bits")]
fn variance(error: Option<Totals>) -> (f64, f64) {
    error.map_or((0., 0.), |error| ((error.bytes as f64).powi(2), (error.objects as f64).powi(2)))
}

/// Subtracts what both have in common. Remaining bytes keep at least one object, if there was one; objects of
/// nonzero size go when their last byte does.
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
    fn the_baseline_is_subtracted_and_no_more() {
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
    fn the_baseline_of_a_stack_is_subtracted_once_if_it_is_there_twice() {
        let mut before = sample::profile();
        before.stacks.truncate(1);
        let mut now = before.clone();
        now.stacks.push(now.stacks[0].clone());
        now.process.pid += 1;
        Baseline::of(&before, Matching::default()).subtract_from(&mut now);
        assert_eq!(now.live(), before.live());
    }

    #[test]
    fn a_process_is_not_its_own_baseline() {
        let before = sample::judged();
        let mut now = before.clone();
        Baseline::of(&before, Matching::default()).subtract_from(&mut now);
        assert_eq!(now, before);
    }

    #[test]
    fn subtraction_drops_verdicts() {
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
        // Blocks of zero bytes count as objects.
        assert_eq!(taken(totals(0, 4), totals(800, 1)), totals(0, 3));
        // Profiles of other tools may lack object counts.
        assert_eq!(taken(totals(2000, 0), totals(500, 5)), totals(1500, 0));
    }
}
