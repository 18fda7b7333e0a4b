//! Kinds of call sites, and what they are.

use std::f64::consts::TAU;
use std::ops::Range;

use super::simulation::{Block, Draw};
use crate::profile::VerdictKind::{self, CacheLike, Growing, Leaking, StartUp, SteadyChurn};

/// A kind of call site.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// What it is to be taken for: one of these.
    pub(super) labels: &'static [VerdictKind],
    /// For how long it is watched, in multiples of the age at which allocations are judged.
    pub(super) span: Range<f64>,
    /// Its blocks within so many seconds.
    pub(super) blocks: fn(&mut Draw, f64) -> Vec<Block>,
    /// Those of another call site of the process.
    pub(super) beside: fn(&mut Draw, f64) -> Vec<Block>,
    /// How many threads end within so many seconds: see [`super::simulation::Run::threads`].
    pub(super) threads: fn(&mut Draw) -> f64,
}

const NEVER: f64 = f64::INFINITY;
/// Long enough to say something: from a minute and a half to six hours.
pub(super) const LONG: Range<f64> = 6. ..1440.;
/// Too short to say anything.
const SHORT: Range<f64> = 1. ..3.5;

macro_rules! kinds {
    ($($name:literal, $labels:expr, $span:expr, $blocks:expr;)*) => {
        pub(super) const KINDS: &[Kind] =
            &[$(Kind { name: $name, labels: &$labels, span: $span, blocks: $blocks, beside: |_, _| Vec::new(), threads: |_| 0. }),*];
    };
}

