//! Keeps the overhead of profiling a process below a bound by counting in windows of time: measures what the process and
//! its probes use, and carries out the actions of the [`Schedule`].

use std::time::{Duration, Instant};

use fastrand::Rng;

use super::schedule::{Action, Measured, Schedule};
use super::{Budget, Meter, Prices, float};
use crate::attach::{Attachment, Error, Measuring, Part, RunsByPart, now_ns, thread_cpu_time};
use crate::collect::Collector;
use crate::processes::{Pid, cpu_time};
use crate::sample_windows::Pace;

/// Keeps the overhead on a process within a bound.
pub struct Bound {
    pid: Pid,
    /// Keeps the kernel's BPF run statistics enabled.
    _measuring: Measuring,
    schedule: Schedule,
    /// Counters at the last measurement.
    before: Read,
    /// Time since the end of the last window.
    since_window: Progress,
}

/// A stretch of time, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    over_s: f64,
    /// CPU time of the program's own.
    own_s: f64,
}

impl Progress {
    fn add(&mut self, measured: Measured) {
        self.over_s += measured.over_s;
        self.own_s += measured.cpu_s - measured.priced_s();
    }

    /// Ends a window that was measured last.
    fn end(&mut self, window: Measured) -> Pace {
        let around = std::mem::take(self);
        let cores = |cpu_s: f64, over_s: f64| if over_s > 0. { cpu_s / over_s } else { 0. };
        Pace {
            in_window: cores(window.cpu_s - window.priced_s(), window.over_s),
            around: cores(around.own_s, around.over_s),
            probes: cores(window.priced_s(), window.over_s),
            around_s: around.over_s,
        }
    }
}

/// Counters at an instant, for differences.
#[derive(Debug, Clone, Copy)]
struct Read {
    at: Instant,
    runs: RunsByPart,
    cpu: Option<Duration>,
}

impl Bound {
    /// Starts with everything counted. Probes may have been disabled until now.
    pub fn begin(
        budget: Budget,
        pid: Pid,
        measuring: Measuring,
        attachment: &mut Attachment,
        collector: &mut Collector,
    ) -> Result<Self, Error> {
        collector.count_in_windows();
        let runs = attachment.runs();
        // Count everything despite the cost of attaching: a process that hardly ever allocates can afford it.
        attachment.wake(Part::Frees)?;
        attachment.wake(Part::Allocations)?;
        let before = Read { at: Instant::now(), runs, cpu: cpu_time(pid) };
        let schedule = Schedule::begin(budget, before.at, Rng::new());
        Ok(Self { pid, _measuring: measuring, schedule, before, since_window: Progress::default() })
    }

    /// Time of the next call of [`Self::advance`].
    #[must_use]
    pub const fn next(&self) -> Instant {
        self.schedule.next()
    }

    /// Returns true if probes must be disabled within moments. Defer anything slow until then.
    #[must_use]
    pub fn is_time_critical(&self) -> bool {
        self.schedule.is_time_critical(Instant::now())
    }

    /// Bound at which frees could be followed, in percent; `None` if they are, or if it is no use as a bound: the process itself
    /// hardly computes.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is not negative")]
    pub fn needed_percent(&self) -> Option<u32> {
        /// Share from which on a bound is no use.
        const NO_BOUND: f64 = 10.;
        let share = self.schedule.needed_share().filter(|share| *share < NO_BOUND)?;
        Some((share * 100.).ceil() as u32)
    }

    /// CPU time that profiling has taken of the process so far.
    #[must_use]
    pub fn spent(&self, attachment: &Attachment, meter: &Meter) -> Duration {
        let since = measured(attachment.runs().since(self.before.runs), meter.prices_or_assumed(attachment));
        Duration::try_from_secs_f64(self.schedule.spent_s() + self.schedule.spent_in(since))
            .unwrap_or_default()
    }

    /// Detaches the probes because the bound cannot be kept. Later allocations are not counted.
    pub fn give_up(self, attachment: &mut Attachment, collector: &mut Collector) -> Result<(), Error> {
        if self.schedule.counts_allocations() {
            let end = now_ns();
            collector.end_window_at(end, end, Pace::default());
        }
        collector.lose_frees();
        attachment.take_out()
    }

    /// Carries out the actions that are due. Returns true if the figures start over: frees are followed again.
    pub fn advance(
        &mut self,
        attachment: &mut Attachment,
        collector: &mut Collector,
        meter: &mut Meter,
    ) -> Result<bool, Error> {
        meter.tick(attachment);
        let prices = meter.prices_or_assumed(attachment);
        let measured = self.measure(attachment, prices);
        let actions = self.schedule.advance(self.before.at, measured);
        let starts_over = actions.contains(&Action::FollowFrees);
        if actions.is_empty() {
            return Ok(false);
        }
        let mut switching_s = 0.;
        for action in actions {
            let begun = thread_cpu_time();
            match action {
                Action::Enable(part) => attachment.wake(part)?,
                Action::Disable(part) => attachment.rest(part),
                Action::BeginWindow => collector.begin_window(),
                Action::FollowFrees => collector.start_over(now_ns()),
                Action::LoseFrees => collector.lose_frees(),
                Action::EndWindow { stratum } => {
                    // Allocations may or may not be seen while probes are being disabled: end the window before.
                    let end = now_ns();
                    collector.end_window_at(end, end + ns_until(stratum), self.since_window.end(measured));
                }
            }
            if matches!(action, Action::Enable(_) | Action::Disable(_)) {
                switching_s += thread_cpu_time().saturating_sub(begun).as_secs_f64();
            }
        }
        let measured = self.measure(attachment, prices);
        self.schedule.carried_out(self.before.at, measured, switching_s);
        Ok(starts_over)
    }

    /// Measures the time since the previous call.
    fn measure(&mut self, attachment: &Attachment, prices: Prices) -> Measured {
        let now = Read { at: Instant::now(), runs: attachment.runs(), cpu: cpu_time(self.pid) };
        let used = now.cpu.zip(self.before.cpu).map(|(now, before)| now.saturating_sub(before));
        let measured = Measured {
            over_s: (now.at - self.before.at).as_secs_f64(),
            cpu_s: used.map_or(0., |used| used.as_secs_f64()),
            ..measured(now.runs.since(self.before.runs), prices)
        };
        self.before = now;
        self.since_window.add(measured);
        measured
    }
}

/// Cost of these runs at these prices.
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
