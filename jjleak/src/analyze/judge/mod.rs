//! Verdict on a call site, from its history.
//!
//! Two questions decide. *What became of its allocations?* For each interval, the number of surviving
//! allocations is known exactly, so even heavy churn hides nothing: it is dead before it is old enough to be
//! judged. A leak leaves survivors in every interval, at an even pace, and none of them is ever freed. *How
//! does the live total develop?* Queues that fill faster than they drain grow without a leak; caches grow,
//! then stay flat.
//!
//! All durations are proportional to the time that the site has been watched, except one: the minimum age at
//! which an allocation is judged.

mod before;
mod survivors;
mod total;

use std::ops::Range;
use std::time::Duration;

use super::statistics::{Batch, figure, real};
use crate::profile::{JUDGED_SNAPSHOTS, JUDGED_SPANS, Rate, Survival, Totals, VerdictKind};

pub(super) use before::{Before, Doubt, Kept, kept};
pub(super) use survivors::{Earlier, slows_down};

/// See [`JUDGED_SPANS`].
const SPANS: f64 = JUDGED_SPANS as f64;

/// Smallest share of the watched time after which allocations count as old.
pub(super) const OLD: f64 = 0.125;

/// See [`JUDGED_SNAPSHOTS`].
const MIN_INTERVALS: usize = JUDGED_SNAPSHOTS as usize;

/// Minimum number of blocks that must have been counted in windows, and of intervals that they are from: what became of fewer
/// can be chance.
const MIN_COUNTED: f64 = 40.;
const MIN_COUNTED_INTERVALS: usize = 10;
/// Number of blocks that one counted in a window may stand for. Beyond it, it takes more of them, in proportion: windows that are
/// far apart miss much in between.
const MANY: f64 = 10.;

/// Allocations within this share of the time count as made at once.
const AT_ONCE: f64 = 0.15;

/// Share of all allocations that must be made at once.
const NEARLY_ALL: f64 = 0.9;

/// Number of batches for growth: enough for a spread, few enough that each is long.
pub(super) const BATCHES: usize = 8;

/// History of a call site, in intervals that end at instants. All times are seconds since accounting began.
#[derive(Debug, Clone)]
pub(super) struct SiteHistory<'a> {
    /// End of each interval; the last is now.
    pub(super) ends: &'a [f64],
    /// The first interval with an allocation.
    pub(super) first: usize,
    /// Bytes allocated in each interval.
    pub(super) allocated: &'a [f32],
    /// Live bytes at the end of each interval.
    pub(super) live: &'a [f32],
    /// Live bytes that were older than [`OLD`] of the watched time, and old enough to be judged.
    pub(super) old: &'a [f32],
    /// Live totals of each interval's allocations; `None` if ages are unknown.
    pub(super) survivors: Option<&'a [Totals]>,
    /// Survivors at earlier instants, latest last.
    pub(super) earlier: [Earlier<'a>; 2],
    /// Minimum age at which allocations are judged.
    pub(super) settle: f64,
    /// Number of blocks that a sampled block stands for.
    pub(super) weight: f64,
    /// Standard error of the live bytes now; 0 if they are counted.
    pub(super) error: f64,
    /// Number of blocks counted so far, if allocations are counted in windows.
    pub(super) counted: Option<f64>,
}

/// Judgement on a call site, from its history.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Judgement {
    pub(super) kind: VerdictKind,
    /// The history is too short to show more than growth.
    pub(super) is_early: bool,
    pub(super) confidence: f64,
    pub(super) watched: f64,
    pub(super) rate: Option<Rate>,
    pub(super) survival: Option<Survival>,
    pub(super) freed_when_old: Option<f64>,
    pub(super) flat_for: Option<f64>,
}