kinds! {
    "leak", [Leaking], LONG, |draw, end| leak(draw, 0. ..end, 20. ..2000.);
    "leak, a share of heavy churn", [Leaking], LONG, |draw, end| {
        let mut blocks = leak(draw, 0. ..end, 20. ..500.);
        blocks.extend(churn(draw, 0. ..end, 0.5, 100_000));
        blocks
    };
    "leak of ten bytes beside gigabytes of churn", [Leaking], 40. ..1440., |draw, end| {
        let mut blocks = churn(draw, 0. ..end, 0.2, 10_000_000);
        let every = end / draw.within(12. ..60.);
        let mut time = draw.within(0. ..every);
        while time < end {
            blocks.push(Block { born: time, dies: NEVER, size: 10, count: 1 });
            time += every * draw.within(0.8..1.2);
        }
        blocks
    };
    "leak in bursts", [Leaking], LONG, |draw, end| {
        let every = end / draw.within(20. ..60.);
        let (size, mut blocks, mut time) = (draw.size(), Vec::new(), draw.within(0. ..every));
        while time < end {
            let count = draw.within(5. ..20.) as u64;
            blocks.push(Block { born: time, dies: NEVER, size, count });
            time += every * draw.within(0.5..1.5);
        }
        blocks
    };
    "leak after a start-up that holds much", [Leaking], LONG, |draw, end| {
        let mut blocks = leak(draw, 0. ..end, 50. ..500.);
        let held: u64 = blocks.iter().map(|block| block.size * block.count).sum();
        let count = draw.scale(0.5..20.) * held as f64 / 4096.;
        blocks.push(Block { born: draw.within(0. ..0.05 * end), dies: NEVER, size: 4096, count: 1 + count as u64 });
        blocks
    };
    "leak with the load of the day", [Leaking], LONG, |draw, end| {
        let (period, phase, share) = (end * draw.within(0.2..2.), draw.unit(), draw.scale(0.02..0.1));
        let load = move |time: f64| 1. + 0.7 * (TAU * (time / period + phase)).sin();
        let mut blocks = Vec::new();
        let size = draw.size();
        for time in draw.times(0. ..end, 4000.) {
            if draw.unit() * 1.7 < load(time) {
                let dies = if draw.unit() < share { NEVER } else { time + draw.wait(end / 500.) };
                blocks.push(Block { born: time, dies, size, count: 10 });
            }
        }
        blocks
    };
    "leak that begins late", [Leaking], 12. ..1440., |draw, end| {
        let begin = end * draw.within(0.2..0.5);
        let mut blocks = leak(draw, begin..end, 50. ..1000.);
        blocks.extend(churn(draw, 0. ..end, 0.2, 100));
        blocks
    };
    "leak of some sessions", [Leaking], LONG, |draw, end| {
        let (mean, share, size) = (end / draw.within(50. ..200.), draw.within(0.05..0.5), draw.size());
        let times = draw.times(0. ..end, 3000.);
        times.into_iter().map(|born| {
            let dies = if draw.unit() < share { NEVER } else { born + draw.wait(mean) };
            Block { born, dies, size, count: 1 }
        }).collect()
    };
    "leak under a sawtooth", [Leaking], LONG, |draw, end| {
        let mut blocks = leak(draw, 0. ..end, 50. ..500.);
        blocks.extend(sawtooth(draw, end, 12. ..40.));
        blocks
    };
    "cache, warm", [CacheLike, StartUp], LONG, |draw, end| {
        let warming = end / draw.within(10. ..25.);
        warm_up(draw, end, warming)
    };
    "cache that fills evenly, then is full", [CacheLike], LONG, |draw, end| {
        let full = end * draw.within(0.25..0.6);
        leak(draw, 0. ..full, 100. ..2000.)
    };
    "cache at capacity, least recently used goes", [CacheLike, SteadyChurn], LONG, |draw, end| {
        let (residence, size) = (end * draw.within(0.05..0.3), draw.size());
        let times = draw.times(0. ..end, 4000.);
        times.into_iter().map(|born| {
            Block { born, dies: born + residence * draw.within(0.9..1.1), size, count: 1 }
        }).collect()
    };
    "cache at capacity, any goes", [CacheLike, SteadyChurn], LONG, |draw, end| {
        let mean = end * draw.within(0.03..0.1);
        sessions(draw, end, mean, 5000.)
    };
    "cache that fills evenly, then replaces", [CacheLike, SteadyChurn], LONG, |draw, end| {
        let (residence, spread, size) = (end * draw.within(0.4..0.7), draw.within(0. ..0.1), draw.size());
        let times = draw.times(0. ..end, 4000.);
        times.into_iter().map(|born| {
            let dies = born + residence * draw.within(1. - spread..1. + spread + f64::EPSILON);
            Block { born, dies, size, count: 1 }
        }).collect()
    };
    "leak that stops", [CacheLike], LONG, |draw, end| {
        let stop = end * draw.within(0.3..0.6);
        let mut blocks = leak(draw, 0. ..stop, 50. ..1000.);
        blocks.extend(churn(draw, 0. ..end, 0.2, 100));
        blocks
    };
    "pool of threads that grows to its size", [CacheLike], LONG, |draw, end| {
        let grown = end * draw.within(0.25..0.6);
        let threads = draw.within(4. ..64.) as u64;
        (0..threads).map(|thread| {
            let born = grown * (thread as f64 + draw.unit()) / threads as f64;
            Block { born, dies: NEVER, size: 8 << 20, count: 1 }
        }).collect()
    };
    "start-up", [StartUp], LONG, |draw, end| {
        let within = end * draw.within(0.001..0.05);
        leak(draw, 0. ..within, 10. ..1000.)
    };
    "one-off", [StartUp], LONG, |draw, end| {
        let born = end * draw.within(0.1..0.7);
        let mut blocks = churn(draw, 0. ..end, 0.2, 10);
        blocks.push(Block { born, dies: NEVER, size: draw.size() * 1000, count: 20 });
        blocks
    };
    "churn", [SteadyChurn], LONG, |draw, end| churn(draw, 0. ..end, 2., 1000);
    "sessions", [SteadyChurn], LONG, |draw, end| {
        let mean = end / draw.within(40. ..200.);
        let count = draw.scale(200. ..5000.);
        sessions(draw, end, mean, count)
    };
    "sawtooth", [SteadyChurn], LONG, |draw, end| sawtooth(draw, end, 3.5..30.);
    "flushed periodically, with churn", [SteadyChurn], LONG, |draw, end| {
        let mut blocks = sawtooth(draw, end, 3.5..20.);
        blocks.extend(churn(draw, 0. ..end, 0.5, 1000));
        blocks
    };
    "load of the day", [SteadyChurn], LONG, |draw, end| {
        let (period, phase) = (end * draw.within(0.4..3.), draw.unit());
        let (mean, size) = (end / draw.within(60. ..300.), draw.size());
        let mut blocks = Vec::new();
        for born in draw.times(0. ..end, 5000.) {
            if draw.unit() * 1.9 < 1. + 0.9 * (TAU * (born / period + phase)).sin() {
                blocks.push(Block { born, dies: born + draw.wait(mean), size, count: 1 });
            }
        }
        blocks
    };
    "cache, still warming", [Growing], LONG, |draw, end| {
        let warming = end * draw.within(0.35..1.);
        warm_up(draw, end, warming)
    };
    "queue that is emptied too slowly", [Growing], LONG, |draw, end| {
        let (share, size) = (draw.within(0.3..0.8), draw.size());
        let times = draw.times(0. ..end, 3000.);
        times.into_iter().map(|born| Block { born, dies: born / share, size, count: 1 }).collect()
    };
    "sessions that last long", [Growing], LONG, |draw, end| {
        let mean = end * draw.within(0.6..1.2);
        sessions(draw, end, mean, 3000.)
    };
    "leak, watched too shortly", [Growing], SHORT, |draw, end| leak(draw, 0. ..end, 20. ..2000.);
    "cache, watched too shortly", [Growing], SHORT, |draw, end| {
        let warming = end * draw.within(0.35..1.);
        warm_up(draw, end, warming)
    };
}

