//! What became of what was allocated.

use std::ops::Range;

use super::total::Total;
use super::{
    AT_ONCE, BATCHES, Judgement, MIN_INTERVALS, NEARLY_ALL, OLD, Past, SPANS, batches, bytes, duration,
    totals,
};
use crate::analyze::statistics::{Batch, decline, figure, growth, real};
use crate::profile::{Rate, Survival, Totals, VerdictKind};

/// Shares of the time watched beyond which allocations may count as old: the first at which no more are freed.
const AGES: [f64; 3] = [OLD, 0.25, 0.5];
/// At most this share of what was old before may have been freed since, if what is old is called immortal.
const MORTALITY: f64 = 0.03;
/// Fewer blocks than these say nothing of whether it goes on.
const MIN_BLOCKS: f64 = 6.;
/// The share of batches that must have left something.
const FILLED: f64 = 0.7;
/// A batch that has left more than this share of all is no part of a steady growth: it is left out, once.
const DOMINANT: f64 = 0.5;
/// Growth slows down when the later half has left less than such a share of what the earlier half has, if the decline from
/// batch to batch is at least so significant (Student's t): the less it is, the surer it must be.
const SLOWING: [(f64, f64); 3] = [(0.25, 0.), (0.6, -1.5), (0.88, -2.6)];
/// What has left less than this share of its pace in the latest quarter has stopped.
const STOPPED: f64 = 0.1;
/// What is old must be this share of what lives, for it to say what the site is.
const TELLING: f64 = 0.1;
/// A leak may have begun while it was watched, if that was this share of the time ago.
const LATE: f64 = 0.3;
/// Before it began, what was old must not have been more than this share of what is old now: else it only came back.
const CAME_BACK: f64 = 0.2;

/// What lived of each interval's allocations at an earlier instant.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::analyze) struct Earlier<'a> {
    /// When that was.
    pub(in crate::analyze) at: f64,
    /// Bytes.
    pub(in crate::analyze) survivors: &'a [f32],
}

/// A steady growth of what is never freed.
struct Leak {
    rate: Rate,
    /// The share of batches that left something.
    filled: f64,
}

pub(super) fn judge(past: &Past<'_>, survivors: &[Totals], total: &Total, judgement: &mut Judgement) {
    let age = old_age(past, past.begin(past.first));
    let settled = age.unwrap_or_else(|| OLD * past.watched()).max(past.settle);
    judgement.survival = survival(past, survivors, settled);
    judgement.freed_when_old = mortality(past, past.begin(past.first), settled);
    if let Some((leak, begin)) = find_leak(past, survivors) {
        judgement.kind = VerdictKind::Leaking;
        judgement.watched = past.end() - begin;
        judgement.confidence = confidence(past, &leak, judgement);
        judgement.rate = Some(leak.rate);
        judgement.flat_for = None;
        return;
    }
    let old = judgement.survival.map_or(0., |survival| bytes(survival.live));
    let live = past.live.last().map_or(0., |bytes| f64::from(*bytes));
    let is_mortal = age.is_none() && judgement.freed_when_old.is_some();
    if old < TELLING * live {
        judgement.kind = VerdictKind::SteadyChurn;
        judgement.confidence = 0.9;
    } else if past.has_stopped(survivors, settled) && !is_mortal {
        let at_once = past.was_at_once(survivors, settled);
        judgement.kind = if at_once { VerdictKind::StartUp } else { VerdictKind::CacheLike };
        judgement.confidence = if age.is_some() { 0.9 } else { 0.7 };
    } else if total.grows {
        judgement.kind = VerdictKind::Growing;
        judgement.confidence = 0.7;
        judgement.rate = total.rate;
    } else if old > 0.5 * live && total.keeps {
        judgement.kind = VerdictKind::CacheLike;
        judgement.confidence = 0.8;
    } else {
        judgement.kind = VerdictKind::SteadyChurn;
        judgement.confidence = 0.9;
    }
}

