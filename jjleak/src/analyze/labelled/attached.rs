//! Call sites of processes that had run for long when jjleak attached.

use std::ops::Range;

use super::kinds::{Kind, LONG, churn, leak};
use super::simulation::{Block, Random};
use crate::profile::VerdictKind::{CacheLike, Growing, Leaking, SteadyChurn};

const fn none(_: &mut Random, _: f64) -> Vec<Block> {
    Vec::new()
}

pub(super) const ATTACHED: &[Kind] = &[
    Kind {
        name: "cache with a time to live, full when attached",
        labels: &[Growing],
        span: LONG,
        blocks: |random, end| full(random, end, 1.05..8., 0. ..0.001),
        beside: none,
        threads: |_| 0.,
    },
    Kind {
        name: "cache, least recently used goes, full likewise",
        labels: &[Growing],
        span: LONG,
        blocks: |random, end| full(random, end, 1.4..8., 0.05..0.3),
        beside: none,
        threads: |_| 0.,
    },
    Kind {
        name: "cache, full likewise, replaced since",
        labels: &[CacheLike, SteadyChurn],
        span: LONG,
        blocks: |random, end| full(random, end, 0.05..0.3, 0. ..0.1),
        beside: none,
        threads: |_| 0.,
    },
    Kind {
        name: "leak beside such a cache",
        labels: &[Leaking],
        span: LONG,
        blocks: |random, end| leak(random, 0. ..end, 50. ..2000.),
        beside: |random, end| full(random, end, 0.05..0.4, 0. ..0.1),
        threads: |_| 0.,
    },
    Kind {
        name: "leak beside a cache that replaces less",
        labels: &[Leaking],
        span: LONG,
        blocks: |random, end| leak(random, 0. ..end, 1000. ..3000.),
        beside: |random, end| {
            let residence = end * random.within(1.1..4.);
            let fewer = random.within(50. ..300.);
            replaced(random, end, residence, fewer, 0.1)
        },
        threads: |_| 0.,
    },
    Kind {
        name: "leak beside a full cache that replaces more",
        labels: &[Growing],
        span: LONG,
        blocks: |random, end| leak(random, 0. ..end, 50. ..500.),
        beside: |random, end| full(random, end, 1.4..4., 0. ..0.1),
        threads: |_| 0.,
    },
    Kind {
        name: "slow leak where threads end all the time",
        labels: &[Leaking],
        span: LONG,
        blocks: |random, end| leak(random, 0. ..end, 20. ..200.),
        beside: none,
        threads: |random| random.scale(100. ..10_000.),
    },
    Kind {
        name: "churn where threads end all the time",
        labels: &[SteadyChurn],
        span: LONG,
        blocks: |random, end| churn(random, 0. ..end, 2., 1000),
        beside: none,
        threads: |random| random.scale(100. ..10_000.),
    },
    Kind {
        name: "cache, full when attached, where threads end",
        labels: &[Growing],
        span: LONG,
        blocks: |random, end| full(random, end, 1.05..8., 0. ..0.001),
        beside: none,
        threads: |random| random.scale(100. ..10_000.),
    },
];

/// A full cache whose entries live for `residence` times the watched time, with some spread.
fn full(random: &mut Random, end: f64, residence: Range<f64>, spread: Range<f64>) -> Vec<Block> {
    let (residence, spread) = (end * random.scale(residence), random.within(spread));
    let count = random.scale(1000. ..5000.);
    replaced(random, end, residence, count, spread)
}

/// Such a cache with `count` entries replaced while it is watched.
fn replaced(random: &mut Random, end: f64, residence: f64, count: f64, spread: f64) -> Vec<Block> {
    let size = random.size();
    // Entries from before twice the residence time are gone.
    let begin = -2. * residence;
    let times = random.times(begin..end, count * (end - begin) / end);
    times
        .into_iter()
        .map(|born| {
            let dies = born + residence * random.within(1. - spread..1. + spread + f64::EPSILON);
            Block { born, dies, size, count: 1 }
        })
        .collect()
}
