//! What was allocated before anything was known of the process, and is freed.
//!
//! A cache that is full when jjleak attaches replaces old entries by new ones. Nothing is known of the old ones but that they are
//! freed; the new ones are kept, all of them, until they are the old ones. By themselves, they look like a leak.

use super::{Judgement, duration};
use crate::analyze::statistics::figure;
use crate::profile::{Profile, VerdictKind};

/// So many blocks from before must be freed for each that is kept, for the kept ones to be in their place, perhaps.
const COMPARABLE: f64 = 0.5;
/// What is freed lately counts, in this share of the time watched: once the old entries are gone, all is known.
const LATELY: f64 = 0.5;
/// No leak for certain, and as likely none as one.
const CONFIDENCE: f64 = 0.5;

/// Frees of blocks from before accounting began.
#[derive(Debug, Default)]
pub(in crate::analyze) struct Before {
    /// How many at each remembered instant since the one before.
    frees: Vec<f64>,
    /// How many since accounting began.
    total: u64,
}

impl Before {
    /// Takes in a profile: the last of so many instants.
    pub(in crate::analyze) fn enter(&mut self, profile: &Profile, instants: usize) {
        self.frees.resize(instants, 0.);
        let total = of_before(profile);
        if let Some(last) = self.frees.last_mut() {
            *last += figure(total.saturating_sub(self.total));
        }
        self.total = total;
    }

    /// Adds up what belongs to the same instant now: `map` has the new index of each old one.
    pub(in crate::analyze) fn thin(&mut self, map: &[usize], instants: usize) {
        let mut frees = vec![0.; instants];
        for (count, index) in self.frees.iter().zip(map) {
            frees[*index] += count;
        }
        self.frees = frees;
    }

    /// How many blocks from before are freed for each that is kept, where call sites that seem to leak keep so many a second; if
    /// they are so many that what is kept may only be in their place.
    pub(in crate::analyze) fn doubt(&self, kept: f64, ends: &[f64]) -> Option<f64> {
        let freed = self.lately(ends);
        (kept > 0. && freed >= COMPARABLE * kept).then_some(freed / kept)
    }

    /// How many are freed a second.
    fn lately(&self, ends: &[f64]) -> f64 {
        let end = ends.last().copied().unwrap_or_default();
        let since = ends.partition_point(|at| *at <= end * (1. - LATELY));
        let begin = since.checked_sub(1).map_or(0., |before| ends[before]);
        let frees: f64 = self.frees.iter().skip(since).sum();
        if end > begin { frees / (end - begin) } else { 0. }
    }
}

/// So many blocks from before were freed.
fn of_before(profile: &Profile) -> u64 {
    if profile.coverage.some_sizes {
        // Those are of blocks that were left out.
        return 0;
    }
    let count = |counters: &std::collections::BTreeMap<String, u64>, name: &str| {
        counters.get(name).copied().unwrap_or_default()
    };
    // A forked child begins with what its parent has. A block that was lost is freed as one from before. What the C library
    // has kept for a thread is free already, or was never the program's: threads that end replace nothing.
    let frees = profile.unknown_frees.saturating_add(count(&profile.notes, "inherited_free"));
    let by_library = count(&profile.notes, "freed_by_c_library");
    frees.saturating_sub(by_library).saturating_sub(count(&profile.lost, "live_table_full"))
}

impl Judgement {
    /// No leak is called one while what is kept may be in the place of what was there before.
    pub(in crate::analyze) fn doubted(self) -> Self {
        Self { kind: VerdictKind::Growing, confidence: CONFIDENCE, ..self }
    }
}

/// How many blocks a call site keeps a second, of which so many live.
pub(in crate::analyze) fn kept(judgement: &Judgement, live: u64) -> f64 {
    let a_second = |objects: u64, seconds: f64| figure(objects) / seconds.max(f64::MIN_POSITIVE);
    match judgement.survival {
        Some(survival) if duration(judgement.watched) > survival.older_than => {
            let seconds = duration(judgement.watched).saturating_sub(survival.older_than).as_secs_f64();
            a_second(survival.live.objects, seconds)
        }
        _ => a_second(live, judgement.watched),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    #[test]
    fn what_a_parent_had_counts_as_before_and_what_was_left_out_or_lost_or_kept_for_threads_does_not() {
        let mut profile = sample::empty_profile();
        profile.unknown_frees = 10;
        assert_eq!(of_before(&profile), 10);
        profile.notes.insert("inherited_free".to_owned(), 5);
        profile.lost.insert("live_table_full".to_owned(), 3);
        assert_eq!(of_before(&profile), 12);
        profile.notes.insert("freed_by_c_library".to_owned(), 4);
        assert_eq!(of_before(&profile), 8);
        profile.coverage.some_sizes = true;
        assert_eq!(of_before(&profile), 0);
    }
}
