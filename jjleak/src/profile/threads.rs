//! Threads of stacks, and profiles merged across threads.

use std::collections::HashMap;

use jjleak_common::stack::StackStatus;

use super::{FrameKind, Frames, Profile, StackIds, StackProfile, Thread};

impl StackProfile {
    /// Thread of the stack; `None` if threads are not distinguished.
    #[must_use]
    pub fn thread(&self) -> Option<Thread> {
        self.frames.iter().filter_map(|frame| frame.thread()).last()
    }
}

impl Profile {
    /// The profile without threads: stacks that differ only in their thread are merged.
    #[must_use]
    pub fn across_threads(mut self) -> Self {
        self.coverage.threads = false;
        if !self.stacks.iter().any(|stack| has_thread(&stack.frames)) {
            return self;
        }
        let mut places = HashMap::<(Frames, StackStatus), usize>::new();
        let mut ids = HashMap::new();
        let mut stacks: Vec<StackProfile> = Vec::new();
        for stack in self.stacks {
            let frames = without_thread(&stack.frames);
            let next = stacks.len();
            let place = *places.entry((frames.clone(), stack.status)).or_insert(next);
            if place == next {
                ids.insert(stack.id, stack.id);
                stacks.push(StackProfile { frames, ..stack });
            } else {
                ids.insert(stack.id, stacks[place].id);
                add(&mut stacks[place], &stack, self.coverage.blocks_per_stack);
            }
        }
        for verdict in &mut self.verdicts {
            verdict.frames = without_thread(&verdict.frames);
            let mut known = StackIds::new();
            for id in verdict.stacks.iter().map(|id| ids.get(id).copied().unwrap_or(*id)) {
                if !known.contains(&id) {
                    known.push(id);
                }
            }
            verdict.stacks = known;
        }
        Self { stacks, ..self }
    }
}

fn has_thread(frames: &Frames) -> bool {
    frames.iter().any(|frame| frame.kind == FrameKind::Thread)
}

fn without_thread(frames: &Frames) -> Frames {
    if has_thread(frames) {
        frames.iter().filter(|frame| frame.kind != FrameKind::Thread).cloned().collect()
    } else {
        frames.clone()
    }
}

/// Adds the allocations of another thread with the same stack.
pub(super) fn add(sum: &mut StackProfile, more: &StackProfile, most_blocks: usize) {
    sum.live = [sum.live, more.live].into_iter().sum();
    sum.allocated = [sum.allocated, more.allocated].into_iter().sum();
    sum.live_error = sum.live_error.of_sum(more.live_error);
    sum.details.add(&more.details, most_blocks);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::profile::{Ages, Cohort};
    use crate::profile::{Frame, Totals, Verdict};
    use crate::render::sample;

    /// The sample profile with a second thread that has allocated the same.
    fn of_two_threads() -> Profile {
        let mut profile = sample::judged();
        profile.coverage.threads = true;
        let thread = |number| Thread { number, name: "worker".to_owned(), nth: 1 };
        let of = |stack: &StackProfile, number: u32| {
            let root = Frame::of_thread(&thread(number)).into();
            let frames = stack.frames.iter().cloned().chain([root]).collect();
            StackProfile { id: stack.id * u64::from(number), frames, ..stack.clone() }
        };
        let stacks = profile.stacks.iter().flat_map(|stack| [of(stack, 1), of(stack, 2)]);
        profile.stacks = stacks.collect();
        for verdict in &mut profile.verdicts {
            *verdict = Verdict {
                stacks: verdict.stacks.iter().flat_map(|id| [*id, 2 * id]).collect(),
                ..verdict.clone()
            };
        }
        profile
    }

    #[test]
    fn a_stack_is_of_the_thread_at_its_root() {
        let profile = of_two_threads();
        let threads: Vec<_> =
            profile.stacks[..2].iter().map(|stack| stack.thread().unwrap().to_string()).collect();
        assert_eq!(threads, ["worker (tid 1)", "worker (tid 2)"]);
        assert_eq!(sample::profile().stacks[0].thread(), None);
    }

    #[test]
    fn across_threads_stacks_are_those_of_a_profile_without_them() {
        let mut expected = sample::judged();
        for stack in &mut expected.stacks {
            stack.live = [stack.live; 2].into_iter().sum();
            stack.allocated = [stack.allocated; 2].into_iter().sum();
        }
        assert_eq!(of_two_threads().across_threads(), expected);
        assert_eq!(sample::judged().across_threads(), sample::judged());
    }

    #[test]
    fn ages_and_cohorts_of_threads_are_put_together() {
        let mut profile = of_two_threads();
        let ages = |oldest, newest| {
            Some(Ages { oldest: Duration::from_secs(oldest), newest: Duration::from_secs(newest) })
        };
        let cohort = |interval, bytes| Cohort { interval, live: Totals { bytes, objects: 1 } };
        profile.stacks.truncate(2);
        profile.stacks[0].details.ages = ages(9, 4);
        profile.stacks[1].details.ages = ages(7, 1);
        profile.stacks[0].details.cohorts = [cohort(1, 10), cohort(4, 20)].into_iter().collect();
        profile.stacks[1].details.cohorts = [cohort(2, 30), cohort(4, 40)].into_iter().collect();
        let stack = profile.across_threads().stacks.remove(0);
        assert_eq!(stack.details.ages, ages(9, 1));
        let sum = Cohort { interval: 4, live: Totals { bytes: 60, objects: 2 } };
        assert_eq!(stack.details.cohorts[..], [cohort(1, 10), cohort(2, 30), sum]);
    }
}
