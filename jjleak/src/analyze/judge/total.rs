//! How the sum of what lives went.

use std::ops::Range;

use super::survivors::slows_down;
use super::{AT_ONCE, BATCHES, Judgement, NEARLY_ALL, Past, batches};
use crate::analyze::statistics::{Batch, growth, trend};
use crate::profile::{Rate, VerdictKind};

/// Troughs must go up in so many more pairs than down, of all pairs, to be called growth.
const UPWARDS: f64 = 0.5;
/// And by this share of what lives in the latter half, which rules out what only settles.
const RISE: f64 = 0.1;
/// What stays within this share of its maximum is flat.
const FLAT: f64 = 0.05;
/// Of what is allocated, a queue that fills keeps a share between these: a leak keeps nearly all, or a small part of much.
const OF_QUEUES: Range<f64> = 0.15..0.9;
/// What never falls below this share of its peak in the latter half keeps what it has.
const KEPT: f64 = 0.5;

/// The course of a sum.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Total {
    /// It grows: what is left of it at its lowest becomes more and more, and it is not flat by now.
    pub(super) grows: bool,
    /// It grows less and less.
    pub(super) slows: bool,
    /// It never came close to nothing in the latter half.
    pub(super) keeps: bool,
    /// By how much its troughs grow.
    pub(super) rate: Option<Rate>,
    /// For how many seconds it has been flat, if it had grown before.
    pub(super) flat_for: Option<f64>,
}

impl Total {
    /// Looks at the sum's troughs: between them, it may go up and down as it likes.
    pub(super) fn of(past: &Past<'_>) -> Self {
        let from = past.first.min(past.ends.len());
        let stretches: Vec<_> = (from..past.ends.len())
            .map(|interval| Batch { duration: past.ends[interval] - past.begin(interval), growth: 0. })
            .collect();
        // What is young comes and goes with the load.
        let sum = if past.survivors.is_some() && past.is_long_enough() { past.old } else { past.live };
        let lowest = |group: &Range<usize>| {
            let sums = &sum[from + group.start..from + group.end];
            sums.iter().copied().map(f64::from).fold(f64::INFINITY, f64::min)
        };
        let groups = batches(&stretches, BATCHES);
        let troughs: Vec<f64> = groups.iter().map(lowest).collect();
        let durations =
            groups.iter().map(|group| stretches[group.clone()].iter().map(|stretch| stretch.duration).sum());
        // From one trough to the next.
        let steps: Vec<_> = durations
            .skip(1)
            .zip(troughs.windows(2))
            .map(|(duration, pair)| Batch { duration, growth: pair[1] - pair[0] })
            .collect();
        let rate = growth(&steps);
        let paces: Vec<_> = steps.iter().map(|step| step.rate()).collect();
        let last = troughs.last().copied().unwrap_or_default();
        let half = troughs.get(troughs.len() / 2).copied().unwrap_or_default();
        let later = &past.live[past.live.len() - (past.live.len() - from).div_ceil(2)..];
        let peak = later.iter().copied().fold(0., f32::max);
        let low = later.iter().copied().fold(f32::INFINITY, f32::min);
        let flat_for = flat_for(past);
        // What is old goes on to become more for as long as that takes, where the sum has been flat for long.
        let rises = trend(&troughs) >= UPWARDS && last - half > RISE * last;
        Self {
            grows: rises && flat_for.is_none(),
            slows: slows_down(&paces),
            keeps: f64::from(low) >= KEPT * f64::from(peak) && peak > 0.,
            rate: rate.filter(|rate| rate.per_second.is_finite()),
            flat_for,
        }
    }

    /// Judges by the sum alone.
    pub(super) fn judge(&self, past: &Past<'_>, judgement: &mut Judgement) {
        let certain = self.rate.is_some_and(|rate| rate.low > 0.);
        let is_even = !self.slows && !may_be_queue(past);
        (judgement.kind, judgement.confidence) = match self {
            // Without ages, a cache that fills evenly looks the same.
            Self { grows: true, .. } if certain && is_even => (VerdictKind::Leaking, 0.7),
            Self { grows: true, .. } => (VerdictKind::Growing, 0.6),
            Self { keeps: true, .. } if was_at_once(past) => (VerdictKind::StartUp, 0.7),
            Self { keeps: true, .. } => (VerdictKind::CacheLike, 0.7),
            _ => (VerdictKind::SteadyChurn, 0.8),
        };
        judgement.rate = self.rate.filter(|_| self.grows);
    }
}

/// Whether so much of what was allocated lives as of a queue that is emptied too slowly.
fn may_be_queue(past: &Past<'_>) -> bool {
    let allocated: f64 = past.allocated.iter().map(|bytes| f64::from(*bytes)).sum();
    let live = past.live.last().map_or(0., |bytes| f64::from(*bytes));
    OF_QUEUES.contains(&(live / allocated.max(1.)))
}

/// Whether nearly all was allocated at once.
fn was_at_once(past: &Past<'_>) -> bool {
    let all: f64 = past.allocated.iter().map(|bytes| f64::from(*bytes)).sum();
    let within = AT_ONCE * past.watched();
    (past.first..past.ends.len()).any(|first| {
        let begin = past.begin(first);
        let is_near = |last: &usize| *last == first || past.ends[*last] - begin <= within;
        let at_once = (first..past.ends.len()).take_while(is_near);
        at_once.map(|interval| f64::from(past.allocated[interval])).sum::<f64>() >= NEARLY_ALL * all
    })
}

/// How long ago the sum was last clearly below what it has been at most; `None` if it is so all the time, or never was.
fn flat_for(past: &Past<'_>) -> Option<f64> {
    let live = past.live.get(past.first..)?;
    let most = live.iter().copied().fold(0., f32::max);
    let level = f64::from(most) * (1. - FLAT);
    let reached = live.iter().position(|bytes| f64::from(*bytes) >= level)?;
    let stays = live[reached..].iter().all(|bytes| f64::from(*bytes) >= level * (1. - FLAT));
    let since = past.end() - past.ends[past.first + reached];
    (reached > 0 && stays && since > past.watched() / 4.).then_some(since)
}
