//! Keeps what profiling costs a process below a bound, by counting in windows of time: measures what the process and its probes
//! take, and does what [`Course`] decides.

use std::time::{Duration, Instant};

use super::course::{Course, Deed, Measured};
use super::{Budget, Meter, Prices, float};
use crate::attach::{Attachment, Error, Measuring, Part, RunsByPart, now_ns, thread_cpu_time};
use crate::collect::Collector;
use crate::draws::Draws;
use crate::processes::{Pid, cpu_time};

/// Keeps a process within a bound.
pub struct Bound {
    pid: Pid,
    /// So that the kernel counts runs.
    _measuring: Measuring,
    course: Course,
    /// What was read at the last look.
    before: Read,
}

/// What is measured from, at an instant.
#[derive(Debug, Clone, Copy)]
struct Read {
    at: Instant,
    runs: RunsByPart,
    cpu: Option<Duration>,
}

impl Bound {
    /// Begins, with everything counted. Probes may have rested until now.
    pub fn begin(
        budget: Budget,
        pid: Pid,
        measuring: Measuring,
        attachment: &mut Attachment,
        collector: &mut Collector,
    ) -> Result<Self, Error> {
        collector.count_in_windows();
        let runs = attachment.runs();
        // What it takes to attach is no reason not to count everything of a process that hardly ever allocates.
        attachment.wake(Part::Frees)?;
        attachment.wake(Part::Allocations)?;
        let before = Read { at: Instant::now(), runs, cpu: cpu_time(pid) };
        let course = Course::begin(budget, before.at, Draws(now_ns()));
        Ok(Self { pid, _measuring: measuring, course, before })
    }

    /// When [`Self::turn`] is to be called.
    #[must_use]
    pub const fn next(&self) -> Instant {
        self.course.next()
    }

    /// Whether probes are to be taken out in a moment: what takes time had better wait until then.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        self.course.is_pressed(Instant::now())
    }

    /// CPU time that it has taken of the process so far.
    #[must_use]
    pub fn spent(&self, attachment: &Attachment, meter: &Meter) -> Duration {
        let since = measured(attachment.runs().since(self.before.runs), meter.prices_or_assumed(attachment));
        Duration::try_from_secs_f64(self.course.spent_s() + self.course.of(since)).unwrap_or_default()
    }

    /// Takes the probes out, since the bound cannot be kept any more: what is allocated from now on is not counted.
    pub fn give_up(self, attachment: &mut Attachment, collector: &mut Collector) -> Result<(), Error> {
        if self.course.counts() {
            let end = now_ns();
            collector.end_window_at(end, end);
        }
        attachment.take_out()
    }

    /// Does what is to be done now.
    pub fn turn(
        &mut self,
        attachment: &mut Attachment,
        collector: &mut Collector,
        meter: &mut Meter,
    ) -> Result<(), Error> {
        meter.tick(attachment);
        let prices = meter.prices_or_assumed(attachment);
        let measured = self.measure(attachment, prices);
        let deeds = self.course.turn(self.before.at, measured);
        if deeds.is_empty() {
            return Ok(());
        }
        let mut turning_s = 0.;
        for deed in deeds {
            let begun = thread_cpu_time();
            match deed {
                Deed::Wake(part) => attachment.wake(part)?,
                Deed::Rest(part) => attachment.rest(part),
                Deed::Begin => collector.begin_window(),
                Deed::End { stratum } => {
                    // What is allocated while probes go is seen or not: the window ends before.
                    let end = now_ns();
                    collector.end_window_at(end, end + ns_until(stratum));
                }
            }
            if matches!(deed, Deed::Wake(_) | Deed::Rest(_)) {
                turning_s += thread_cpu_time().saturating_sub(begun).as_secs_f64();
            }
        }
        let measured = self.measure(attachment, prices);
        self.course.done(self.before.at, measured, turning_s);
        Ok(())
    }

    /// What was since the last time.
    fn measure(&mut self, attachment: &Attachment, prices: Prices) -> Measured {
        let now = Read { at: Instant::now(), runs: attachment.runs(), cpu: cpu_time(self.pid) };
        let used = now.cpu.zip(self.before.cpu).map(|(now, before)| now.saturating_sub(before));
        let measured = Measured {
            over_s: (now.at - self.before.at).as_secs_f64(),
            cpu_s: used.map_or(0., |used| used.as_secs_f64()),
            ..measured(now.runs.since(self.before.runs), prices)
        };
        self.before = now;
        measured
    }
}

/// What so many runs have taken, by their prices.
fn measured(runs: RunsByPart, prices: Prices) -> Measured {
    let [allocations_s, frees_s, all_s] =
        [prices.of_allocations(runs), prices.sum_ns(0., float(runs.frees.count)), prices.sum_of(runs)]
            .map(|ns| ns / 1e9);
    Measured { allocations_s, frees_s, others_s: all_s - allocations_s - frees_s, ..Measured::default() }
}

fn ns_until(instant: Instant) -> u64 {
    let left = instant.saturating_duration_since(Instant::now());
    u64::try_from(left.as_nanos()).unwrap_or(u64::MAX / 2)
}
