//! Verdict, evidence and picture of a call site agree: all are shown, and a reader compares them.

use super::attached::ATTACHED;
use super::kinds::KINDS;
use super::{SEEDS, verdict};
use crate::profile::{Point, Verdict, VerdictKind};
use crate::render;

/// Share of its highest point by which a line must move for a reader to see it.
const VISIBLE: f64 = 0.1;

/// The highest point before the latest eighth of the line, and the lowest one in it.
fn before_and_after(line: &[Point]) -> Option<(f64, f64)> {
    let (first, last) = (line.first()?.at, line.last()?.at);
    let late = first + last.checked_sub(first)? / 8 * 7;
    let bytes = |point: &Point| point.bytes as f64;
    let before = line.iter().filter(|point| point.at < late).map(bytes).reduce(f64::max)?;
    let after = line.iter().filter(|point| point.at >= late).map(bytes).reduce(f64::min)?;
    Some((before, after))
}

/// What does not agree.
fn contradictions(verdict: &Verdict) -> Vec<String> {
    let Verdict { kind, series, flat_for, rate, .. } = verdict;
    let evidence = render::evidence(verdict).join("; ");
    let grows = *kind <= VerdictKind::Growing;
    let (before, after) = before_and_after(series).unwrap_or_default();
    // The line shows totals, rounded to bytes; its points are thinned out.
    let rises = after > before * (1. + 2. * VISIBLE);
    let most = series.iter().map(|point| point.bytes).max().unwrap_or_default() as f64;
    let last = series.last().map_or(0., |point| point.bytes as f64);
    let checks = [
        (grows && evidence.contains("flat for"), "grows and is flat"),
        (*kind == VerdictKind::CacheLike && rises, "has stopped, above a line that rises to its end"),
        (*kind == VerdictKind::StartUp && rises, "was made at once, above a line that rises to its end"),
        (flat_for.is_some() && last < most * (1. - VISIBLE), "is flat, above a line that falls"),
        (grows && rate.is_some_and(|rate| rate.per_second <= 0.), "grows, and its rate does not"),
        (*kind == VerdictKind::Leaking && rate.is_none(), "leaks without a rate"),
        (!grows && rate.is_some(), "does not grow, at a rate"),
    ];
    checks.into_iter().filter(|(fails, _)| *fails).map(|(_, what)| what.to_owned()).collect()
}

#[test]
fn verdict_evidence_and_picture_agree_for_all_labelled_kinds() {
    for kind in KINDS.iter().chain(ATTACHED) {
        for seed in 0..SEEDS {
            for combined in [false, true] {
                let Some(verdict) = verdict(kind, seed, combined) else { continue };
                let found = contradictions(&verdict);
                assert!(
                    found.is_empty(),
                    "{}, seed {seed}, combined {combined}: {found:?}, {:?}: {:?}\n{:?}",
                    kind.name,
                    verdict.kind,
                    render::evidence(&verdict),
                    verdict.series
                );
            }
        }
    }
}
