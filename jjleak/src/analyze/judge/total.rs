//! Judgement by the development of the live total.

use std::ops::Range;

use super::survivors::slows_down;
use super::{AT_ONCE, BATCHES, Judgement, NEARLY_ALL, SiteHistory, batches};
use crate::analyze::statistics::{Batch, growth, trend};
use crate::profile::{Rate, VerdictKind};

/// Kendall's tau of the troughs from which on the total grows: rising pairs must exceed falling ones by this
/// share.
const MIN_TREND: f64 = 0.5;
/// Minimum rise in the latter half, as a share of the live total; excludes totals that settle.
const RISE: f64 = 0.1;
/// A total within this share of its maximum is flat.
const FLAT: f64 = 0.05;
/// Number of standard errors by which a total that samples estimate must have risen: many sites are judged, and the error is itself
/// an estimate.
const ERRORS: f64 = 3.;
/// Share of its allocations that a filling queue keeps. A leak keeps nearly all, or a small part of much.
const KEPT_BY_QUEUES: Range<f64> = 0.15..0.9;
/// A site keeps what it has if its total stays above this share of the peak in the latter half.
const KEPT: f64 = 0.5;

/// Development of a live total.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Total {
    /// Its troughs rise, and it is not flat now.
    pub(super) grows: bool,
    /// Its growth slows down.
    pub(super) slows: bool,
    /// It never came close to zero in the latter half.
    pub(super) keeps: bool,
    /// Bytes by which the last trough is above the first.
    pub(super) risen: f64,
    /// Growth rate of the troughs.
    pub(super) rate: Option<Rate>,
    /// Seconds for which it has been flat after growth.
    pub(super) flat_for: Option<f64>,
}

impl Total {
    /// Measures the troughs of the total; fluctuation between them does not count.
    pub(super) fn of(history: &SiteHistory<'_>) -> Self {
        let from = history.first.min(history.ends.len());
        let stretches: Vec<_> = (from..history.ends.len())
            .map(|interval| Batch { duration: history.ends[interval] - history.begin(interval), growth: 0. })
            .collect();
        // Young allocations fluctuate with the load.
        let sum =
            if history.survivors.is_some() && history.is_long_enough() { history.old } else { history.live };
        let inherited = history.inherited();
        let lowest = |group: &Range<usize>| {
            let sums = &sum[from + group.start..from + group.end];
            sums.iter().copied().map(f64::from).fold(f64::INFINITY, f64::min) - inherited
        };
        let groups = batches(&stretches, BATCHES);
        let troughs: Vec<f64> = groups.iter().map(lowest).collect();
        let durations =
            groups.iter().map(|group| stretches[group.clone()].iter().map(|stretch| stretch.duration).sum());
        // Differences between consecutive troughs.
        let steps: Vec<_> = durations
            .skip(1)
            .zip(troughs.windows(2))
            .map(|(duration, pair)| Batch { duration, growth: pair[1] - pair[0] })
            .collect();
        let rate = growth(&steps);
        let paces: Vec<_> = steps.iter().map(|step| step.rate()).collect();
        let last = troughs.last().copied().unwrap_or_default();
        let half = troughs.get(troughs.len() / 2).copied().unwrap_or_default();
        let later = &history.live[history.live.len() - (history.live.len() - from).div_ceil(2)..];
        let peak = later.iter().copied().fold(0., f32::max);
        let low = later.iter().copied().fold(f32::INFINITY, f32::min);
        let flat_for = flat_for(history);
        // Where the total has long been flat, old bytes still rise for as long as ageing takes.
        let rises = trend(&troughs) >= MIN_TREND && last > 0. && last - half > RISE * last;
        Self {
            grows: rises && flat_for.is_none(),
            slows: slows_down(&paces),
            keeps: f64::from(low) >= KEPT * f64::from(peak) && peak > 0.,
            risen: last - troughs.first().copied().unwrap_or_default(),
            rate: rate.filter(|rate| rate.per_second.is_finite()),
            flat_for,
        }
    }

    /// Judges by the total alone.
    pub(super) fn judge(&self, history: &SiteHistory<'_>, judgement: &mut Judgement) {
        let certain = self.rate.is_some_and(|rate| rate.low > 0.) && self.risen > ERRORS * history.error;
        let is_even = !self.slows && !may_be_queue(history);
        (judgement.kind, judgement.confidence) = match self {
            // Without ages, an evenly filling cache looks the same.
            Self { grows: true, .. } if certain && is_even => (VerdictKind::Leaking, 0.7),
            Self { grows: true, .. } => (VerdictKind::Growing, 0.6),
            Self { keeps: true, .. } if was_at_once(history) => (VerdictKind::StartUp, 0.7),
            Self { keeps: true, .. } => (VerdictKind::CacheLike, 0.7),
            _ => (VerdictKind::SteadyChurn, 0.8),
        };
        judgement.rate = self.rate.filter(|_| self.grows);
    }
}

/// Returns whether the live share of allocations is that of a queue that drains too slowly.
fn may_be_queue(history: &SiteHistory<'_>) -> bool {
    let inherited = history.inherited();
    let before =
        if inherited > 0. { history.allocated.first().map_or(0., |bytes| f64::from(*bytes)) } else { 0. };
    let allocated = history.allocated.iter().map(|bytes| f64::from(*bytes)).sum::<f64>() - before;
    let live = history.live.last().map_or(0., |bytes| f64::from(*bytes)) - inherited;
    KEPT_BY_QUEUES.contains(&(live / allocated.max(1.)))
}

/// Returns whether nearly all bytes were allocated at once.
fn was_at_once(history: &SiteHistory<'_>) -> bool {
    let all: f64 = history.allocated.iter().map(|bytes| f64::from(*bytes)).sum();
    let within = AT_ONCE * history.watched();
    (history.first..history.ends.len()).any(|first| {
        let begin = history.begin(first);
        let is_near = |last: &usize| *last == first || history.ends[*last] - begin <= within;
        let at_once = (first..history.ends.len()).take_while(is_near);
        at_once.map(|interval| f64::from(history.allocated[interval])).sum::<f64>() >= NEARLY_ALL * all
    })
}

/// Returns whether the total is higher at its end than ever before: in the latest eighth of the time it is always above all
/// earlier totals, by more than [`RISE`].
pub(super) fn rises_to_its_end(history: &SiteHistory<'_>) -> bool {
    let since = history.end() - history.watched() / 8.;
    let late = history.ends.partition_point(|end| *end <= since).max(history.first).min(history.live.len());
    let (before, latest) = (&history.live[history.first.min(late)..late], &history.live[late..]);
    let most = before.iter().copied().fold(0., f32::max);
    let least = latest.iter().copied().fold(f32::INFINITY, f32::min);
    !before.is_empty() && least.is_finite() && f64::from(least) > f64::from(most) * (1. + RISE)
}

/// Seconds since the total was last clearly below its maximum; `None` if that is always or never so.
fn flat_for(history: &SiteHistory<'_>) -> Option<f64> {
    let inherited = history.inherited();
    let live: Vec<_> =
        history.live.get(history.first..)?.iter().map(|bytes| f64::from(*bytes) - inherited).collect();
    let most = live.iter().copied().fold(0., f64::max);
    let level = most * (1. - FLAT);
    let reached = live.iter().position(|bytes| *bytes >= level)?;
    let stays = live[reached..].iter().all(|bytes| *bytes >= level * (1. - FLAT));
    let since = history.end() - history.ends[history.first + reached];
    (reached > 0 && stays && since > history.watched() / 4.).then_some(since)
}
