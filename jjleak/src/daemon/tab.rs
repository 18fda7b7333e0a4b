//! What profiling has cost beyond what it may: where the kernel keeps no bound, that is found out afterwards.
//!
//! In: profiles, one after the other. Out: whether it costs too much.

use std::time::Duration;

use crate::profile::{Cost, Profile};

/// What a call takes, about, where that cannot be measured.
const ASSUMED_CALL: Duration = Duration::from_micros(1);
/// What may have been saved up for counting everything, in seconds of the share that is allowed; and what may be owed.
/// Where windows keep the bound, neither is ever exceeded.
const SAVED_S: f64 = 15.;
const OWED_S: f64 = 1.;

/// The account of a profile.
#[derive(Debug)]
pub(super) struct Tab {
    share: f64,
    /// CPU time that is owed; never less than nothing: what was spared long ago is no reason to be dear now.
    owed_s: f64,
    last: Option<Cost>,
}

impl Tab {
    /// Nothing is owed. So many per cent are allowed of the CPU time that the process uses itself.
    pub(super) const fn new(percent: f64) -> Self {
        Self { share: percent / 100., owed_s: 0., last: None }
    }

    /// Whether more has been spent than is allowed. Of profiles that count in windows, nothing is entered: those keep the bound.
    pub(super) fn is_overdrawn_after(&mut self, profile: &Profile) -> bool {
        let (None, Some(cost)) = (profile.coverage.windows, profile.cost) else { return false };
        let Some(cpu) = cost.cpu else { return false };
        // A moment later, a profile tells the same again.
        if self.last.replace(cost) != Some(cost) {
            let assumed = || ASSUMED_CALL.saturating_mul(u32::try_from(cost.calls).unwrap_or(u32::MAX));
            let spent = cost.spent.unwrap_or_else(assumed);
            let allowed_s = self.share * cpu.saturating_sub(spent).as_secs_f64();
            self.owed_s = (self.owed_s + spent.as_secs_f64() - allowed_s).max(0.);
        }
        self.owed_s > OWED_S + self.share * SAVED_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::InWindows;
    use crate::render::sample;

    fn of(over_s: u64, spent_ms: Option<u64>, calls: u64, cpu_s: u64) -> Profile {
        let seconds = Duration::from_secs;
        let spent = spent_ms.map(Duration::from_millis);
        let cost = Cost { over: seconds(over_s), calls, spent, cpu: Some(seconds(cpu_s)) };
        Profile { cost: Some(cost), ..sample::profile() }
    }

    fn is_too_dear(profile: &Profile, percent: f64) -> bool {
        Tab::new(percent).is_overdrawn_after(profile)
    }

    #[test]
    fn a_profile_that_costs_more_than_is_allowed_is_too_dear_unless_windows_keep_it_below() {
        let dear = of(60, Some(20_000), 10_000_000, 60);
        assert!(is_too_dear(&dear, 10.) && !is_too_dear(&dear, 100.));
        assert!(!is_too_dear(&of(60, Some(3_000), 2_000_000, 60), 10.));
        // What a process that does nothing pays in a moment is no reason.
        assert!(!is_too_dear(&of(60, Some(1_000), 500_000, 1), 10.));
        assert!(is_too_dear(&of(60, None, 30_000_000, 60), 10.));
        assert!(!is_too_dear(&of(60, None, 1_000_000, 60), 10.));
        let mut bounded = dear;
        bounded.coverage.windows = Some(InWindows::default());
        assert!(!is_too_dear(&bounded, 10.));
    }

    #[test]
    fn short_spans_add_up_and_each_counts_once() {
        // None of them is too dear by itself.
        let spans = [(5, 2_000), (6, 2_000)].map(|(over, spent)| of(over, Some(spent), 1_000_000, over));
        let mut tab = Tab::new(10.);
        assert!(!tab.is_overdrawn_after(&spans[0]) && !tab.is_overdrawn_after(&spans[0]));
        assert!(tab.is_overdrawn_after(&spans[1]));
    }

    #[test]
    fn what_was_spared_is_not_saved_for_ever() {
        let mut tab = Tab::new(10.);
        for seconds in 0..100 {
            assert!(!tab.is_overdrawn_after(&of(60 + seconds, Some(1), 1, 60)));
        }
        assert!(tab.is_overdrawn_after(&of(60, Some(20_000), 10_000_000, 60)));
    }
}
