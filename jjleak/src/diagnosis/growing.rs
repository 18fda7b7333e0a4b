//! Growth of a process since a first scan of its memory.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use super::{Cause, Finding, NextProfile, by_kind, diagnose};
use crate::memory::{Kind, ProcessScan};
use crate::processes::{Mapping, Pid};
use crate::render::{approximate, duration};

/// Maximum number of mappings of a process that is scanned: the kernel's description of each takes about 1 KiB while it is read.
const MAX_MAPPINGS: usize = 16 << 10;
/// Maximum number of kinds of memory in a line.
const MAX_NAMED: usize = 3;
/// Kinds that have changed by less than this part of the largest change are left out.
const SMALL: u64 = 50;
/// Share of the growth from which on allocations explain it.
const MOST_PERCENT: u64 = 50;

/// A first scan.
#[derive(Debug)]
pub struct Growing {
    pid: Pid,
    arena_time: Duration,
    first: ProcessScan,
    began: Instant,
}

/// Growth since then.
#[derive(Debug, Clone, PartialEq)]
pub struct Grown {
    /// Time since the first scan.
    pub elapsed: Duration,
    /// Change of resident memory, in bytes.
    pub resident: i64,
    /// Changes by kind, the largest first.
    pub kinds: Vec<(Kind, i64)>,
    /// Resident bytes by kind at the last scan.
    pub now: BTreeMap<Kind, u64>,
    /// Causes; at least one.
    pub findings: Vec<Finding>,
}

impl Growing {
    /// Scans a process, with a limit for reading the arenas of malloc. Blocks. `None` if it has ended, must not be read, or has too
    /// many mappings.
    #[must_use]
    pub fn begin(pid: Pid, arena_time: Duration) -> Option<Self> {
        let first = scan(pid, arena_time)?;
        Some(Self { pid, arena_time, first, began: Instant::now() })
    }

    /// Scans it again. Blocks.
    #[must_use]
    pub fn grown(&self) -> Option<Grown> {
        let last = scan(self.pid, self.arena_time)?;
        let elapsed = self.began.elapsed();
        let (now, before) = (last.scan.resident.cast_signed(), self.first.scan.resident.cast_signed());
        Some(Grown {
            elapsed,
            resident: now.wrapping_sub(before),
            kinds: by_kind(&self.first, &last),
            now: last.scan.by_kind(),
            findings: diagnose(&self.first, &last, elapsed, self.pid.number().get()),
        })
    }
}

impl Grown {
    /// `RSS +465.0 MiB in 1 min 10 s: Java heap +460.0 MiB, malloc, in use +0.6 MiB`.
    #[must_use]
    pub fn headline(&self) -> String {
        let most = self.kinds.first().map_or(0, |(_, grown)| grown.unsigned_abs());
        let matters = |(_, grown): &&(Kind, i64)| grown.unsigned_abs() >= most / SMALL;
        let named = self.kinds.iter().filter(matters).take(MAX_NAMED);
        let named: Vec<_> =
            named.map(|(kind, grown)| format!("{} {}", kind.words(), signed(*grown))).collect();
        let kinds = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        format!("RSS {} in {}{kinds}", signed(self.resident), duration(self.elapsed))
    }

    /// Lines for a report on allocations: what grows; the most that live allocations can explain of it, if their number since the
    /// first scan is known; and the cause, if that is something else. Empty if the process has hardly grown.
    #[must_use]
    pub fn beside(&self, live_bytes: Option<u64>) -> Vec<String> {
        let grown = u64::try_from(self.resident).unwrap_or_default();
        let Some(worst) = self.findings.first().filter(|worst| worst.cause != Cause::None) else {
            return Vec::new();
        };
        let mut headline = self.headline();
        let share = live_bytes.map(|live| live.min(grown) * 100 / grown.max(1));
        if let Some(share) = share {
            // Memory that was allocated and never touched is not resident.
            let _ = write!(headline, "; the stacks below explain at most {share} % of it");
        }
        let is_explained = share.is_some_and(|share| share >= MOST_PERCENT);
        // The report on allocations is already there.
        let leads_here = worst.to_do.starts_with("jjleak -p ");
        let to_do = if leads_here { String::new() } else { worst.to_do.clone() };
        let worst = Finding { to_do, ..worst.clone() };
        let cause = (!is_explained && worst.cause != Cause::NativeLeak).then(|| worst.lines());
        [headline].into_iter().chain(cause.into_iter().flatten()).collect()
    }