/// A leak since the site was first seen, or since something of it began to stay; and when that was.
fn find_leak(past: &Past<'_>, survivors: &[Totals]) -> Option<(Leak, f64)> {
    let begin = past.begin(past.first);
    if let Some(leak) = leak_since(past, survivors, begin) {
        return Some((leak, begin));
    }
    let late = survivors.iter().position(|totals| totals.objects > 0)?;
    let begin = past.begin(late);
    let is_long = past.end() - begin >= (LATE * past.watched()).max(SPANS * past.settle);
    let before = past.old[..late].iter().copied().fold(0., f32::max);
    let is_new = f64::from(before) <= CAME_BACK * f64::from(past.old.last().copied().unwrap_or_default());
    let leak = (late > past.first && is_long && is_new).then(|| leak_since(past, survivors, begin));
    Some((leak??, begin))
}

fn leak_since(past: &Past<'_>, survivors: &[Totals], begin: f64) -> Option<Leak> {
    let age = old_age(past, begin)?;
    let old: Vec<_> = (past.first..past.ends.len())
        .filter(|interval| past.begin(*interval) >= begin && past.ends[*interval] <= past.end() - age)
        .collect();
    if old.len() < MIN_INTERVALS - 2 {
        return None;
    }
    let stretch = |interval: &usize| Batch {
        duration: past.ends[*interval] - past.begin(*interval),
        growth: bytes(survivors[*interval]),
    };
    let stretches: Vec<_> = old.iter().map(stretch).collect();
    let groups = batches(&stretches, BATCHES);
    let sum = |group: &Range<usize>, of: &dyn Fn(usize) -> f64| group.clone().map(of).sum::<f64>();
    let mut grown: Vec<Grown> = groups
        .iter()
        .map(|group| Grown {
            batch: Batch {
                duration: sum(group, &|index| stretches[index].duration),
                growth: sum(group, &|index| stretches[index].growth),
            },
            objects: sum(group, &|index| figure(survivors[old[index]].objects)),
            allocated: sum(group, &|index| f64::from(past.allocated[old[index]])),
        })
        .collect();
    leave_out_dominant(&mut grown);
    steady(&grown, past.weight)
}

/// What a batch has left.
#[derive(Clone, Copy)]
struct Grown {
    batch: Batch,
    objects: f64,
    allocated: f64,
}

fn leave_out_dominant(grown: &mut Vec<Grown>) {
    let all: f64 = grown.iter().map(|grown| grown.batch.growth).sum();
    let most = (0..grown.len()).max_by(|a, b| grown[*a].batch.growth.total_cmp(&grown[*b].batch.growth));
    if let Some(most) = most.filter(|most| grown[*most].batch.growth > DOMINANT * all) {
        grown.remove(most);
    }
}

fn steady(grown: &[Grown], weight: f64) -> Option<Leak> {
    let batches: Vec<_> = grown.iter().map(|grown| grown.batch).collect();
    let blocks: f64 = grown.iter().map(|grown| grown.objects).sum();
    let filled = real(grown.iter().filter(|grown| grown.objects > 0.).count()) / real(grown.len().max(1));
    let rate = growth(&batches)?;
    let paces: Vec<_> = batches.iter().map(|batch| batch.rate()).collect();
    let shares: Vec<_> = grown.iter().map(|grown| grown.batch.growth / grown.allocated.max(1.)).collect();
    let leaks_a_part = shares.iter().all(|share| *share < 0.5);
    // What leaks a part of what it allocates leaks less when there is less to do.
    let slows = slows_down(&paces) && (!leaks_a_part || slows_down(&shares));
    let of_load = grown.iter().zip(&shares).map(|(grown, share)| {
        let duration = grown.batch.duration;
        Batch { duration, growth: share * duration }
    });
    let of_load = growth(&of_load.collect::<Vec<_>>()).filter(|_| leaks_a_part);
    let is_certain = rate.low > 0. || of_load.is_some_and(|share| share.low > 0.);
    let is_leak = blocks >= MIN_BLOCKS * weight && filled >= FILLED && is_certain && !slows;
    // What is never freed does not become less.
    let rate = Rate { low: rate.low.max(0.), ..rate };
    (is_leak && rate.per_second > 0.).then_some(Leak { rate, filled })
}

/// Whether figures become less.
pub(in crate::analyze) fn slows_down(figures: &[f64]) -> bool {
    let half = figures.len() / 2;
    let mean = |figures: &[f64]| figures.iter().sum::<f64>() / real(figures.len().max(1));
    let pace = mean(&figures[figures.len() - half..]) / mean(&figures[..half]).max(f64::MIN_POSITIVE);
    let decline = decline(figures);
    SLOWING.iter().any(|(slow, significance)| pace < *slow && decline <= *significance)
}

