//! What is remembered of a call site.

use std::sync::Arc;

use super::look::{Look, Now};
use super::said::{Judged, seconds};
use crate::analyze::judge::{Earlier, Past};
use crate::analyze::statistics::figure;
use crate::profile::{Basis, Point, Profile, Sampling, Totals};

/// What is remembered of a call site, for each remembered instant.
#[derive(Debug, Default)]
pub(super) struct Series {
    /// Bytes allocated since the instant before.
    pub(super) allocated: Vec<f32>,
    /// Bytes that lived.
    pub(super) live: Vec<f32>,
    /// Bytes among them that were old: see [`Past::old`].
    pub(super) old: Vec<f32>,
    /// What lived, when survivors were marked, of what was allocated since the instant before.
    pub(super) marks: [Vec<f32>; 2],
    /// What was allocated since accounting began.
    pub(super) total: Totals,
    /// What lives, to tell which sites matter.
    pub(super) holds: u64,
    /// The number of the last look at which there was something of it.
    pub(super) seen_at: u64,
    /// Looks since it was taken in, and what lived then.
    pub(super) looks: u32,
    pub(super) held_at_first: u64,
    /// What was thought of it when it was last judged, if others are judged in turn.
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

/// How many blocks each that was drawn stands for, on average.
fn weight(sampling: Sampling, live: Totals) -> f64 {
    match sampling {
        Sampling::Off => 1.,
        Sampling::Rate(rate) => f64::from(rate),
        Sampling::Bytes(bytes) => {
            let size = figure(live.bytes) / figure(live.objects.max(1));
            let drawn = 1. - (-size / figure(bytes.max(1))).exp();
            1. / drawn.max(f64::EPSILON)
        }
    }
}

impl Series {
    /// Of a call site that had allocated so much when it was last looked at without being remembered.
    pub(super) fn since(total: Option<Totals>) -> Self {
        Self { total: total.unwrap_or_default(), ..Self::default() }
    }

    /// Makes room for so many instants.
    pub(super) fn extend(&mut self, instants: usize) {
        self.allocated.resize(instants, 0.);
        self.live.resize(instants, 0.);
        self.old.resize(instants, 0.);
        for marks in &mut self.marks {
            marks.resize(instants, 0.);
        }
    }

    /// Adds up what belongs to the same instant now: `map` has the new index of each old one.
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
    pub(super) fn enter(&mut self, now: &Now<'_>, old_bytes: u64) {
        if now.allocated.bytes < self.total.bytes {
            // Another program with the same functions.
            let instants = self.live.len();
            *self = Self::default();
            self.extend(instants);
        }
        let last = self.live.len() - 1;
        self.allocated[last] += (now.allocated.bytes - self.total.bytes) as f32;
        self.live[last] = now.live.bytes as f32;
        self.old[last] = old_bytes as f32;
        self.total = now.allocated;
        self.holds = now.live.bytes;
        if self.looks == 0 {
            self.held_at_first = now.live.bytes;
        }
        self.looks = self.looks.saturating_add(1);
    }

    /// What is to be thought of the call site; `None` when it has never held anything.
    pub(super) fn judge(
        &self,
        profile: &Profile,
        look: &Look<'_>,
        now: &Now<'_>,
        ends: &[f64],
        marks: [f64; 2],
    ) -> Option<Judged> {
        let first = self.allocated.iter().position(|bytes| *bytes > 0.)?;
        if self.live.iter().all(|bytes| *bytes <= 0.) {
            return None;
        }
        let has_ages = !profile.coverage.combined && !profile.instants_ns.is_empty();
        let survivors = look.survivors(now);
        let earlier = |which: usize| Earlier { at: marks[which], survivors: &self.marks[which] };
        let past = Past {
            ends,
            first,
            allocated: &self.allocated,
            live: &self.live,
            old: &self.old,
            survivors: has_ages.then_some(&survivors[..]),
            earlier: [earlier(0), earlier(1)],
            settle: profile.coverage.settle.as_secs_f64(),
            weight: weight(profile.coverage.sampling, now.live),
        };
        let judgement = past.judge();
        Some(Judged {
            basis: if judgement.is_early { Basis::ShortPast } else { Basis::LongPast },
            judgement,
            first_seen: seconds(first.checked_sub(1).map_or(0., |before| ends[before])),
            turnover: past.turnover(),
            series: points(ends, &self.live),
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "estimates have no use for more than 24 bits")]
    pub(super) fn mark(&mut self, look: &Look<'_>, now: Option<&Now<'_>>) {
        let instants = self.live.len();
        let mut marks = vec![0.; instants];
        let survivors = now.map(|now| look.survivors(now)).unwrap_or_default();
        for (mark, survivors) in marks.iter_mut().zip(survivors) {
            *mark = survivors.bytes as f32;
        }
        self.marks.swap(0, 1);
        self.marks[1] = marks;
    }
}