    /// Lines for a report of another source: what grows, and the cause. Such a report `is_next` to some causes.
    #[must_use]
    pub fn beside_source(&self, is_next: impl Fn(Cause) -> bool) -> Vec<String> {
        let lines = self.beside(None);
        let is_here = self.findings.first().is_some_and(|worst| is_next(worst.cause));
        let kept = if is_here { 2 } else { lines.len() };
        lines.into_iter().take(kept).collect()
    }

    /// The profile that shows who makes it grow; `None` if the one of allocations does.
    #[must_use]
    pub fn next_profile(&self, has_leaks: bool) -> Option<NextProfile> {
        let worst = self.findings.first()?;
        match worst.cause {
            // An allocator other than glibc's may hold it, whose leaks are found.
            Cause::Unknown if has_leaks => None,
            cause if cause.leads_to_pages() || cause == Cause::Unknown => Some(NextProfile::Pages),
            Cause::JavaHeap => Some(NextProfile::JavaHeap),
            Cause::MappedFiles => Some(NextProfile::MappedFiles),
            _ => None,
        }
    }

    /// The largest growth, with its cause and the next step, which is `next` if given; `None` if nothing has grown.
    #[must_use]
    pub fn in_words(&self, next: Option<&str>) -> Option<String> {
        let worst = self.findings.first().filter(|worst| worst.cause != Cause::None)?;
        Some(format!(
            "it grew by {} in {}, mostly by {}: {} ({})",
            signed(self.resident).trim_start_matches('+'),
            duration(self.elapsed),
            worst.cause.words(),
            worst.evidence.join(", "),
            next.map_or_else(|| format!("to do: {}", worst.to_do), str::to_owned)
        ))
    }
}

fn scan(pid: Pid, arena_time: Duration) -> Option<ProcessScan> {
    let mappings = Mapping::all(pid).ok()?.len();
    if mappings > MAX_MAPPINGS {
        tracing::debug!("pid {pid} has {mappings} mappings: what grows in it is not looked for");
        return None;
    }
    ProcessScan::of(pid, arena_time).inspect_err(|error| tracing::debug!("pid {pid}: {error}")).ok()
}

/// `+1.5 MiB`, `-300 bytes`.
#[must_use]
pub fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    format!("{sign}{}", approximate(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(cause: Cause) -> Grown {
        Grown {
            elapsed: Duration::from_secs(70),
            resident: 100 << 20,
            kinds: vec![(Kind::JavaHeap, 90 << 20), (Kind::MallocLive, 10 << 20)],
            now: BTreeMap::new(),
            findings: vec![Finding {
                cause,
                bytes: 90 << 20,
                confidence: 0.9,
                evidence: vec!["resident Java heap: +90.0 MiB".to_owned()],
                to_do: "jcmd 42 GC.heap_dump FILE".to_owned(),
            }],
        }
    }

    #[test]
    fn a_report_on_allocations_says_how_much_of_the_growth_they_are_and_what_the_rest_is() {
        let lines = grown(Cause::JavaHeap).beside(Some(10 << 20));
        let headline = "RSS +100.0 MiB in 1 min 10 s: Java heap +90.0 MiB, malloc, in use +10.0 MiB";
        let cause = [
            "cause: Java heap (90 % of the growth): resident Java heap: +90.0 MiB",
            "to do: jcmd 42 GC.heap_dump FILE",
        ];
        assert_eq!(lines[0], format!("{headline}; the stacks below explain at most 10 % of it"));
        assert_eq!(lines[1..], cause);
        assert_eq!(grown(Cause::NativeLeak).beside(Some(10 << 20)).len(), 1);
        assert_eq!(grown(Cause::JavaHeap).beside(Some(95 << 20)).len(), 1);
        assert!(grown(Cause::None).beside(Some(0)).is_empty());
        let mut pool = grown(Cause::OwnPool);
        pool.findings[0].to_do = "jjleak growth -p 42".to_owned();
        assert_eq!((pool.beside(None).len(), pool.beside_source(Cause::leads_to_pages).len()), (3, 2));
        // Unknown: nothing is said of it.
        assert_eq!(grown(Cause::JavaHeap).beside(None)[0], headline);
    }

    #[test]
    fn the_daemon_says_what_has_grown_most_and_the_next_step() {
        let words = "it grew by 100.0 MiB in 1 min 10 s, mostly by Java heap: resident Java heap: +90.0 MiB (to do: jcmd 42 \
                     GC.heap_dump FILE)";
        assert_eq!(grown(Cause::JavaHeap).in_words(None).as_deref(), Some(words));
        assert_eq!(grown(Cause::None).in_words(None), None);
        let next = grown(Cause::JavaHeap).in_words(Some("it is profiled next")).unwrap();
        assert!(next.ends_with(" (it is profiled next)"), "{next}");
    }
}