/// Blocks that are never freed, so many in all, one or several at a time.
pub(super) fn leak(draw: &mut Draw, span: Range<f64>, count: Range<f64>) -> Vec<Block> {
    let (count, size) = (draw.scale(count), draw.size());
    let regular = draw.unit() < 0.3;
    let duration = span.end - span.start;
    let times = if regular {
        (0..=count as u64).map(|number| span.start + duration * number as f64 / (1. + count)).collect()
    } else {
        draw.times(span, count)
    };
    let spread = draw.within(0. ..0.9);
    times
        .into_iter()
        .map(|born| {
            let size = (size as f64 * draw.within(1. - spread..1. + spread)) as u64 + 1;
            Block { born, dies: NEVER, size, count: 1 }
        })
        .collect()
}

/// Blocks that live for some seconds, on average.
pub(super) fn churn(draw: &mut Draw, span: Range<f64>, mean: f64, most: u64) -> Vec<Block> {
    let (size, count) = (draw.size(), draw.scale(1. ..most as f64) as u64 + 1);
    let times = draw.times(span, 3000.);
    times.into_iter().map(|born| Block { born, dies: born + draw.wait(mean), size, count }).collect()
}

fn sessions(draw: &mut Draw, end: f64, mean: f64, count: f64) -> Vec<Block> {
    let size = draw.size();
    let times = draw.times(0. ..end, count);
    times.into_iter().map(|born| Block { born, dies: born + draw.wait(mean), size, count: 1 }).collect()
}

/// Blocks that are all freed at once, so many times in all.
fn sawtooth(draw: &mut Draw, end: f64, teeth: Range<f64>) -> Vec<Block> {
    let (period, phase, size) = (end / draw.within(teeth), draw.unit(), draw.size());
    let times = draw.times(0. ..end, 3000.);
    times
        .into_iter()
        .map(|born| Block {
            born,
            dies: period * ((born / period + phase).floor() + 1. - phase),
            size,
            count: 1,
        })
        .collect()
}

/// Misses of a cache that become fewer, by a factor of e in so many seconds.
fn warm_up(draw: &mut Draw, end: f64, warming: f64) -> Vec<Block> {
    let size = draw.size();
    let blocks = (0..draw.scale(200. ..3000.) as u64).map(|_| draw.wait(warming));
    blocks.filter(|born| *born < end).map(|born| Block { born, dies: NEVER, size, count: 1 }).collect()
}