impl SiteHistory<'_> {
    /// The current time.
    fn end(&self) -> f64 {
        self.ends.last().copied().unwrap_or_default()
    }

    /// Start of an interval.
    fn begin(&self, interval: usize) -> f64 {
        interval.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default()
    }

    /// Time for which the site has been watched.
    pub(super) fn watched(&self) -> f64 {
        (self.end() - self.begin(self.first)).max(0.)
    }

    /// Live bytes at time 0. A process is watched from its first dump on, and what it had then says nothing of what it does.
    fn inherited(&self) -> f64 {
        let is_dump = self.first == 0 && self.ends.first() == Some(&0.);
        self.live.first().filter(|_| is_dump).map_or(0., |bytes| f64::from(*bytes))
    }

    /// Bytes allocated and freed per second.
    pub(super) fn turnover(&self) -> (f64, f64) {
        let allocated: f64 = self.allocated.iter().map(|bytes| f64::from(*bytes)).sum();
        let live = self.live.last().map_or(0., |bytes| f64::from(*bytes));
        let watched = self.watched();
        if watched > 0. { (allocated / watched, (allocated - live).max(0.) / watched) } else { (0., 0.) }
    }

    /// Returns whether the history is long enough to tell a leak from other growth.
    fn is_long_enough(&self) -> bool {
        self.watched() >= SPANS * self.settle
            && self.ends.len() - self.first.min(self.ends.len()) >= MIN_INTERVALS
            && self.counted.is_none_or(|blocks| {
                let intervals = self.allocated.iter().filter(|bytes| **bytes > 0.).count();
                let enough = MIN_COUNTED * (self.weight / MANY).max(1.);
                blocks >= enough && intervals >= MIN_COUNTED_INTERVALS
            })
    }

    pub(super) fn judge(&self) -> Judgement {
        let total = total::Total::of(self);
        let mut judgement = Judgement {
            kind: VerdictKind::SteadyChurn,
            is_early: !self.is_long_enough(),
            confidence: 0.5,
            watched: self.watched(),
            rate: None,
            survival: None,
            freed_when_old: None,
            flat_for: None,
        };
        if judgement.is_early {
            self.judge_early(&total, &mut judgement);
        } else if let Some(survivors) = self.survivors {
            survivors::judge(self, survivors, &total, &mut judgement);
        } else {
            total.judge(self, &mut judgement);
        }
        // What still grows, or is freed as it comes, is not flat: that would be another verdict.
        judgement.flat_for = total.flat_for.filter(|_| judgement.kind == VerdictKind::CacheLike);
        judgement
    }

    /// Judges a site with a short history: whether it grows.
    fn judge_early(&self, total: &total::Total, judgement: &mut Judgement) {
        let live = self.live.last().copied().unwrap_or_default();
        let half = self.begin(self.first) + self.watched() / 2.;
        let at_half =
            self.ends.iter().zip(self.live).rfind(|(end, _)| **end <= half).map_or(0., |(_, live)| *live);
        judgement.kind = if live <= 0. {
            VerdictKind::SteadyChurn
        } else if live > at_half * EARLY_GROWTH {
            VerdictKind::Growing
        } else if self.allocated.iter().skip(self.first + 1).any(|bytes| *bytes > 0.) {
            VerdictKind::SteadyChurn
        } else {
            VerdictKind::StartUp
        };
        judgement.confidence = EARLY_CONFIDENCE;
        judgement.rate = total.rate.filter(|_| judgement.kind == VerdictKind::Growing);
    }
}

/// Early growth means that live bytes exceed those at half the time by this factor.
const EARLY_GROWTH: f32 = 1.2;
/// Upper bound for the confidence of early judgements.
const EARLY_CONFIDENCE: f64 = 0.3;

/// Groups intervals into about `wanted` batches of equal duration.
pub(super) fn batches(stretches: &[Batch], wanted: usize) -> Vec<Range<usize>> {
    let duration: f64 = stretches.iter().map(|stretch| stretch.duration).sum();
    let wanted = wanted.min(stretches.len());
    let mut groups: Vec<Range<usize>> = Vec::with_capacity(wanted);
    let mut time = 0.;
    for (index, stretch) in stretches.iter().enumerate() {
        let middle = time + stretch.duration / 2.;
        let begins = real(groups.len()) * duration / real(wanted.max(1));
        if groups.is_empty() || middle >= begins {
            groups.push(index..index);
        }
        if let Some(group) = groups.last_mut() {
            group.end = index + 1;
        }
        time += stretch.duration;
    }
    groups
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn totals(bytes: f64, objects: f64) -> Totals {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sums of what was counted")]
    Totals { bytes: bytes as u64, objects: objects as u64 }
}

/// The bytes as a float.
const fn bytes(totals: Totals) -> f64 {
    figure(totals.bytes)
}
