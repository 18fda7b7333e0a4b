//! Ranks the stacks of a profile and judges its call sites. Pure.
//!
//! - `growth`: growth since the previous report.
//! - `baseline`: subtraction of a saved profile.
//! - `difference`: comparison of two profiles.
//! - `site`: identity of call sites.
//! - `helpers`: functions that allocate for their callers; `rust_crates`: crates of Rust functions.
//! - `findings`: call sites grouped by their cause in the application.
//! - `history`: call sites across profiles.
//! - `judge`: verdicts from histories.
//! - `rise`: growth of a process as seen from outside.
//!
//! In: a [`Profile`]. Out: its ranked stacks, and [`crate::profile::Verdict`]s for [`crate::render`].

mod baseline;
mod difference;
mod findings;
mod growth;
mod helpers;
mod history;
mod judge;
#[cfg(test)]
mod labelled;
mod rise;
mod rust_crates;
mod site;
mod statistics;

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use crate::profile::{Profile, StackProfile};

pub use baseline::Baseline;
pub use difference::{Change, Difference, Matching, StackDifference, delta};
pub use findings::{Finding, Rules, application_frame, fastest, findings};
pub use growth::Growth;
pub use history::{Histories, History, Pace, call_sites};
pub use rise::{RISE_POINTS, Rise, rise};
pub use site::call_site;

/// Sort key for stacks, largest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SortBy {
    /// Live bytes.
    #[default]
    Size,
    /// Live objects.
    Count,
    /// Growth of live bytes since the previous report.
    Growth,
    /// Age of the oldest live block.
    Age,
}

impl SortBy {
    /// All sort keys.
    pub const ALL: [Self; 4] = [Self::Size, Self::Count, Self::Growth, Self::Age];

    /// Name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Count => "count",
            Self::Growth => "growth",
            Self::Age => "age",
        }
    }

    /// All stacks of the profile in this order, including empty ones. Live bytes, live objects, then the
    /// stack ID break ties: equal profiles give equal reports.
    #[must_use]
    pub fn order(self, profile: &Profile) -> Vec<&StackProfile> {
        let mut stacks: Vec<_> = profile.stacks.iter().collect();
        stacks.sort_by_key(|stack| {
            let live = stack.live;
            let first = match self {
                Self::Size => i128::from(live.bytes),
                Self::Count => i128::from(live.objects),
                Self::Growth => i128::from(stack.details.growth),
                Self::Age => stack.details.ages.map_or(-1, |ages| ages.oldest.as_nanos().cast_signed()),
            };
            (Reverse(first), Reverse(live.bytes), Reverse(live.objects), stack.id)
        });
        stacks
    }
}

impl fmt::Display for SortBy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for SortBy {
    type Err = UnknownOrder;

    fn from_str(name: &str) -> Result<Self, UnknownOrder> {
        Self::ALL.into_iter().find(|order| order.name() == name).ok_or_else(|| UnknownOrder(name.to_owned()))
    }
}

/// A name that is not a sort key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown order `{0}`: stacks are sorted by size, count, growth or age")]
pub struct UnknownOrder(String);

/// Which of the stacks with outstanding allocations to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The sort key.
    pub sort: SortBy,
    /// Maximum number of stacks to show.
    pub top: usize,
}

impl Selection {
    /// Ranks the stacks with outstanding allocations.
    #[must_use]
    pub fn rank(self, profile: &Profile) -> Ranking<'_> {
        let mut top = self.sort.order(profile);
        top.retain(|stack| !stack.live.is_nothing());
        let rest = top.split_off(self.top.min(top.len()));
        Ranking { top, rest }
    }
}

/// The stacks with outstanding allocations, ranked.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking<'a> {
    /// Stacks to show.
    pub top: Vec<&'a StackProfile>,
    /// The remaining stacks.
    pub rest: Vec<&'a StackProfile>,
}

fn begins_with(name: &str, beginnings: &[&str]) -> bool {
    beginnings.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crate::profile::{Ages, Totals};
    use crate::render::sample;

    fn ids(stacks: &[&StackProfile]) -> Vec<u64> {
        stacks.iter().map(|stack| stack.id).collect()
    }

    /// A profile of stacks given as (ID, live bytes, live objects).
    fn profile(stacks: &[(u64, u64, u64)]) -> Profile {
        let stacks = stacks.iter().map(|&(id, bytes, objects)| StackProfile {
            id,
            live: Totals { bytes, objects },
            ..sample::empty_stack()
        });
        Profile { stacks: stacks.collect(), ..sample::empty_profile() }
    }

    #[test]
    fn the_largest_comes_first_by_either_measure() {
        let profile = profile(&[(1, 10, 9), (2, 30, 1), (3, 20, 5)]);
        let ranked = |sort| ids(&Selection { sort, top: 10 }.rank(&profile).top);
        assert_eq!(ranked(SortBy::Size), [2, 3, 1]);
        assert_eq!(ranked(SortBy::Count), [1, 3, 2]);
    }

    #[test]
    fn the_one_that_grew_most_comes_first_and_shrinking_ones_last() {
        let mut profile = profile(&[(1, 50, 1), (2, 40, 1), (3, 30, 1)]);
        for (stack, growth) in profile.stacks.iter_mut().zip([-5, 0, 7]) {
            stack.details.set_growth(growth);
        }
        assert_eq!(ids(&SortBy::Growth.order(&profile)), [3, 2, 1]);
    }

    #[test]
    fn the_one_with_the_oldest_block_comes_first_and_those_without_any_last() {
        let mut profile = profile(&[(1, 50, 1), (2, 0, 0), (3, 30, 1)]);
        for (stack, oldest) in profile.stacks.iter_mut().zip([Some(5), None, Some(9)]) {
            let age = |seconds| Ages { oldest: Duration::from_secs(seconds), newest: Duration::ZERO };
            stack.details.ages = oldest.map(age);
        }
        assert_eq!(ids(&SortBy::Age.order(&profile)), [3, 1, 2]);
    }

    #[test]
    fn ties_are_broken_by_the_other_measure_then_by_id() {
        let profile = profile(&[(9, 10, 1), (4, 10, 1), (5, 10, 2)]);
        assert_eq!(ids(&SortBy::Size.order(&profile)), [5, 4, 9]);
    }

    #[test]
    fn stacks_without_outstanding_allocations_are_not_ranked_but_empty_blocks_are() {
        let profile = profile(&[(1, 0, 0), (2, 0, 3)]);
        let ranking = Selection { sort: SortBy::Size, top: 10 }.rank(&profile);
        assert_eq!((ids(&ranking.top), ids(&ranking.rest)), (vec![2], vec![]));
    }

    #[test]
    fn the_rest_is_what_the_top_leaves() {
        let profile = profile(&[(1, 1, 1), (2, 2, 1), (3, 3, 1)]);
        let ranking = Selection { sort: SortBy::Size, top: 1 }.rank(&profile);
        assert_eq!((ids(&ranking.top), ids(&ranking.rest)), (vec![3], vec![2, 1]));
    }

    #[test]
    fn orders_are_read_by_name() {
        assert_eq!("count".parse(), Ok(SortBy::Count));
        assert_eq!(
            "colour".parse::<SortBy>().unwrap_err().to_string(),
            "unknown order `colour`: stacks are sorted by size, count, growth or age"
        );
    }
}
