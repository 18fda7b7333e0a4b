//! Judgement by the survivors of allocations.

use std::ops::Range;

use super::total::{Total, rises_to_its_end};
use super::{
    AT_ONCE, BATCHES, Judgement, MIN_INTERVALS, NEARLY_ALL, OLD, SPANS, SiteHistory, batches, bytes,
    duration, totals,
};
use crate::analyze::statistics::{Batch, decline, figure, growth, real};
use crate::profile::{Rate, Survival, Totals, VerdictKind};

/// Candidate shares of the watched time after which allocations count as old. The first at which frees have
/// ceased is used.
const AGES: [f64; 3] = [OLD, 0.25, 0.5];
/// Maximum share of old bytes that may have been freed since, for old allocations to count as immortal.
const MORTALITY: f64 = 0.03;
/// Minimum number of blocks; fewer do not show that growth goes on.
const MIN_BLOCKS: f64 = 6.;
/// Share of batches that must have survivors.
const FILLED: f64 = 0.7;
/// A batch with more than this share of all survivors is not part of steady growth. One such batch is left
/// out.
const DOMINANT: f64 = 0.5;
/// Growth slows down if the later half left less than this share of the earlier half's survivors, and the
/// decline from batch to batch reaches this significance (Student's t). A weaker decline must be more
/// significant.
const SLOWING: [(f64, f64); 3] = [(0.25, 0.), (0.6, -1.5), (0.88, -2.6)];
/// Growth has stopped if the latest quarter left less than this share of its proportional part.
const STOPPED: f64 = 0.1;
/// Share of live bytes that must be old, for the survivors to decide.
const DECISIVE: f64 = 0.1;
/// A leak may have begun while watched, if at least this share of the time ago.
const LATE: f64 = 0.3;
/// Maximum share of today's old bytes that may have been old before the leak began; more means that they only
/// came back.
const CAME_BACK: f64 = 0.2;

/// Survivors of each interval's allocations at an earlier instant.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::analyze) struct Earlier<'a> {
    /// The earlier instant.
    pub(in crate::analyze) at: f64,
    /// Bytes.
    pub(in crate::analyze) survivors: &'a [f32],
}

/// Steady growth of allocations that are never freed.
struct Leak {
    rate: Rate,
    /// Share of batches with survivors.
    filled: f64,
}

pub(super) fn judge(
    history: &SiteHistory<'_>,
    survivors: &[Totals],
    total: &Total,
    judgement: &mut Judgement,
) {
    let age = old_age(history, history.begin(history.first));
    let settled = age.unwrap_or_else(|| OLD * history.watched()).max(history.settle);
    judgement.survival = survival(history, survivors, settled);
    judgement.freed_when_old = mortality(history, history.begin(history.first), settled);
    if let Some((leak, begin)) = find_leak(history, survivors) {
        judgement.kind = VerdictKind::Leaking;
        judgement.watched = history.end() - begin;
        judgement.confidence = confidence(history, &leak, judgement);
        judgement.rate = Some(leak.rate);
        return;
    }
    let old = judgement.survival.map_or(0., |survival| bytes(survival.live));
    let live = history.live.last().map_or(0., |bytes| f64::from(*bytes));
    let rises = rises_to_its_end(history);
    let is_mortal = age.is_none() && judgement.freed_when_old.is_some();
    if old < DECISIVE * live {
        judgement.kind = VerdictKind::SteadyChurn;
        judgement.confidence = 0.9;
    } else if history.has_stopped(survivors, settled) && !is_mortal && !rises {
        let at_once = history.was_at_once(survivors, settled);
        judgement.kind = if at_once { VerdictKind::StartUp } else { VerdictKind::CacheLike };
        judgement.confidence = if age.is_some() { 0.9 } else { 0.7 };
    } else if total.grows || rises {
        judgement.kind = VerdictKind::Growing;
        judgement.confidence = 0.7;
        judgement.rate = total.rate.filter(|rate| rate.per_second > 0.);
    } else if old > 0.5 * live && total.keeps {
        judgement.kind = VerdictKind::CacheLike;
        judgement.confidence = 0.8;
    } else {
        judgement.kind = VerdictKind::SteadyChurn;
        judgement.confidence = 0.9;
    }
}

/// Finds a leak since the site was first seen, or since its allocations began to survive. Also returns the
/// start.
fn find_leak(history: &SiteHistory<'_>, survivors: &[Totals]) -> Option<(Leak, f64)> {
    let begin = history.begin(history.first);
    if let Some(leak) = leak_since(history, survivors, begin) {
        return Some((leak, begin));
    }
    let late = survivors.iter().position(|totals| totals.objects > 0)?;
    let begin = history.begin(late);
    let is_long = history.end() - begin >= (LATE * history.watched()).max(SPANS * history.settle);
    let before = history.old[..late].iter().copied().fold(0., f32::max);
    let is_new = f64::from(before) <= CAME_BACK * f64::from(history.old.last().copied().unwrap_or_default());
    let leak = (late > history.first && is_long && is_new).then(|| leak_since(history, survivors, begin));
    Some((leak??, begin))
}

