//! Growth of a process since a first scan of its memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Cause, Finding, diagnose};
use crate::memory::{Kind, ProcessScan};
use crate::processes::{Mapping, Pid};
use crate::render::{duration, humane_bytes};

/// Maximum number of mappings of a process that is scanned: the kernel's description of each takes about 1 KiB while it is read.
const MAX_MAPPINGS: usize = 16 << 10;
/// Maximum number of kinds of memory in a line.
const MAX_NAMED: usize = 3;
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
            findings: diagnose(&self.first, &last, elapsed, self.pid.number().get()),
        })
    }
}

impl Grown {
    /// `RSS +465.0 MiB in 1 min 10 s: Java heap +460.0 MiB, malloc, in use +0.6 MiB`.
    #[must_use]
    pub fn headline(&self) -> String {
        let named = self.kinds.iter().take(MAX_NAMED);
        let named: Vec<_> =
            named.map(|(kind, grown)| format!("{} {}", kind.words(), signed(*grown))).collect();
        let kinds = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        format!("RSS {} in {}{kinds}", signed(self.resident), duration(self.elapsed))
    }

    /// Lines about a process of which this many bytes were allocated meanwhile and live: how much of the growth that is, and what
    /// the rest is if it is most. Empty if it has hardly grown.
    #[must_use]
    pub fn beside(&self, live_bytes: u64) -> Vec<String> {
        let grown = u64::try_from(self.resident).unwrap_or_default();
        let Some(worst) = self.findings.first().filter(|worst| worst.cause != Cause::None) else {
            return Vec::new();
        };
        let share = live_bytes.min(grown) * 100 / grown.max(1);
        let mut lines = vec![format!("{}; what was allocated and lives is {share} % of it", self.headline())];
        if share < MOST_PERCENT && worst.cause != Cause::NativeLeak {
            let evidence = worst.evidence.join("; ");
            lines.push(format!("cause: {}: {evidence}; to do: {}", worst.cause.words(), worst.to_do));
        }
        lines
    }

    /// What has grown most, and the next step; `None` if nothing has grown.
    #[must_use]
    pub fn in_words(&self) -> Option<String> {
        let worst = self.findings.first().filter(|worst| worst.cause != Cause::None)?;
        Some(format!(
            "it grew by {} in {}, mostly by {}: {} (to do: {})",
            signed(self.resident).trim_start_matches('+'),
            duration(self.elapsed),
            worst.cause.words(),
            worst.evidence.join(", "),
            worst.to_do
        ))
    }
}

/// Changes by kind, those that have changed most first.
#[must_use]
fn by_kind(first: &ProcessScan, last: &ProcessScan) -> Vec<(Kind, i64)> {
    // Where malloc could be read only once, the other scan counts its memory as anonymous.
    let knows_malloc = first.malloc.is_some() == last.malloc.is_some();
    let comparable = |kind: Kind| match kind {
        Kind::MallocLive | Kind::MallocFree | Kind::MallocCache | Kind::Brk if !knows_malloc => {
            Kind::Anonymous
        }
        kind => kind,
    };
    let mut sums = BTreeMap::<Kind, i64>::new();
    for row in &last.scan.rows {
        *sums.entry(comparable(row.kind)).or_default() += row.resident.cast_signed();
    }
    for row in &first.scan.rows {
        *sums.entry(comparable(row.kind)).or_default() -= row.resident.cast_signed();
    }
    let mut sums: Vec<_> = sums.into_iter().filter(|(_, grown)| *grown != 0).collect();
    sums.sort_by_key(|(_, grown)| Reverse(grown.unsigned_abs()));
    sums
}

fn scan(pid: Pid, arena_time: Duration) -> Option<ProcessScan> {
    let mappings = Mapping::all(pid).ok()?.len();
    if mappings > MAX_MAPPINGS {
        tracing::debug!("pid {pid} has {mappings} mappings: what grows in it is not looked for");
        return None;
    }
    ProcessScan::of(pid, arena_time).inspect_err(|error| tracing::debug!("pid {pid}: {error}")).ok()
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { '-' } else { '+' };
    let bytes = bytes.unsigned_abs();
    let humane = humane_bytes(bytes).unwrap_or_else(|| format!("{bytes} bytes"));
    format!("{sign}{humane}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(cause: Cause) -> Grown {
        Grown {
            elapsed: Duration::from_secs(70),
            resident: 100 << 20,
            kinds: vec![(Kind::JavaHeap, 90 << 20), (Kind::MallocLive, 10 << 20)],
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
        let lines = grown(Cause::JavaHeap).beside(10 << 20);
        let headline = "RSS +100.0 MiB in 1 min 10 s: Java heap +90.0 MiB, malloc, in use +10.0 MiB";
        assert_eq!(lines[0], format!("{headline}; what was allocated and lives is 10 % of it"));
        assert_eq!(
            lines[1],
            "cause: Java heap: resident Java heap: +90.0 MiB; to do: jcmd 42 GC.heap_dump FILE"
        );
        assert_eq!(grown(Cause::NativeLeak).beside(10 << 20).len(), 1);
        assert_eq!(grown(Cause::JavaHeap).beside(95 << 20).len(), 1);
        assert!(grown(Cause::None).beside(0).is_empty());
    }

    #[test]
    fn the_daemon_says_what_has_grown_most_and_the_next_step() {
        let words = "it grew by 100.0 MiB in 1 min 10 s, mostly by Java heap: resident Java heap: +90.0 MiB (to do: jcmd 42 \
                     GC.heap_dump FILE)";
        assert_eq!(grown(Cause::JavaHeap).in_words().as_deref(), Some(words));
        assert_eq!(grown(Cause::None).in_words(), None);
    }
}
