//! Keeps the cost of following objects of a Java heap within a bound: the more it costs, the fewer of the announced objects are recorded.

use std::time::{Duration, Instant};

use super::{Meter, float};
use crate::attach::{Attachment, Measuring, RunsByPart};
use crate::processes::{Pid, cpu_time};

/// Distance between recorded objects, in bytes, when the first are left out: several buffers of a program whose buffers are small.
const FIRST: u64 = 64 << 10;
/// Maximum distance.
const LONGEST: u64 = jjleak_common::sampling::MAX_BYTES;
/// Minimum time and CPU time of the process that a measurement takes: shorter ones vary too much.
const SHORTEST: Duration = Duration::from_millis(500);
const LEAST_OWN_S: f64 = 0.01;
/// Share of what recording may cost below which more is recorded.
const LITTLE: f64 = 0.4;
/// Part of the bound that recording gets at least. Where breakpoints alone take the rest, the bound cannot be kept.
const FOR_RECORDING: f64 = 0.1;
/// Number of such measurements after which that is certain.
const HOPELESS: u32 = 3;

/// Cost of a stretch of time, in CPU seconds.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "the unit")]
struct Spent {
    /// CPU time of breakpoints, at which objects are announced.
    breakpoints_s: f64,
    /// CPU time of the BPF programs there, which record them.
    recording_s: f64,
    /// CPU time of the process itself.
    own_s: f64,
}

/// A change in how many objects are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// From now on, one object in so many bytes is recorded; 0 for all.
    Distance(u64),
    /// Breakpoints alone take this share of the process's CPU time: nothing can be recorded within the bound.
    Hopeless(f64),
}

/// The distance between recorded objects.
#[derive(Debug)]
struct Distance {
    share: f64,
    bytes: u64,
    hopeless: u32,
}

impl Distance {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number, which is limited"
    )]
    fn adjust(&mut self, spent: Spent) -> Option<Change> {
        if spent.own_s < LEAST_OWN_S {
            return None;
        }
        let bound_s = self.share * spent.own_s;
        let left_s = bound_s - spent.breakpoints_s;
        if left_s < FOR_RECORDING * bound_s {
            self.hopeless += 1;
            if self.hopeless >= HOPELESS {
                return Some(Change::Hopeless(spent.breakpoints_s / spent.own_s));
            }
        } else {
            self.hopeless = 0;
        }
        let may_s = left_s.max(FOR_RECORDING * bound_s);
        let before = self.bytes;
        if spent.recording_s > may_s {
            let factor = (spent.recording_s / may_s).max(1.5);
            self.bytes = ((float(before.max(FIRST)) * factor) as u64).min(LONGEST);
        } else if spent.recording_s < LITTLE * may_s {
            self.bytes = if before / 2 < FIRST { 0 } else { before / 2 };
        }
        (self.bytes != before).then_some(Change::Distance(self.bytes))
    }
}

/// Keeps the cost on a process within a bound.
pub struct ObjectBound {
    pid: Pid,
    /// Keeps the kernel's BPF run statistics enabled.
    _measuring: Measuring,
    distance: Distance,
    at: Instant,
    runs: RunsByPart,
    cpu: Option<Duration>,
}

impl ObjectBound {
    /// Begins with all objects recorded.
    #[must_use]
    pub fn begin(share: f64, pid: Pid, measuring: Measuring, attachment: &Attachment) -> Self {
        Self {
            pid,
            _measuring: measuring,
            distance: Distance { share, bytes: 0, hopeless: 0 },
            at: Instant::now(),
            runs: attachment.runs(),
            cpu: cpu_time(pid),
        }
    }

    /// Measures the cost since the previous call. To be called about once a second.
    pub fn adjust(&mut self, attachment: &Attachment, meter: &Meter) -> Option<Change> {
        if self.at.elapsed() < SHORTEST {
            return None;
        }
        let (runs, cpu) = (attachment.runs(), cpu_time(self.pid));
        let since = runs.since(self.runs);
        let used_s = cpu?.saturating_sub(self.cpu?).as_secs_f64();
        (self.at, self.runs, self.cpu) = (Instant::now(), runs, cpu);
        let recording_s = float(since.entries.time_ns) / 1e9;
        let breakpoints_s = meter.entry_ns(attachment) * float(since.entries.count) / 1e9;
        let own_s = used_s - recording_s - breakpoints_s;
        self.distance.adjust(Spent { breakpoints_s, recording_s, own_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distances over a number of seconds in which a process computes on one core, and allocates at this rate, in buffers of this size.
    fn distances(share: f64, bytes_per_s: f64, buffer: f64, seconds: usize) -> Vec<(u64, f64)> {
        let mut distance = Distance { share, bytes: 0, hopeless: 0 };
        let mut seen = Vec::new();
        for _ in 0..seconds {
            let announced = bytes_per_s / buffer;
            let recorded = match distance.bytes {
                0 => announced,
                bytes => announced * (1. - (-buffer / float(bytes)).exp()),
            };
            let breakpoints_s = announced * 650e-9;
            let recording_s = announced * 60e-9 + recorded * 3e-6;
            seen.push((distance.bytes, breakpoints_s + recording_s));
            let change = distance.adjust(Spent { breakpoints_s, recording_s, own_s: 1. });
            if matches!(change, Some(Change::Hopeless(_))) {
                break;
            }
        }
        seen
    }

    #[test]
    fn all_is_recorded_where_that_fits_the_bound() {
        assert!(distances(0.02, 1e9, 500e3, 20).iter().all(|(bytes, _)| *bytes == 0));
    }

    #[test]
    fn the_bound_is_kept_within_seconds() {
        for (share, bytes_per_s, buffer) in [(0.02, 1e9, 64e3), (0.05, 1e9, 16e3), (0.01, 1e8, 16e3)] {
            let seen = distances(share, bytes_per_s, buffer, 60);
            assert_eq!(seen.len(), 60);
            let late = &seen[5..];
            assert!(late.iter().all(|(bytes, _)| *bytes > 0), "{seen:?}");
            assert!(late.iter().all(|(_, spent)| *spent <= share * 1.3), "{share}: {seen:?}");
            // It makes use of it, too.
            let all: f64 = late.iter().map(|(_, spent)| spent).sum();
            assert!(all / float(late.len() as u64) > share * 0.4, "{share}: {seen:?}");
        }
    }

    #[test]
    fn a_bound_below_the_cost_of_breakpoints_cannot_be_kept() {
        assert_eq!(distances(0.01, 1e9, 2e3, 60).len(), HOPELESS as usize);
    }
}
