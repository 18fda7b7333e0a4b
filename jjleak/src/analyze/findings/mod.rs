//! Findings: call sites with the same cause.
//!
//! - `application`: which frames are the application's.
//! - `threads`: call sites of threads that are never ended.
//!
//! In: a profile with verdicts. Out: one finding for each function of the application that makes memory grow.

mod application;
mod threads;

use std::collections::HashMap;

use crate::profile::{Frame, Profile, Rate, Totals, Verdict, VerdictKind};

pub use application::{Rules, application_frame};

/// Growth below this share of all growth is small.
const SMALL_SHARE: f64 = 0.01;

/// Growth that needs longer than this to fill the room of the process, and to double it, is small: nobody restarts a process so rarely.
const SMALL_SECONDS: f64 = 365. * 86_400.;
/// The same for the size of the process: growth that would double it in less time than this is not small.
const DOUBLING_SECONDS: f64 = 86_400.;
/// Size of a process, at least: libraries, code and stacks are not among its blocks.
const SMALL_PROCESS: u64 = 64 << 20;

/// Call sites with the same cause.
#[derive(Debug, Clone)]
pub struct Finding<'a> {
    /// The worst verdict among those on its call sites.
    pub kind: VerdictKind,
    /// The call sites' verdicts, worst first; never empty.
    pub verdicts: Vec<&'a Verdict>,
    /// Index of the application's frame in the frames of the first verdict.
    pub frame: usize,
    /// True if threads are started and never end.
    pub is_threads: bool,
    /// Live totals.
    pub live: Totals,
    /// Growth; `None` if it is not known.
    pub rate: Option<Rate>,
    /// Confidence in the verdict on the call site that grows fastest.
    pub confidence: f64,
    /// True if it does not matter, compared with all growth, the size of the process and its room.
    pub is_small: bool,
}

impl Finding<'_> {
    /// The application's frame; `None` for a stack that was not kept.
    #[must_use]
    pub fn application(&self) -> Option<&Frame> {
        self.verdicts[0].frames.get(self.frame).map(|frame| &**frame)
    }

    /// The function that the application called.
    #[must_use]
    pub fn called(&self) -> Option<&Frame> {
        self.frame.checked_sub(1).and_then(|index| self.verdicts[0].frames.get(index)).map(|frame| &**frame)
    }

    /// Number of stacks.
    #[must_use]
    pub fn stacks(&self) -> u64 {
        self.verdicts.iter().map(|verdict| verdict.stacks.len() as u64 + verdict.hidden_stacks).sum()
    }

    /// Number of live threads and their growth per second, if it is about threads and they can be counted.
    #[must_use]
    pub fn threads(&self) -> Option<(u64, f64)> {
        self.is_threads.then(|| threads::count(&self.verdicts)).flatten()
    }

    fn per_second(&self) -> f64 {
        self.rate.map_or(0., |rate| rate.per_second)
    }
}

/// Findings on what leaks and grows, worst first.
#[must_use]
pub fn findings<'a>(profile: &'a Profile, rules: &Rules) -> Vec<Finding<'a>> {
    let growing = |verdict: &&Verdict| verdict.kind <= VerdictKind::Growing;
    let mut findings = group(profile.verdicts.iter().filter(growing), rules);
    weigh(profile, &mut findings);
    findings
}

/// Finds out which findings are small.
fn weigh(profile: &Profile, findings: &mut [Finding<'_>]) {
    let all: f64 = findings.iter().map(Finding::per_second).sum();
    let size = profile.live().bytes.max(SMALL_PROCESS);
    let room = profile.memory.map(|memory| memory.available);
    for finding in findings {
        finding.is_small = is_small(finding.per_second(), all, size, room);
    }
}

/// The call sites that grow fastest or, as long as no growth is known, hold most.
#[must_use]
pub fn fastest<'a>(profile: &'a Profile, rules: &Rules) -> Vec<Finding<'a>> {
    let mut all = group(profile.verdicts.iter().filter(|verdict| verdict.live.objects > 0), rules);
    weigh(profile, &mut all);
    all.sort_by(|a, b| {
        b.per_second().total_cmp(&a.per_second()).then_with(|| b.live.bytes.cmp(&a.live.bytes))
    });
    all
}

