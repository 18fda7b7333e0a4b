//! Detects afterwards that profiling has cost more than allowed, where no [`crate::cost::Bound`] enforces the limit.
//!
//! In: successive profiles. Out: whether they exceed the limit.

use std::time::Duration;

use crate::profile::{Cost, Profile};

/// Assumed cost of a call where it cannot be measured.
const ASSUMED_CALL: Duration = Duration::from_micros(1);
/// Savings for counting everything, in seconds of the allowed share, and debt allowed beyond them. A process under a bound never
/// exceeds these.
const SAVED_S: f64 = 15.;
const OWED_S: f64 = 1.;

/// Cost accounting of a profiling run.
#[derive(Debug)]
pub(super) struct CostLimit {
    share: f64,
    /// Debt in CPU seconds, never negative: savings from long ago do not justify a high cost now.
    owed_s: f64,
    last: Option<Cost>,
}

impl CostLimit {
    /// Starts without debt. `percent` is the allowed share of the process's own CPU time.
    pub(super) const fn new(percent: f64) -> Self {
        Self { share: percent / 100., owed_s: 0., last: None }
    }

    /// Charges a profile; returns whether the limit is exceeded. Profiles in windows are not charged: they are bounded already.
    pub(super) fn is_exceeded_by(&mut self, profile: &Profile) -> bool {
        let (None, Some(cost)) = (profile.coverage.windows, profile.cost) else { return false };
        let Some(cpu) = cost.cpu else { return false };
        // A profile shortly after another one repeats its cost.
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

    fn exceeds(profile: &Profile, percent: f64) -> bool {
        CostLimit::new(percent).is_exceeded_by(profile)
    }

    #[test]
    fn a_profile_that_costs_too_much_exceeds_the_limit_unless_it_is_in_windows() {
        let dear = of(60, Some(20_000), 10_000_000, 60);
        assert!(exceeds(&dear, 10.) && !exceeds(&dear, 100.));
        assert!(!exceeds(&of(60, Some(3_000), 2_000_000, 60), 10.));
        // An idle process may pay this much in a moment.
        assert!(!exceeds(&of(60, Some(1_000), 500_000, 1), 10.));
        assert!(exceeds(&of(60, None, 30_000_000, 60), 10.));
        assert!(!exceeds(&of(60, None, 1_000_000, 60), 10.));
        let mut bounded = dear;
        bounded.coverage.windows = Some(InWindows::default());
        assert!(!exceeds(&bounded, 10.));
    }

    #[test]
    fn short_spans_add_up_and_each_counts_once() {
        // Neither of them exceeds the limit alone.
        let spans = [(5, 2_000), (6, 2_000)].map(|(over, spent)| of(over, Some(spent), 1_000_000, over));
        let mut cost_limit = CostLimit::new(10.);
        assert!(!cost_limit.is_exceeded_by(&spans[0]) && !cost_limit.is_exceeded_by(&spans[0]));
        assert!(cost_limit.is_exceeded_by(&spans[1]));
    }

    #[test]
    fn savings_do_not_accumulate() {
        let mut cost_limit = CostLimit::new(10.);
        for seconds in 0..100 {
            assert!(!cost_limit.is_exceeded_by(&of(60 + seconds, Some(1), 1, 60)));
        }
        assert!(cost_limit.is_exceeded_by(&of(60, Some(20_000), 10_000_000, 60)));
    }
}
