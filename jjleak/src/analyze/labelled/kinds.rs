//! Kinds of call sites with their expected verdicts.

use std::f64::consts::TAU;
use std::ops::Range;

use super::simulation::{Block, Random};
use crate::profile::VerdictKind::{self, CacheLike, Growing, Leaking, StartUp, SteadyChurn};

/// A kind of call site.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Accepted verdicts.
    pub(super) labels: &'static [VerdictKind],
    /// Watched time, in multiples of the age at which allocations are judged.
    pub(super) span: Range<f64>,
    /// Generates its blocks for this many seconds.
    pub(super) blocks: fn(&mut Random, f64) -> Vec<Block>,
    /// Generates the blocks of another call site of the process.
    pub(super) beside: fn(&mut Random, f64) -> Vec<Block>,
    /// Number of threads that end: see [`super::simulation::Run::threads`].
    pub(super) threads: fn(&mut Random) -> f64,
}

const NEVER: f64 = f64::INFINITY;
/// Long enough for a verdict: from a minute and a half to six hours.
pub(super) const LONG: Range<f64> = 6. ..1440.;
/// Too short for a verdict.
const SHORT: Range<f64> = 1. ..3.5;

macro_rules! kinds {
    ($($name:literal, $labels:expr, $span:expr, $blocks:expr;)*) => {
        pub(super) const KINDS: &[Kind] =
            &[$(Kind { name: $name, labels: &$labels, span: $span, blocks: $blocks, beside: |_, _| Vec::new(), threads: |_| 0. }),*];
    };
}