fn leak_since(history: &SiteHistory<'_>, survivors: &[Totals], begin: f64) -> Option<Leak> {
    let age = old_age(history, begin)?;
    let old: Vec<_> = (history.first..history.ends.len())
        .filter(|interval| {
            history.begin(*interval) >= begin && history.ends[*interval] <= history.end() - age
        })
        .collect();
    if old.len() < MIN_INTERVALS - 2 {
        return None;
    }
    let stretch = |interval: &usize| Batch {
        duration: history.ends[*interval] - history.begin(*interval),
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
            allocated: sum(group, &|index| f64::from(history.allocated[old[index]])),
        })
        .collect();
    leave_out_dominant(&mut grown);
    steady(&grown, history.weight)
}

/// Survivors of a batch.
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
    // A site that leaks a share of its allocations leaks less under less load.
    let slows = slows_down(&paces) && (!leaks_a_part || slows_down(&shares));
    let of_load = grown.iter().zip(&shares).map(|(grown, share)| {
        let duration = grown.batch.duration;
        Batch { duration, growth: share * duration }
    });
    let of_load = growth(&of_load.collect::<Vec<_>>()).filter(|_| leaks_a_part);
    let is_certain = rate.low > 0. || of_load.is_some_and(|share| share.low > 0.);
    let is_leak = blocks >= MIN_BLOCKS * weight && filled >= FILLED && is_certain && !slows;
    // Allocations that are never freed cannot shrink.
    let rate = Rate { low: rate.low.max(0.), ..rate };
    (is_leak && rate.per_second > 0.).then_some(Leak { rate, filled })
}

/// Returns whether figures decline.
pub(in crate::analyze) fn slows_down(figures: &[f64]) -> bool {
    let half = figures.len() / 2;
    let mean = |figures: &[f64]| figures.iter().sum::<f64>() / real(figures.len().max(1));
    let pace = mean(&figures[figures.len() - half..]) / mean(&figures[..half]).max(f64::MIN_POSITIVE);
    let decline = decline(figures);
    SLOWING.iter().any(|(slow, significance)| pace < *slow && decline <= *significance)
}

/// Minimum age after which allocations made since `begin` are no longer freed. `None` if they are freed at
/// any age, or it is unknown.
fn old_age(history: &SiteHistory<'_>, begin: f64) -> Option<f64> {
    let ages = AGES.iter().map(|share| (share * (history.end() - begin)).max(history.settle));
    ages.into_iter()
        .find(|age| mortality(history, begin, *age).is_some_and(|mortality| mortality <= MORTALITY))
}

/// Share of allocations made since `begin` and older than `age` at an earlier instant that have been freed
/// since.
fn mortality(history: &SiteHistory<'_>, begin: f64, age: f64) -> Option<f64> {
    let survivors = history.survivors?;
    // Long enough ago to be significant, recent enough for some allocations to be old by then.
    let since = (history.end() - begin) / 5.;
    let earlier = history
        .earlier
        .iter()
        .rev()
        .find(|earlier| earlier.at > begin && history.end() - earlier.at >= since)?;
    let (mut before, mut after) = (0., 0.);
    for (interval, lived) in earlier.survivors.iter().enumerate() {
        if history.begin(interval) >= begin && history.ends[interval] <= earlier.at - age {
            before += f64::from(*lived);
            after += bytes(survivors[interval]).min(f64::from(*lived));
        }
    }
    (before > 0.).then(|| 1. - after / before)
}

fn survival(history: &SiteHistory<'_>, survivors: &[Totals], age: f64) -> Option<Survival> {
    let old = |interval: &usize| history.ends[*interval] <= history.end() - age;
    let old: Vec<_> = (history.first..history.ends.len()).filter(old).collect();
    let allocated: f64 = old.iter().map(|interval| f64::from(history.allocated[*interval])).sum();
    let live: Totals = old.iter().map(|interval| survivors[*interval]).sum();
    let allocated = totals(allocated, 0.);
    (allocated.bytes > 0).then(|| Survival { older_than: duration(age), allocated, live })
}

fn confidence(history: &SiteHistory<'_>, leak: &Leak, judgement: &Judgement) -> f64 {
    let spread = (leak.rate.high - leak.rate.low) / (2. * leak.rate.per_second).max(f64::MIN_POSITIVE);
    let spans = judgement.watched / (SPANS * history.settle).max(f64::MIN_POSITIVE);
    let doubts = [
        0.2 * spread.clamp(0., 1.),
        0.2 * (1. - leak.filled),
        2. * judgement.freed_when_old.unwrap_or_default().clamp(0., 0.05),
        // Allocations that have just become old enough to be judged had little time to be freed.
        0.15 * (2. - spans).clamp(0., 1.),
    ];
    doubts.iter().fold(0.99, |confidence, doubt| confidence * (1. - doubt))
}

impl SiteHistory<'_> {
    /// Intervals that ended at least `age` ago.
    fn old_intervals(&self, age: f64) -> impl Iterator<Item = usize> + Clone {
        let old = self.ends.partition_point(|end| *end <= self.end() - age);
        self.first..old.max(self.first)
    }

    /// Returns whether recent allocations that are old enough to be judged left almost no survivors.
    fn has_stopped(&self, survivors: &[Totals], age: f64) -> bool {
        let old = self.old_intervals(age);
        let all: f64 = old.clone().map(|interval| bytes(survivors[interval])).sum();
        let since = self.end() - age - (self.watched() - age) / 4.;
        let late = old.filter(|interval| self.begin(*interval) >= since);
        all > 0. && late.map(|interval| bytes(survivors[interval])).sum::<f64>() < STOPPED / 4. * all
    }

    /// Returns whether nearly all old survivors were allocated at once.
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
