//! Assessments: the last judgement on a call site, with the current snapshot's figures.

use std::sync::Arc;
use std::time::Duration;

use super::snapshot::SiteSnapshot;
use crate::analyze::judge::{Before, Doubt, Judgement, Kept, kept};
use crate::profile::{Basis, Point, Rank, Verdict, VerdictKind};

/// A judgement on a call site, without current figures.
#[derive(Debug, Clone)]
pub(super) struct Judged {
    pub(super) judgement: Judgement,
    pub(super) basis: Basis,
    pub(super) first_seen: Duration,
    /// Bytes allocated and freed per second.
    pub(super) turnover: (f64, f64),
    pub(super) series: Arc<[Point]>,
}

/// A judgement with the figures of a snapshot.
pub(super) struct Assessment<'a> {
    pub(super) judged: &'a Judged,
    pub(super) now: &'a SiteSnapshot<'a>,
}

impl Judged {
    /// An empty judgement, for sites that are not judged yet or never will be.
    pub(super) fn nothing(basis: Basis) -> Self {
        Self {
            judgement: Judgement {
                kind: VerdictKind::SteadyChurn,
                is_early: true,
                confidence: 0.,
                watched: 0.,
                rate: None,
                survival: None,
                freed_when_old: None,
                flat_for: None,
            },
            basis,
            first_seen: Duration::ZERO,
            turnover: (0., 0.),
            series: Arc::default(),
        }
    }
}

impl Assessment<'_> {
    /// Blocks and bytes that a leaking call site keeps per second.
    fn kept(&self) -> Option<Kept> {
        let Self { judged: Judged { judgement, .. }, now } = self;
        (judgement.kind == VerdictKind::Leaking).then(|| kept(judgement, now.live.objects))
    }

    /// The judgement, weakened if there is doubt.
    fn judgement(&self, doubt: Option<Doubt>) -> Judgement {
        let judgement = self.judged.judgement;
        match doubt {
            Some(_) if judgement.kind == VerdictKind::Leaking => judgement.doubted(),
            _ => judgement,
        }
    }

    /// Sort key of the verdict.
    fn rank(&self, doubt: Option<Doubt>) -> Rank {
        let Judgement { kind, rate, .. } = self.judgement(doubt);
        Rank::of(kind, rate, self.now.live, self.now.site)
    }

    fn verdict(&self, doubt: Option<Doubt>) -> Verdict {
        let Self { judged: Judged { basis, first_seen, turnover, series, .. }, now } = self;
        let Judgement { kind, confidence, watched, rate, survival, freed_when_old, flat_for, .. } =
            self.judgement(doubt);
        let (allocation_rate, free_rate) = *turnover;
        Verdict {
            kind,
            basis: *basis,
            confidence,
            site: now.site,
            stacks: now.stacks().map(|stack| stack.id).collect(),
            frames: now.largest.frames.clone(),
            caller: now.caller,
            live: now.live,
            allocated: now.allocated,
            watched: seconds(watched),
            first_seen: *first_seen,
            rate,
            survival,
            allocation_rate,
            free_rate,
            freed_when_old,
            freed_from_before: match doubt {
                Some(Doubt::Replaces(freed)) if self.kept().is_some() => Some(freed),
                _ => None,
            },
            not_resident: doubt == Some(Doubt::NotResident) && self.kept().is_some(),
            hidden_stacks: 0,
            flat_for: flat_for.map(seconds),
            series: Arc::clone(series),
        }
    }
}

/// Verdicts, worst first. They are large, so each is built once, in sorted order.
pub(super) fn worst_first(assessments: &[Assessment<'_>], before: &Before, ends: &[f64]) -> Vec<Verdict> {
    let kept = assessments.iter().filter_map(Assessment::kept).sum();
    let doubt = before.doubt(kept, ends);
    let mut order: Vec<_> = assessments.iter().map(|assessment| assessment.rank(doubt)).zip(0..).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index): (_, usize)| assessments[index].verdict(doubt)).collect()
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
