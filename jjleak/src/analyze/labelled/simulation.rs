//! Plays blocks with known lifetimes to a [`History`] as periodic profiles.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::time::{Duration, Instant};

use fastrand::Rng;
use jiff::{SignedDuration, Timestamp};

use crate::analyze::{History, Pace};
use crate::profile::{BlockDetails, Cohort, Coverage, InWindows, Profile, StackProfile, Totals, Verdict};
use crate::render::sample;
use crate::snapshot::Timeline;

/// Blocks allocated together and freed together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Before 0: only the free is seen.
    pub(super) born: f64,
    /// Infinity for blocks that are never freed.
    pub(super) dies: f64,
    pub(super) size: u64,
    pub(super) count: u64,
}

/// Random numbers, the same for the same seed.
pub(super) struct Random(Rng);

impl Random {
    pub(super) fn new(seed: u64, name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        (seed, name).hash(&mut hasher);
        Self(Rng::with_seed(hasher.finish()))
    }

    /// Uniform in 0..1.
    pub(super) fn unit(&mut self) -> f64 {
        self.0.f64()
    }

    pub(super) fn within(&mut self, range: Range<f64>) -> f64 {
        range.start + self.unit() * (range.end - range.start)
    }

    /// Log-uniform.
    pub(super) fn scale(&mut self, range: Range<f64>) -> f64 {
        self.within(range.start.ln()..range.end.ln()).exp()
    }

    pub(super) fn size(&mut self) -> u64 {
        self.scale(16. ..65_536.) as u64
    }

    /// Exponentially distributed.
    pub(super) fn wait(&mut self, mean: f64) -> f64 {
        -mean * (1. - self.unit()).ln()
    }

    /// Random times in `span`, `count` on average.
    pub(super) fn times(&mut self, span: Range<f64>, count: f64) -> Vec<f64> {
        let mean = (span.end - span.start) / count;
        let mut times = Vec::new();
        let mut time = span.start + self.wait(mean);
        while time < span.end {
            times.push(time);
            time += self.wait(mean);
        }
        times
    }
}

/// Duration and interval of a simulated run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) duration: f64,
    pub(super) interval: f64,
    pub(super) settle: f64,
    /// Ages are unknown.
    pub(super) combined: bool,
    /// Allocations are counted in windows: one in so many strata's time.
    pub(super) weight: Option<u32>,
    /// Number of threads that end, evenly spread; for each, the C library frees its cached blocks.
    pub(super) threads: f64,
}

/// Blocks that the C library keeps for a thread: glibc seven at most of each of 64 sizes.
const KEPT_FOR_A_THREAD: f64 = 40.;
/// Blocks that a thread of before leaves behind, and frees itself.
const OF_A_THREAD: f64 = 2.;
/// Threads that there are from before.
const THREADS_FROM_BEFORE: f64 = 8.;

impl Run {
    /// A random run, of `span` times the age at which allocations are judged, with a random report interval.
    pub(super) fn random(span: Range<f64>, random: &mut Random) -> Self {
        let settle = 15.;
        let duration = settle * random.scale(span);
        Self {
            duration,
            interval: (duration / random.within(20. ..200.)).max(1.),
            settle,
            combined: false,
            weight: None,
            threads: 0.,
        }
    }

    /// Verdict on a call site with these blocks; `None` if it holds nothing.
    pub(super) fn verdict(&self, blocks: Vec<Block>) -> Option<Verdict> {
        self.verdicts(vec![blocks]).pop()
    }

    /// Verdict on a call site beside another one.
    pub(super) fn verdict_beside(&self, blocks: Vec<Block>, other: Vec<Block>) -> Option<Verdict> {
        self.verdicts(vec![blocks, other]).into_iter().find(|verdict| verdict.stacks[..] == [1])
    }

    /// Verdicts on several call sites at the end of the run.
    pub(super) fn verdicts(&self, sites: Vec<Vec<Block>>) -> Vec<Verdict> {
        self.timed(sites).0
    }

