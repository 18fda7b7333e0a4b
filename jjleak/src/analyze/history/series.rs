//! The history of one call site.

use std::sync::Arc;

use super::assessment::{Judged, seconds};
use super::snapshot::{SiteSnapshot, Snapshot};
use crate::analyze::judge::{Earlier, SiteHistory};
use crate::analyze::statistics::figure;
use crate::profile::{Basis, Point, Profile, Sampling, Totals};

/// The history of one call site, with one entry per remembered instant.
#[derive(Debug, Default)]
pub(super) struct Series {
    /// Bytes allocated since the previous instant.
    pub(super) allocated: Vec<f32>,
    /// Live bytes.
    pub(super) live: Vec<f32>,
    /// Live bytes that were old: see [`SiteHistory::old`].
    pub(super) old: Vec<f32>,
    /// At the last two marks: live bytes of what was allocated since the previous instant.
    pub(super) marks: [Vec<f32>; 2],
    /// Totals allocated since accounting began.
    pub(super) total: Totals,
    /// Live bytes, to rank sites by relevance.
    pub(super) holds: u64,
    /// Number of the last snapshot that had this site.
    pub(super) last_seen: u64,
    /// Snapshots since the site was added, and the bytes live at that time.
    pub(super) snapshots: u32,
    pub(super) held_at_first: u64,
    /// The last judgement, if sites are judged in turn.
    pub(super) judged: Option<Judged>,
}

fn points(ends: &[f64], live: &[f32]) -> Arc<[Point]> {
    let point = |(end, live): (&f64, &f32)| Point {
        at: seconds(*end),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rounded sum of bytes"
        )]
        bytes: *live as u64,
    };
    ends.iter().zip(live).map(point).collect()
}

/// Average number of blocks that a sampled block stands for.
fn weight(profile: &Profile, live: Totals) -> f64 {
    let coverage = &profile.coverage;
    match coverage.sampling {
        // n blocks of the weight w have the variance n w (w - 1).
        Sampling::Announced => profile
            .live_error()
            .map_or(1., |error| 1. + figure(error.objects).powi(2) / figure(profile.live().objects.max(1))),
        Sampling::Off => coverage.windows.map_or(1., |windows| f64::from(windows.weight.max(1))),
        Sampling::Rate(rate) => f64::from(rate),
        Sampling::Bytes(bytes) => {
            let size = figure(live.bytes) / figure(live.objects.max(1));
            let probability = 1. - (-size / figure(bytes.max(1))).exp();
            1. / probability.max(f64::EPSILON)
        }
    }
}

/// Standard error of the live bytes of a site; the errors of its stacks are independent.
fn error(now: &SiteSnapshot<'_>) -> f64 {
    let errors = now.stacks().filter_map(|stack| stack.live_error.totals());
    errors.map(|error| figure(error.bytes).powi(2)).sum::<f64>().sqrt()
}

impl Series {
    /// A new series for a site that had already allocated `total` when it was evicted.
    pub(super) fn since(total: Option<Totals>) -> Self {
        Self { total: total.unwrap_or_default(), ..Self::default() }
    }

    /// Grows the series to this many instants.
    pub(super) fn extend(&mut self, instants: usize) {
        self.allocated.resize(instants, 0.);
        self.live.resize(instants, 0.);
        self.old.resize(instants, 0.);
        for marks in &mut self.marks {
            marks.resize(instants, 0.);
        }
    }

    /// Merges instants: `map` has the new index of each old one.
    pub(super) fn thin(&mut self, map: &[usize], instants: usize) {
        let add = |old: &[f32]| {
            let mut new = vec![0.; instants];
            for (figure, index) in old.iter().zip(map) {
                new[*index] += figure;
            }
            new
        };
        self.allocated = add(&self.allocated);
        self.marks = [add(&self.marks[0]), add(&self.marks[1])];
        let last = |old: &[f32]| {
            let mut new = vec![0.; instants];
            for (figure, index) in old.iter().zip(map) {
                new[*index] = *figure;
            }
            new
        };
        self.live = last(&self.live);
        self.old = last(&self.old);
    }

    #[expect(clippy::cast_precision_loss, reason = "estimates have no use for more than 24 bits")]
    pub(super) fn enter(&mut self, now: &SiteSnapshot<'_>, old_bytes: u64, is_dumped: bool) {
        // Dumps have estimates, and some have no more than what is live.
        if now.allocated.bytes < self.total.bytes && !is_dumped {
            // The program was replaced by another one with the same functions (`exec`).
            let instants = self.live.len();
            *self = Self::default();
            self.extend(instants);
        }
        let last = self.live.len() - 1;
        self.allocated[last] += now.allocated.bytes.saturating_sub(self.total.bytes) as f32;
        self.live[last] = now.live.bytes as f32;
        self.old[last] = old_bytes as f32;
        self.total = now.allocated;
        self.holds = now.live.bytes;
        if self.snapshots == 0 {
            self.held_at_first = now.live.bytes;
        }
        self.snapshots = self.snapshots.saturating_add(1);
    }

    /// Judges the call site; `None` if it has never held anything.
    pub(super) fn judge(
        &self,
        profile: &Profile,
        snapshot: &Snapshot<'_>,
        now: &SiteSnapshot<'_>,
        ends: &[f64],
        marks: [f64; 2],
    ) -> Option<Judged> {
        let first = self.allocated.iter().position(|bytes| *bytes > 0.)?;
        if self.live.iter().all(|bytes| *bytes <= 0.) {
            return None;
        }
        let has_ages = !profile.coverage.combined && !profile.instants_ns.is_empty();
        let survivors = snapshot.survivors(now);
        let earlier = |which: usize| Earlier { at: marks[which], survivors: &self.marks[which] };
        let history = SiteHistory {
            ends,
            first,
            allocated: &self.allocated,
            live: &self.live,
            old: &self.old,
            survivors: has_ages.then_some(&survivors[..]),
            earlier: [earlier(0), earlier(1)],
            settle: profile.coverage.settle.as_secs_f64(),
            weight: weight(profile, now.live),
            error: error(now),
            counted: profile
                .coverage
                .windows
                .map(|windows| figure(now.allocated.objects) / f64::from(windows.weight.max(1))),
        };
        let judgement = history.judge();
        Some(Judged {
            basis: if judgement.is_early { Basis::ShortHistory } else { Basis::LongHistory },
            judgement,
            first_seen: seconds(first.checked_sub(1).map_or(0., |before| ends[before])),
            turnover: history.turnover(),
            series: points(ends, &self.live),
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "estimates have no use for more than 24 bits")]
    pub(super) fn mark(&mut self, snapshot: &Snapshot<'_>, now: Option<&SiteSnapshot<'_>>) {
        let instants = self.live.len();
        let mut marks = vec![0.; instants];
        let survivors = now.map(|now| snapshot.survivors(now)).unwrap_or_default();
        for (mark, survivors) in marks.iter_mut().zip(survivors) {
            *mark = survivors.bytes as f32;
        }
        self.marks.swap(0, 1);
        self.marks[1] = marks;
    }
}
