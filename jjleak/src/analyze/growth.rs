//! Growth since the previous report.

use std::collections::HashMap;
use std::mem;

use crate::fast_map::FastMap;
use crate::profile::{Moment, ProcessInfo, Profile, remember};

/// Live totals of each stack at the last report, and of each process at all reports.
#[derive(Debug, Default)]
pub struct Growth {
    /// Live bytes of stacks, by PID and start time of the process. The order is that of its last profile,
    /// which the next one mostly shares.
    last: HashMap<(u32, u64), Vec<(u64, u64)>>,
    /// Live totals at each report, by PID and start time of the process.
    histories: HashMap<(u32, u64), Vec<Moment>>,
}

impl Growth {
    /// Fills in each stack's growth since the process's previous report, or since accounting began, and the
    /// process's history of live totals.
    pub fn measure(&mut self, profile: &mut Profile) {
        let (pid, start_time) = (profile.process.pid, profile.process.start_time);
        let last = self.last.entry((pid, start_time)).or_default();
        let ids = || profile.stacks.iter().map(|stack| stack.id);
        if !ids().eq(last.iter().map(|(id, _)| *id)) {
            let known: FastMap<_, _> = last.drain(..).collect();
            last.extend(ids().map(|id| (id, known.get(&id).copied().unwrap_or_default())));
        }
        for (stack, (_, before)) in profile.stacks.iter_mut().zip(last) {
            let bytes = stack.live.bytes;
            stack.details.set_growth(bytes.wrapping_sub(mem::replace(before, bytes)).cast_signed());
        }
        let history = self.histories.entry((pid, start_time)).or_default();
        remember(history, Moment { at: profile.taken_at, live: profile.live(), resident: profile.resident });
        profile.history.clone_from(history);
    }

    /// Drops the state of a process after its last profile.
    pub fn forget(&mut self, process: &ProcessInfo) {
        let process = (process.pid, process.start_time);
        self.last.remove(&process);
        self.histories.remove(&process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{StackProfile, Totals};
    use crate::render::sample;

    fn growths(growth: &mut Growth, pid: u32, stacks: &[(u64, u64)]) -> Vec<i64> {
        let mut profile = sample::empty_profile();
        profile.process.pid = pid;
        profile.stacks = stacks
            .iter()
            .map(|&(id, bytes)| StackProfile {
                id,
                live: Totals { bytes, objects: 1 },
                ..sample::empty_stack()
            })
            .collect();
        growth.measure(&mut profile);
        profile.stacks.iter().map(|stack| stack.details.growth).collect()
    }

    #[test]
    fn growth_is_since_the_report_before_and_since_the_start_at_first() {
        let mut growth = Growth::default();
        assert_eq!(growths(&mut growth, 1, &[(7, 100), (8, 50)]), [100, 50]);
        assert_eq!(growths(&mut growth, 1, &[(7, 130), (8, 20), (9, 5)]), [30, -30, 5]);
        assert_eq!(growths(&mut growth, 1, &[(7, 130), (8, 20), (9, 5)]), [0, 0, 0]);
        assert_eq!(growths(&mut growth, 1, &[(9, 6), (7, 130), (6, 2), (8, 10)]), [1, 0, 2, -10]);
    }

    #[test]
    fn nothing_is_remembered_of_a_process_that_is_gone() {
        let mut growth = Growth::default();
        growths(&mut growth, 1, &[(7, 100)]);
        growths(&mut growth, 2, &[(7, 100)]);
        let mut gone = sample::empty_profile();
        gone.process.pid = 1;
        growth.forget(&gone.process);
        assert_eq!(growth.last.len(), 1);
    }

    #[test]
    fn processes_grow_each_by_itself() {
        let mut growth = Growth::default();
        growths(&mut growth, 1, &[(7, 100)]);
        assert_eq!(growths(&mut growth, 2, &[(7, 40)]), [40]);
    }
}