kinds! {
    "leak", [Leaking], LONG, |random, end| leak(random, 0. ..end, 20. ..2000.);
    "leak, a share of heavy churn", [Leaking], LONG, |random, end| {
        let mut blocks = leak(random, 0. ..end, 20. ..500.);
        blocks.extend(churn(random, 0. ..end, 0.5, 100_000));
        blocks
    };
    "leak of ten bytes beside gigabytes of churn", [Leaking], 40. ..1440., |random, end| {
        let mut blocks = churn(random, 0. ..end, 0.2, 10_000_000);
        let every = end / random.within(12. ..60.);
        let mut time = random.within(0. ..every);
        while time < end {
            blocks.push(Block { born: time, dies: NEVER, size: 10, count: 1 });
            time += every * random.within(0.8..1.2);
        }
        blocks
    };
    "leak in bursts", [Leaking], LONG, |random, end| {
        let every = end / random.within(20. ..60.);
        let (size, mut blocks, mut time) = (random.size(), Vec::new(), random.within(0. ..every));
        while time < end {
            let count = random.within(5. ..20.) as u64;
            blocks.push(Block { born: time, dies: NEVER, size, count });
            time += every * random.within(0.5..1.5);
        }
        blocks
    };
    "leak after a start-up that holds much", [Leaking], LONG, |random, end| {
        let mut blocks = leak(random, 0. ..end, 50. ..500.);
        let held: u64 = blocks.iter().map(|block| block.size * block.count).sum();
        let count = random.scale(0.5..20.) * held as f64 / 4096.;
        blocks.push(Block { born: random.within(0. ..0.05 * end), dies: NEVER, size: 4096, count: 1 + count as u64 });
        blocks
    };
    "leak with the load of the day", [Leaking], LONG, |random, end| {
        let (period, phase, share) = (end * random.within(0.2..2.), random.unit(), random.scale(0.02..0.1));
        let load = move |time: f64| 1. + 0.7 * (TAU * (time / period + phase)).sin();
        let mut blocks = Vec::new();
        let size = random.size();
        for time in random.times(0. ..end, 4000.) {
            if random.unit() * 1.7 < load(time) {
                let dies = if random.unit() < share { NEVER } else { time + random.wait(end / 500.) };
                blocks.push(Block { born: time, dies, size, count: 10 });
            }
        }
        blocks
    };
    "leak that begins late", [Leaking], 12. ..1440., |random, end| {
        let begin = end * random.within(0.2..0.5);
        let mut blocks = leak(random, begin..end, 50. ..1000.);
        blocks.extend(churn(random, 0. ..end, 0.2, 100));
        blocks
    };
    "leak of some sessions", [Leaking], LONG, |random, end| {
        let (mean, share, size) = (end / random.within(50. ..200.), random.within(0.05..0.5), random.size());
        let times = random.times(0. ..end, 3000.);
        times.into_iter().map(|born| {
            let dies = if random.unit() < share { NEVER } else { born + random.wait(mean) };
            Block { born, dies, size, count: 1 }
        }).collect()
    };
    "leak under a sawtooth", [Leaking], LONG, |random, end| {
        let mut blocks = leak(random, 0. ..end, 50. ..500.);
        blocks.extend(sawtooth(random, end, 12. ..40.));
        blocks
    };
    "cache, warm", [CacheLike, StartUp], LONG, |random, end| {
        let warming = end / random.within(10. ..25.);
        warm_up(random, end, warming)
    };
    "cache that fills evenly, then is full", [CacheLike], LONG, |random, end| {
        let full = end * random.within(0.25..0.6);
        leak(random, 0. ..full, 100. ..2000.)
    };
    "cache at capacity, least recently used goes", [CacheLike, SteadyChurn], LONG, |random, end| {
        let (residence, size) = (end * random.within(0.05..0.3), random.size());
        let times = random.times(0. ..end, 4000.);
        times.into_iter().map(|born| {
            Block { born, dies: born + residence * random.within(0.9..1.1), size, count: 1 }
        }).collect()
    };
    "cache at capacity, any goes", [CacheLike, SteadyChurn], LONG, |random, end| {
        let mean = end * random.within(0.03..0.1);
        sessions(random, end, mean, 5000.)
    };
    "cache that fills evenly, then replaces", [CacheLike, SteadyChurn], LONG, |random, end| {
        let (residence, spread, size) = (end * random.within(0.4..0.7), random.within(0. ..0.1), random.size());
        let times = random.times(0. ..end, 4000.);
        times.into_iter().map(|born| {
            let dies = born + residence * random.within(1. - spread..1. + spread + f64::EPSILON);
            Block { born, dies, size, count: 1 }
        }).collect()
    };
    "leak that stops", [CacheLike], LONG, |random, end| {
        let stop = end * random.within(0.3..0.6);
        let mut blocks = leak(random, 0. ..stop, 50. ..1000.);
        blocks.extend(churn(random, 0. ..end, 0.2, 100));
        blocks
    };
    "pool of threads that grows to its size", [CacheLike], LONG, |random, end| {
        let grown = end * random.within(0.25..0.6);
        let threads = random.within(4. ..64.) as u64;
        (0..threads).map(|thread| {
            let born = grown * (thread as f64 + random.unit()) / threads as f64;
            Block { born, dies: NEVER, size: 8 << 20, count: 1 }
        }).collect()
    };
    "start-up", [StartUp], LONG, |random, end| {
        let within = end * random.within(0.001..0.05);
        leak(random, 0. ..within, 10. ..1000.)
    };
    "one-off", [StartUp], LONG, |random, end| {
        let born = end * random.within(0.1..0.7);
        let mut blocks = churn(random, 0. ..end, 0.2, 10);
        blocks.push(Block { born, dies: NEVER, size: random.size() * 1000, count: 20 });
        blocks
    };
    "churn", [SteadyChurn], LONG, |random, end| churn(random, 0. ..end, 2., 1000);
    "sessions", [SteadyChurn], LONG, |random, end| {
        let mean = end / random.within(40. ..200.);
        let count = random.scale(200. ..5000.);
        sessions(random, end, mean, count)
    };
    "sawtooth", [SteadyChurn], LONG, |random, end| sawtooth(random, end, 3.5..30.);
    "flushed periodically, with churn", [SteadyChurn], LONG, |random, end| {
        let mut blocks = sawtooth(random, end, 3.5..20.);
        blocks.extend(churn(random, 0. ..end, 0.5, 1000));
        blocks
    };
    "load of the day", [SteadyChurn], LONG, |random, end| {
        let (period, phase) = (end * random.within(0.4..3.), random.unit());
        let (mean, size) = (end / random.within(60. ..300.), random.size());
        let mut blocks = Vec::new();
        for born in random.times(0. ..end, 5000.) {
            if random.unit() * 1.9 < 1. + 0.9 * (TAU * (born / period + phase)).sin() {
                blocks.push(Block { born, dies: born + random.wait(mean), size, count: 1 });
            }
        }
        blocks
    };
    "cache, still warming", [Growing], LONG, |random, end| {
        let warming = end * random.within(0.35..1.);
        warm_up(random, end, warming)
    };
    "queue that is emptied too slowly", [Growing], LONG, |random, end| {
        let (share, size) = (random.within(0.3..0.8), random.size());
        let times = random.times(0. ..end, 3000.);
        times.into_iter().map(|born| Block { born, dies: born / share, size, count: 1 }).collect()
    };
    "sessions that last long", [Growing], LONG, |random, end| {
        let mean = end * random.within(0.6..1.2);
        sessions(random, end, mean, 3000.)
    };
    "grew, stood still, and grows again", [Growing, Leaking], 12. ..1440., |random, end| {
        let (stop, again) = (end * random.within(0.15..0.3), end * random.within(0.78..0.84));
        let (count, size) = (random.scale(50. ..1000.), random.size());
        let mut times = random.times(0. ..stop, count);
        let faster = random.within(1. ..3.);
        times.extend(random.times(again..end, count * (end - again) / stop * faster));
        times.into_iter().map(|born| Block { born, dies: NEVER, size, count: 1 }).collect()
    };
    "leak, watched too shortly", [Growing], SHORT, |random, end| leak(random, 0. ..end, 20. ..2000.);
    "cache, watched too shortly", [Growing], SHORT, |random, end| {
        let warming = end * random.within(0.35..1.);
        warm_up(random, end, warming)
    };
}

