//! Frees of blocks that were allocated before accounting began.
//!
//! A cache that is full when jjleak attaches replaces old entries by new ones. Of the old ones, only the
//! frees are seen. All the new ones are kept until they are the oldest. Taken alone, they look like a leak.
//!
//! In windows, frees of old entries look like frees of blocks that were not counted. There, a call site leaks only if resident
//! memory grows along with it.

use std::iter::Sum;

use super::{Judgement, duration};
use crate::analyze::statistics::figure;
use crate::profile::{Profile, VerdictKind, growth_of_later_half};

/// Frees of earlier blocks per kept block, from which on the kept ones may be replacements.
const COMPARABLE: f64 = 0.5;
/// Share of the watched time whose frees count: once the old entries are gone, nothing is hidden.
const RECENT: f64 = 0.5;
/// Confidence of a doubted verdict: leak and replacement are equally likely.
const CONFIDENCE: f64 = 0.5;

/// Frees of blocks from before accounting began.
#[derive(Debug, Default)]
pub(in crate::analyze) struct Before {
    /// Number of frees between remembered instants.
    frees: Vec<f64>,
    /// Number of frees since accounting began.
    total: u64,
    /// Allocations are counted in windows: the number of such frees is unknown.
    in_windows: bool,
    /// Resident memory at remembered instants, if known.
    resident: Vec<Option<u64>>,
}

/// Amounts kept per second by call sites that seem to leak.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::analyze) struct Kept {
    /// Blocks.
    pub(in crate::analyze) blocks: f64,
    /// Bytes.
    pub(in crate::analyze) bytes: f64,
}

/// Doubt that kept blocks leak: they may replace older ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::analyze) enum Doubt {
    /// So many older blocks are freed for each kept one.
    Replaces(f64),
    /// It is not known how many are freed, and resident memory does not grow as fast.
    NotResident,
}

impl Before {
    /// Records a profile, the last of `instants` instants.
    pub(in crate::analyze) fn enter(&mut self, profile: &Profile, instants: usize) {
        self.in_windows = profile.coverage.windows.is_some();
        self.resident.resize(instants, None);
        if let Some(last) = self.resident.last_mut() {
            *last = profile.resident;
        }
        self.frees.resize(instants, 0.);
        let total = of_before(profile);
        if let Some(last) = self.frees.last_mut() {
            *last += figure(total.saturating_sub(self.total));
        }
        self.total = total;
    }

    /// Merges instants: `map` has the new index of each old one.
    pub(in crate::analyze) fn thin(&mut self, map: &[usize], instants: usize) {
        let mut frees = vec![0.; instants];
        for (count, index) in self.frees.iter().zip(map) {
            frees[*index] += count;
        }
        self.frees = frees;
        let mut resident = vec![None; instants];
        for (bytes, index) in self.resident.iter().zip(map) {
            resident[*index] = *bytes;
        }
        self.resident = resident;
    }

    /// Doubt that what call sites keep leaks. `None` if what is freed cannot explain what is kept.
    pub(in crate::analyze) fn doubt(&self, kept: Kept, ends: &[f64]) -> Option<Doubt> {
        if self.in_windows {
            let growth = self.resident_growth(ends);
            let grows = growth.is_some_and(|growth| growth >= COMPARABLE * kept.bytes);
            return (!grows).then_some(Doubt::NotResident);
        }
        let freed = self.recent_rate(ends);
        (kept.blocks > 0. && freed >= COMPARABLE * kept.blocks)
            .then_some(Doubt::Replaces(freed / kept.blocks))
    }

    /// Growth of resident memory in bytes per second, if known.
    fn resident_growth(&self, ends: &[f64]) -> Option<f64> {
        let known = ends.iter().zip(&self.resident).filter_map(|(at, bytes)| Some((*at, figure((*bytes)?))));
        growth_of_later_half(&known.collect::<Vec<_>>())
    }

    /// Frees per second, of late.
    fn recent_rate(&self, ends: &[f64]) -> f64 {
        let end = ends.last().copied().unwrap_or_default();
        let since = ends.partition_point(|at| *at <= end * (1. - RECENT));
        let begin = since.checked_sub(1).map_or(0., |before| ends[before]);
        let frees: f64 = self.frees.iter().skip(since).sum();
        if end > begin { frees / (end - begin) } else { 0. }
    }
}

/// Number of freed blocks from before accounting began.
fn of_before(profile: &Profile) -> u64 {
    if profile.coverage.some_sizes {
        // Those frees are of blocks that the filter excluded.
        return 0;
    }
    let count = |counters: &std::collections::BTreeMap<String, u64>, name: &str| {
        counters.get(name).copied().unwrap_or_default()
    };
    // A forked child begins with its parent's blocks. The free of a lost block looks like one from before.
    // Blocks that the C library cached for a thread are free already or were never the program's: threads
    // that end replace nothing.
    let frees = profile.unknown_frees.saturating_add(count(&profile.notes, "inherited_free"));
    let by_library = count(&profile.notes, "freed_by_c_library");
    frees.saturating_sub(by_library).saturating_sub(count(&profile.lost, "live_table_full"))
}

impl Judgement {
    /// Weakens the verdict "leaking" while kept blocks may replace blocks from before.
    pub(in crate::analyze) fn doubted(self) -> Self {
        Self { kind: VerdictKind::Growing, confidence: CONFIDENCE, ..self }
    }
}

/// Amounts that a call site with `live` live blocks keeps per second.
pub(in crate::analyze) fn kept(judgement: &Judgement, live: u64) -> Kept {
    let a_second = |objects: u64, seconds: f64| figure(objects) / seconds.max(f64::MIN_POSITIVE);
    let blocks = match judgement.survival {
        Some(survival) if duration(judgement.watched) > survival.older_than => {
            let seconds = duration(judgement.watched).saturating_sub(survival.older_than).as_secs_f64();
            a_second(survival.live.objects, seconds)
        }
        _ => a_second(live, judgement.watched),
    };
    Kept { blocks, bytes: judgement.rate.map_or(0., |rate| rate.per_second) }
}

impl Sum for Kept {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, kept| Self {
            blocks: sum.blocks + kept.blocks,
            bytes: sum.bytes + kept.bytes,
        })
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