#[expect(clippy::cast_precision_loss, reason = "compared with orders of magnitude")]
fn is_small(rate: f64, all: f64, size: u64, room: Option<u64>) -> bool {
    let fills_room = room.is_some_and(|room| rate * SMALL_SECONDS > room as f64);
    let doubles = rate * DOUBLING_SECONDS > size as f64;
    rate < all * SMALL_SHARE || room.is_some() && !fills_room && !doubles
}

/// Identity of a cause: threads or not, and the application's function, file and line.
type Key<'a> = (bool, &'a str, &'a str, u32, u64);

/// Groups verdicts by the application's function nearest to the allocation.
fn group<'a>(verdicts: impl Iterator<Item = &'a Verdict>, rules: &Rules) -> Vec<Finding<'a>> {
    let mut groups: Vec<Finding<'a>> = Vec::new();
    let mut places: HashMap<Key<'a>, usize> = HashMap::new();
    let mut of_runtime: Vec<&Verdict> = Vec::new();
    for verdict in verdicts {
        let frames = verdict.frames.list();
        let application = application_frame(&frames, rules);
        if application.is_none() && threads::run_in_one(&frames) {
            of_runtime.push(verdict);
            continue;
        }
        let index = application.unwrap_or(verdict.caller);
        let is_threads = threads::start_one(&frames[..index.min(frames.len())]);
        let key = key(verdict, index, is_threads);
        let next = groups.len();
        match *places.entry(key).or_insert(next) {
            place if place < next => add(&mut groups[place], verdict),
            _ => groups.push(first(verdict, index, is_threads)),
        }
    }
    // What the runtime allocates in a new thread is the same cause as the thread.
    let starts = groups.iter().position(|finding| finding.is_threads);
    for verdict in of_runtime {
        match starts {
            Some(index) => add(&mut groups[index], verdict),
            None => groups.push(first(verdict, verdict.caller, false)),
        }
    }
    groups.sort_by(|a, b| {
        let order = a.kind.cmp(&b.kind).then_with(|| b.per_second().total_cmp(&a.per_second()));
        order.then_with(|| b.live.bytes.cmp(&a.live.bytes))
    });
    groups
}

fn key(verdict: &Verdict, index: usize, is_threads: bool) -> Key<'_> {
    match verdict.frames.get(index) {
        Some(frame) if frame.symbol.is_empty() => (is_threads, "", &frame.module, 0, frame.address),
        Some(frame) => (is_threads, &frame.symbol, &frame.file, frame.line, 0),
        None => (is_threads, "", "", 0, verdict.site),
    }
}

fn first(verdict: &Verdict, frame: usize, is_threads: bool) -> Finding<'_> {
    Finding {
        kind: verdict.kind,
        verdicts: vec![verdict],
        frame,
        is_threads,
        live: verdict.live,
        rate: verdict.rate,
        confidence: verdict.confidence,
        is_small: false,
    }
}

/// Adds a call site. Sites of one cause grow together, so the bounds of their rates add up.
fn add<'a>(finding: &mut Finding<'a>, verdict: &'a Verdict) {
    finding.kind = finding.kind.min(verdict.kind);
    finding.live = [finding.live, verdict.live].into_iter().sum();
    finding.rate = match (finding.rate, verdict.rate) {
        (Some(a), Some(b)) => {
            Some(Rate { per_second: a.per_second + b.per_second, low: a.low + b.low, high: a.high + b.high })
        }
        (a, b) => a.or(b),
    };
    finding.verdicts.push(verdict);
}

#[cfg(test)]
mod tests;