/// Blocks that are never freed, `count` in all, allocated singly or in groups.
pub(super) fn leak(random: &mut Random, span: Range<f64>, count: Range<f64>) -> Vec<Block> {
    let (count, size) = (random.scale(count), random.size());
    let regular = random.unit() < 0.3;
    let duration = span.end - span.start;
    let times = if regular {
        (0..=count as u64).map(|number| span.start + duration * number as f64 / (1. + count)).collect()
    } else {
        random.times(span, count)
    };
    let spread = random.within(0. ..0.9);
    times
        .into_iter()
        .map(|born| {
            let size = (size as f64 * random.within(1. - spread..1. + spread)) as u64 + 1;
            Block { born, dies: NEVER, size, count: 1 }
        })
        .collect()
}

/// Blocks with an exponential lifetime of `mean` seconds.
pub(super) fn churn(random: &mut Random, span: Range<f64>, mean: f64, most: u64) -> Vec<Block> {
    let (size, count) = (random.size(), random.scale(1. ..most as f64) as u64 + 1);
    let times = random.times(span, 3000.);
    times.into_iter().map(|born| Block { born, dies: born + random.wait(mean), size, count }).collect()
}

fn sessions(random: &mut Random, end: f64, mean: f64, count: f64) -> Vec<Block> {
    let size = random.size();
    let times = random.times(0. ..end, count);
    times.into_iter().map(|born| Block { born, dies: born + random.wait(mean), size, count: 1 }).collect()
}

/// Blocks that are all freed together, once per tooth.
fn sawtooth(random: &mut Random, end: f64, teeth: Range<f64>) -> Vec<Block> {
    let (period, phase, size) = (end / random.within(teeth), random.unit(), random.size());
    let times = random.times(0. ..end, 3000.);
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

/// Misses of a warming cache: their rate falls by a factor of e every `warming` seconds.
fn warm_up(random: &mut Random, end: f64, warming: f64) -> Vec<Block> {
    let size = random.size();
    let blocks = (0..random.scale(200. ..3000.) as u64).map(|_| random.wait(warming));
    blocks.filter(|born| *born < end).map(|born| Block { born, dies: NEVER, size, count: 1 }).collect()
}
