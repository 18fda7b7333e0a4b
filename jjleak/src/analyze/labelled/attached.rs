//! Kinds of call sites in processes that have run for long when they are first looked at.

use std::ops::Range;

use super::kinds::{Kind, LONG, churn, leak};
use super::simulation::{Block, Draw};
use crate::profile::VerdictKind::{CacheLike, Growing, Leaking, SteadyChurn};

const fn none(_: &mut Draw, _: f64) -> Vec<Block> {
    Vec::new()
}

pub(super) const ATTACHED: &[Kind] = &[
    Kind {
        name: "cache with a time to live, full when attached",
        labels: &[Growing],
        span: LONG,
        blocks: |draw, end| full(draw, end, 1.05..8., 0. ..0.001),
        beside: none,
        threads: |_| 0.,
    },
    Kind {
        name: "cache, least recently used goes, full likewise",
        labels: &[Growing],
        span: LONG,
        blocks: |draw, end| full(draw, end, 1.4..8., 0.05..0.3),
        beside: none,
        threads: |_| 0.,
    },
    Kind {
        name: "cache, full likewise, replaced since",
        labels: &[CacheLike, SteadyChurn],
        span: LONG,
        blocks: |draw, end| full(draw, end, 0.05..0.3, 0. ..0.1),
        beside: none,
        threads: |_| 0.,
    },
    Kind {
        name: "leak beside such a cache",
        labels: &[Leaking],
        span: LONG,
        blocks: |draw, end| leak(draw, 0. ..end, 50. ..2000.),
        beside: |draw, end| full(draw, end, 0.05..0.4, 0. ..0.1),
        threads: |_| 0.,
    },
    Kind {
        name: "leak beside a cache that replaces less",
        labels: &[Leaking],
        span: LONG,
        blocks: |draw, end| leak(draw, 0. ..end, 1000. ..3000.),
        beside: |draw, end| {
            let residence = end * draw.within(1.1..4.);
            let fewer = draw.within(50. ..300.);
            replaced(draw, end, residence, fewer, 0.1)
        },
        threads: |_| 0.,
    },
    Kind {
        name: "leak beside a full cache that replaces more",
        labels: &[Growing],
        span: LONG,
        blocks: |draw, end| leak(draw, 0. ..end, 50. ..500.),
        beside: |draw, end| full(draw, end, 1.4..4., 0. ..0.1),
        threads: |_| 0.,
    },
    Kind {
        name: "slow leak where threads end all the time",
        labels: &[Leaking],
        span: LONG,
        blocks: |draw, end| leak(draw, 0. ..end, 20. ..200.),
        beside: none,
        threads: |draw| draw.scale(100. ..10_000.),
    },
    Kind {
        name: "churn where threads end all the time",
        labels: &[SteadyChurn],
        span: LONG,
        blocks: |draw, end| churn(draw, 0. ..end, 2., 1000),
        beside: none,
        threads: |draw| draw.scale(100. ..10_000.),
    },
    Kind {
        name: "cache, full when attached, where threads end",
        labels: &[Growing],
        span: LONG,
        blocks: |draw, end| full(draw, end, 1.05..8., 0. ..0.001),
        beside: none,
        threads: |draw| draw.scale(100. ..10_000.),
    },
];

/// A full cache whose entries live for so many times the time watched, more or less.
fn full(draw: &mut Draw, end: f64, residence: Range<f64>, spread: Range<f64>) -> Vec<Block> {
    let (residence, spread) = (end * draw.scale(residence), draw.within(spread));
    let count = draw.scale(1000. ..5000.);
    replaced(draw, end, residence, count, spread)
}

/// The same with so many entries replaced while it is watched.
fn replaced(draw: &mut Draw, end: f64, residence: f64, count: f64, spread: f64) -> Vec<Block> {
    let size = draw.size();
    // What was allocated earlier than twice as long ago is gone.
    let begin = -2. * residence;
    let times = draw.times(begin..end, count * (end - begin) / end);
    times
        .into_iter()
        .map(|born| {
            let dies = born + residence * draw.within(1. - spread..1. + spread + f64::EPSILON);
            Block { born, dies, size, count: 1 }
        })
        .collect()
}