/// The least age at which what is old is not freed any more, of what was allocated since `begin`. `None` when it is freed at
/// any age, or it is not known.
fn old_age(past: &Past<'_>, begin: f64) -> Option<f64> {
    let ages = AGES.iter().map(|share| (share * (past.end() - begin)).max(past.settle));
    ages.into_iter().find(|age| mortality(past, begin, *age).is_some_and(|mortality| mortality <= MORTALITY))
}

/// Of what was older than `age` at an earlier instant, and allocated since `begin`, the share that has been freed since.
fn mortality(past: &Past<'_>, begin: f64, age: f64) -> Option<f64> {
    let survivors = past.survivors?;
    // Long enough ago to tell something, and recent enough for something to be old then.
    let since = (past.end() - begin) / 5.;
    let earlier =
        past.earlier.iter().rev().find(|earlier| earlier.at > begin && past.end() - earlier.at >= since)?;
    let (mut before, mut after) = (0., 0.);
    for (interval, lived) in earlier.survivors.iter().enumerate() {
        if past.begin(interval) >= begin && past.ends[interval] <= earlier.at - age {
            before += f64::from(*lived);
            after += bytes(survivors[interval]).min(f64::from(*lived));
        }
    }
    (before > 0.).then(|| 1. - after / before)
}

fn survival(past: &Past<'_>, survivors: &[Totals], age: f64) -> Option<Survival> {
    let old = |interval: &usize| past.ends[*interval] <= past.end() - age;
    let old: Vec<_> = (past.first..past.ends.len()).filter(old).collect();
    let allocated: f64 = old.iter().map(|interval| f64::from(past.allocated[*interval])).sum();
    let live: Totals = old.iter().map(|interval| survivors[*interval]).sum();
    let allocated = totals(allocated, 0.);
    (allocated.bytes > 0).then(|| Survival { older_than: duration(age), allocated, live })
}

fn confidence(past: &Past<'_>, leak: &Leak, judgement: &Judgement) -> f64 {
    let spread = (leak.rate.high - leak.rate.low) / (2. * leak.rate.per_second).max(f64::MIN_POSITIVE);
    let spans = judgement.watched / (SPANS * past.settle).max(f64::MIN_POSITIVE);
    let doubts = [
        0.2 * spread.clamp(0., 1.),
        0.2 * (1. - leak.filled),
        2. * judgement.freed_when_old.unwrap_or_default().clamp(0., 0.05),
        // What has just become old enough to be judged may have little time to be freed in.
        0.15 * (2. - spans).clamp(0., 1.),
    ];
    doubts.iter().fold(0.99, |confidence, doubt| confidence * (1. - doubt))
}

impl Past<'_> {
    /// The intervals that ended before what is younger than `age` was allocated.
    fn old_intervals(&self, age: f64) -> impl Iterator<Item = usize> + Clone {
        let old = self.ends.partition_point(|end| *end <= self.end() - age);
        self.first..old.max(self.first)
    }

    /// Whether next to nothing of what was allocated lately, but long enough ago to be judged, lives.
    fn has_stopped(&self, survivors: &[Totals], age: f64) -> bool {
        let old = self.old_intervals(age);
        let all: f64 = old.clone().map(|interval| bytes(survivors[interval])).sum();
        let since = self.end() - age - (self.watched() - age) / 4.;
        let late = old.filter(|interval| self.begin(*interval) >= since);
        all > 0. && late.map(|interval| bytes(survivors[interval])).sum::<f64>() < STOPPED / 4. * all
    }

    /// Whether nearly all that is old was allocated at once.
    fn was_at_once(&self, survivors: &[Totals], age: f64) -> bool {
        let old = self.old_intervals(age);
        let all: f64 = old.clone().map(|interval| bytes(survivors[interval])).sum();
        let within = AT_ONCE * self.watched();
        old.clone().any(|first| {
            let is_near = |last: &usize| *last == first || self.ends[*last] - self.begin(first) <= within;
            let at_once = old.clone().skip_while(|interval| *interval < first).take_while(is_near);
            at_once.map(|interval| bytes(survivors[interval])).sum::<f64>() >= NEARLY_ALL * all
        })
    }
}
