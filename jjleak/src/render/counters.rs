//! Counters to report.

use std::collections::BTreeMap;

use jjleak_common::counter::Counter;

use crate::profile::{Profile, SharedFrame};

/// A nonzero counter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counted<'a> {
    pub(crate) count: u64,
    pub(crate) name: &'a str,
    /// A sentence; empty for a counter that this version does not know.
    pub(crate) meaning: &'static str,
}

/// Counters of losses, which make the figures incomplete.
pub(crate) fn losses(profile: &Profile) -> impl Iterator<Item = Counted<'_>> {
    counted(&profile.lost)
}

/// Harmless counters that help to interpret the figures.
pub(super) fn notes(profile: &Profile) -> impl Iterator<Item = Counted<'_>> {
    let (name, meaning) = (Counter::UnknownFree.name(), Counter::UnknownFree.meaning());
    let unknown_frees = Counted { count: profile.unknown_frees, name, meaning };
    let is_told = |counted: &Counted<'_>| counted.name != Counter::Thrown.name() || throws(profile);
    counted(&profile.notes)
        .filter(is_told)
        .chain([unknown_frees].into_iter().filter(|counted| counted.count > 0))
}

/// Returns true if the program allocates with operators that throw. Calls of `malloc` that end in another way are of no interest.
fn throws(profile: &Profile) -> bool {
    let is_operator = |frame: &SharedFrame| frame.symbol.starts_with("operator new");
    profile.stacks.iter().any(|stack| stack.frames.iter().any(is_operator))
}

fn counted(counters: &BTreeMap<String, u64>) -> impl Iterator<Item = Counted<'_>> {
    counters.iter().filter(|(_, count)| **count > 0).map(|(name, &count)| {
        let known = Counter::ALL.iter().find(|counter| counter.name() == name);
        Counted { count, name, meaning: known.map_or("", |counter| counter.meaning()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    #[test]
    fn counters_that_are_zero_are_not_told() {
        let mut profile = sample::empty_profile();
        profile.lost = sample::counters([("live_table_full", 0), ("stale_pending", 3), ("unheard_of", 1)]);
        profile.notes = sample::counters([("filtered", 0)]);
        let names: Vec<_> = losses(&profile).map(|counted| counted.name).collect();
        assert_eq!(names, ["stale_pending", "unheard_of"]);
        assert_eq!(notes(&profile).count(), 0);
    }

    #[test]
    fn unknown_frees_are_reported_among_the_notes() {
        let mut profile = sample::empty_profile();
        profile.notes = sample::counters([("filtered", 7)]);
        profile.unknown_frees = 5;
        let shown: Vec<_> = notes(&profile).map(|note| (note.name, note.count)).collect();
        assert_eq!(shown, [("filtered", 7), ("unknown_free", 5)]);
    }

    #[test]
    fn exceptions_are_of_interest_only_in_programs_that_throw() {
        let mut profile = sample::profile();
        profile.notes = sample::counters([("thrown", 2)]);
        profile.unknown_frees = 0;
        assert_eq!(notes(&profile).count(), 1);
        profile.stacks.retain(|stack| !stack.frames.iter().any(|frame| frame.symbol.starts_with("operator")));
        assert_eq!(notes(&profile).count(), 0, "a plain C program");
    }
}
