//! What a call site's past makes of it.
//!
//! Two questions decide. *What became of what it allocated?* Of each interval's allocations it is known exactly how many live
//! on, so that churn, however heavy, hides nothing: it is dead by the time that it is old enough to be judged. A leak leaves
//! something of every interval, at an even pace, and nothing of that is ever freed. *How did the sum of what lives go?* Queues
//! that fill faster than they are emptied grow without a leak; caches grow, and then do not.
//!
//! All spans of time are in proportion to how long the site has been watched, but for one: how old an allocation must be to be
//! judged at all.

mod before;
mod survivors;
mod total;

use std::ops::Range;
use std::time::Duration;

use super::statistics::{Batch, figure, real};
use crate::profile::{JUDGED_LOOKS, JUDGED_SPANS, Rate, Survival, Totals, VerdictKind};

pub(super) use before::{Before, kept};
pub(super) use survivors::{Earlier, slows_down};

/// See [`JUDGED_SPANS`].
const SPANS: f64 = JUDGED_SPANS as f64;

/// The least share of the time watched beyond which allocations count as old.
pub(super) const OLD: f64 = 0.125;

/// See [`JUDGED_LOOKS`].
const MIN_INTERVALS: usize = JUDGED_LOOKS as usize;

/// What was allocated within this share of the time was allocated at once.
const AT_ONCE: f64 = 0.15;

/// If it was this share of all.
const NEARLY_ALL: f64 = 0.9;

/// Batches that growth is looked at in: enough for a spread, and few enough that each is long.
pub(super) const BATCHES: usize = 8;

/// The past of a call site, in intervals that end at instants. All times are seconds since accounting began.
#[derive(Debug, Clone)]
pub(super) struct Past<'a> {
    /// When each interval ended; the last is now.
    pub(super) ends: &'a [f64],
    /// The first interval in which it allocated.
    pub(super) first: usize,
    /// Bytes allocated in each.
    pub(super) allocated: &'a [f32],
    /// Bytes that lived at the end of each.
    pub(super) live: &'a [f32],
    /// Bytes among them that were older then than [`OLD`] of the time watched, and old enough to be judged.
    pub(super) old: &'a [f32],
    /// What lives now of each interval's allocations; `None` when ages are not known.
    pub(super) survivors: Option<&'a [Totals]>,
    /// What lived of them at earlier instants, the latest last.
    pub(super) earlier: [Earlier<'a>; 2],
    /// Allocations younger than this are not judged.
    pub(super) settle: f64,
    /// How many blocks each that was seen stands for.
    pub(super) weight: f64,
}

/// What a past makes of a call site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Judgement {
    pub(super) kind: VerdictKind,
    /// Whether the past is too short to tell more than whether it grows.
    pub(super) is_early: bool,
    pub(super) confidence: f64,
    pub(super) watched: f64,
    pub(super) rate: Option<Rate>,
    pub(super) survival: Option<Survival>,
    pub(super) freed_when_old: Option<f64>,
    pub(super) flat_for: Option<f64>,
}

impl Past<'_> {
    /// Now.
    fn end(&self) -> f64 {
        self.ends.last().copied().unwrap_or_default()
    }

    /// When an interval began.
    fn begin(&self, interval: usize) -> f64 {
        interval.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default()
    }

    /// For how long the site has been watched.
    pub(super) fn watched(&self) -> f64 {
        (self.end() - self.begin(self.first)).max(0.)
    }

    /// Bytes allocated and freed a second.
    pub(super) fn turnover(&self) -> (f64, f64) {
        let allocated: f64 = self.allocated.iter().map(|bytes| f64::from(*bytes)).sum();
        let live = self.live.last().map_or(0., |bytes| f64::from(*bytes));
        let watched = self.watched();
        if watched > 0. { (allocated / watched, (allocated - live).max(0.) / watched) } else { (0., 0.) }
    }

    /// Whether there is enough of it to say what is a leak and what is none.
    fn is_long_enough(&self) -> bool {
        self.watched() >= SPANS * self.settle
            && self.ends.len() - self.first.min(self.ends.len()) >= MIN_INTERVALS
    }

    /// Judges the site.
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
            flat_for: total.flat_for,
        };
        if judgement.is_early {
            self.judge_early(&total, &mut judgement);
        } else if let Some(survivors) = self.survivors {
            survivors::judge(self, survivors, &total, &mut judgement);
        } else {
            total.judge(self, &mut judgement);
        }
        judgement
    }

    /// What can be said of a site that has not been watched for long: whether it grows.
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

/// What lives has to be more than this times what lived at half the time, to be called growth early on.
const EARLY_GROWTH: f32 = 1.2;
/// Nothing that is said early is worth more.
const EARLY_CONFIDENCE: f64 = 0.3;

/// Puts stretches of time together to about so many of equal duration.
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

/// The bytes of totals, to calculate with.
const fn bytes(totals: Totals) -> f64 {
    figure(totals.bytes)
}