    /// Verdicts, with the total time spent on judging.
    pub(super) fn timed(&self, mut sites: Vec<Vec<Block>>) -> (Vec<Verdict>, Duration) {
        let mut spent = Duration::ZERO;
        let mut history = History::default();
        let mut timeline = Timeline::default();
        let mut verdicts = Vec::new();
        for blocks in &mut sites {
            blocks.sort_by(|a, b| a.born.total_cmp(&b.born));
        }
        let mut before: Vec<_> = sites
            .iter()
            .flatten()
            .filter(|block| block.born < 0.)
            .map(|block| (block.dies, block.count))
            .collect();
        before.sort_by(|a, b| a.0.total_cmp(&b.0));
        let all: Vec<_> = sites.iter().flatten().copied().collect();
        for blocks in &mut sites {
            blocks.retain(|block| block.born >= 0.);
        }
        if let Some(weight) = self.weight {
            for blocks in &mut sites {
                count_in_windows(blocks, weight);
            }
        }
        let mut stacks: Vec<_> = (1..).zip(&sites).map(|(id, blocks)| Stack::new(id, blocks)).collect();
        let mut resident = 0;
        let mut time = self.interval;
        while time <= self.duration + self.interval / 2. {
            timeline.cut(nanoseconds(time));
            let stacks = stacks.iter_mut().map(|stack| stack.at(time, timeline.instants_ns())).collect();
            let mut profile = self.profile(time, timeline.instants_ns(), stacks);
            resident = resident.max(living_bytes(&all, time));
            profile.resident = Some(resident);
            let freed = before.iter().take_while(|(dies, _)| (0. ..=time).contains(&dies.max(0.)));
            profile.unknown_frees = freed.filter(|(dies, _)| *dies >= 0.).map(|(_, count)| count).sum();
            let ended = (self.threads * time / self.duration).floor();
            let by_library = (ended * KEPT_FOR_A_THREAD) as u64;
            profile.notes.insert("freed_by_c_library".to_owned(), by_library);
            profile.unknown_frees += by_library + (ended.min(THREADS_FROM_BEFORE) * OF_A_THREAD) as u64;
            if self.weight.is_some() {
                // They cannot be told from those of blocks that were not counted.
                profile.unknown_frees = 0;
            }
            let begin = Instant::now();
            verdicts = history.observe(&profile, Pace::Thorough);
            spent += begin.elapsed();
            time += self.interval;
        }
        (verdicts, spent)
    }

    fn profile(&self, time: f64, instants_ns: &[u64], stacks: Vec<StackProfile>) -> Profile {
        let started_at: Timestamp = "2026-01-15T09:00:00Z".parse().unwrap();
        let elapsed = SignedDuration::from_nanos(nanoseconds(time).cast_signed());
        let settle = Duration::from_secs_f64(self.settle);
        let windows = self.weight.map(|weight| InWindows {
            windows: 100,
            weight,
            follows_frees: true,
            ..InWindows::default()
        });
        let coverage = Coverage { settle, combined: self.combined, windows, ..Coverage::default() };
        Profile {
            started_at,
            taken_at: started_at + elapsed,
            instants_ns: if self.combined { [].into() } else { instants_ns.into() },
            coverage,
            stacks,
            ..sample::empty_profile()
        }
    }
}

/// Length of a window, in seconds.
const WINDOW: f64 = 0.05;

/// Keeps the blocks that were allocated in a window, each for `weight` blocks.
fn count_in_windows(blocks: &mut Vec<Block>, weight: u32) {
    let stratum = WINDOW * f64::from(weight);
    blocks.retain_mut(|block| {
        let number = (block.born / stratum).floor();
        let mut random = Random::new(number as u64, "window");
        let begin = number * stratum + random.within(0. ..stratum - WINDOW);
        block.count *= u64::from(weight);
        (begin..begin + WINDOW).contains(&block.born)
    });
}

/// Bytes that live at a time, also of blocks that are not counted.
fn living_bytes(blocks: &[Block], time: f64) -> u64 {
    let lives = |block: &&Block| (block.born..block.dies).contains(&time);
    blocks.iter().filter(lives).map(|block| block.size * block.count).sum()
}

/// A stack and its blocks.
struct Stack<'a> {
    id: u64,
    to_come: &'a [Block],
    living: Vec<Block>,
    allocated: Totals,
}

impl<'a> Stack<'a> {
    fn new(id: u64, blocks: &'a [Block]) -> Self {
        Self { id, to_come: blocks, living: Vec::new(), allocated: Totals::default() }
    }

    fn at(&mut self, time: f64, instants_ns: &[u64]) -> StackProfile {
        let born = self.to_come.partition_point(|block| block.born <= time);
        let (born, to_come) = self.to_come.split_at(born);
        self.to_come = to_come;
        self.allocated = [self.allocated, born.iter().map(totals).sum()].into_iter().sum();
        self.living.extend(born);
        self.living.retain(|block| block.dies > time);
        let mut cohorts = vec![Totals::default(); instants_ns.len()];
        for block in &self.living {
            let interval = instants_ns.partition_point(|instant| *instant < nanoseconds(block.born));
            let interval = interval.min(instants_ns.len() - 1);
            cohorts[interval] = [cohorts[interval], totals(block)].into_iter().sum();
        }
        let cohorts = (0..).zip(cohorts).filter(|(_, live)| live.objects > 0);
        let cohorts = cohorts.map(|(interval, live)| Cohort { interval, live });
        // Stacks without frames would all be one site.
        let frame = crate::profile::Frame { symbol: format!("site {}", self.id), ..Default::default() };
        StackProfile {
            id: self.id,
            live: self.living.iter().map(totals).sum(),
            allocated: self.allocated,
            details: BlockDetails { cohorts: cohorts.collect(), ..BlockDetails::default() }.into(),
            frames: sample::shared([frame]),
            ..sample::empty_stack()
        }
    }
}

fn totals(block: &Block) -> Totals {
    Totals { bytes: block.size * block.count, objects: block.count }
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
