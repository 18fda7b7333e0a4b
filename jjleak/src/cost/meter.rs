//! Running measurement of the overhead of a profiling run.

use std::time::{Duration, Instant};

use super::{Cost, Prices};
use crate::attach::{Attachment, Calibration, Measuring, RunsByPart, Traps};
use crate::processes::{Pid, cpu_time};
use crate::profile::Profile;

/// Minimum time for which the kernel's BPF statistics are enabled at a time: thousands of calls of any process that
/// matters. Meanwhile every run of any BPF program on the host takes about ten nanoseconds more.
const MEASURED_FOR: Duration = Duration::from_millis(200);
/// Minimum number of allocations in a measurement, unless there are fewer in [`PAUSE`]: the first stacks of a program take many times
/// as long to walk as later ones.
const ENOUGH: u64 = 5_000;
/// Pause between measurements: the cost of a call changes with what the process does.
const PAUSE: Duration = Duration::from_secs(60);
/// Minimum span of a cost figure; shorter ones are too noisy.
const SHORTEST_SPAN: Duration = Duration::from_millis(500);

/// Cost of breakpoints on the machine of `docs/benchmarks/cost.md`.
const ASSUMED: Traps = Traps { emulated_ns: 650., stepped_ns: 9_000., returning_ns: 550. };

/// Measures the cost of a call.
pub struct Meter {
    calibration: Option<Calibration>,
    traps: Option<Traps>,
    /// Runs in the last measurement.
    runs: RunsByPart,
    state: State,
}

enum State {
    Measuring { since: Instant, before: RunsByPart, _on: Measuring },
    Paused { until: Option<Instant> },
}

impl Meter {
    /// Starts calibrating breakpoints.
    #[must_use]
    pub fn new(attachment: &Attachment) -> Self {
        Self {
            calibration: attachment.calibrate(),
            traps: None,
            runs: RunsByPart::default(),
            state: State::Paused { until: None },
        }
    }

    /// Waits for the calibration of breakpoints; returns whether it succeeded.
    pub fn calibrate(&mut self) -> bool {
        if let Some(calibration) = self.calibration.take() {
            self.traps = calibration.outcome();
        }
        self.traps.is_some()
    }

    /// Starts or ends a measurement when due. Call about once a second.
    pub fn tick(&mut self, attachment: &Attachment) {
        let now = Instant::now();
        if self.calibration.as_ref().is_some_and(Calibration::is_over) {
            self.traps = self.calibration.take().and_then(Calibration::outcome);
        }
        match &self.state {
            State::Measuring { since, before, .. } => {
                let runs = attachment.runs().since(*before);
                // Measure an idle process until it allocates.
                let is_enough = since.elapsed() >= MEASURED_FOR && runs.allocations() >= ENOUGH;
                if is_enough || since.elapsed() >= PAUSE {
                    if runs.allocations() > 0 {
                        self.runs = runs;
                    }
                    self.state = State::Paused { until: Some(now + PAUSE) };
                }
            }
            State::Paused { until } if until.is_none_or(|until| now >= until) => {
                let before = attachment.runs();
                self.state = match Measuring::begin() {
                    Ok(on) => State::Measuring { since: now, before, _on: on },
                    Err(error) => {
                        tracing::info!(%error, "the kernel's BPF run-time statistics are unavailable");
                        State::Paused { until: Some(now + PAUSE) }
                    }
                };
            }
            State::Paused { .. } => {}
        }
    }

    /// Current prices of calls; `None` if they could not be measured, or not yet.
    #[must_use]
    pub fn prices(&self, attachment: &Attachment) -> Option<Prices> {
        let mut runs = self.runs;
        if let (State::Measuring { before, .. }, 0) = (&self.state, runs.allocations()) {
            runs = attachment.runs().since(*before);
        }
        Some(Prices::of(self.traps?, attachment.steppings(), runs))
    }

    /// Cost of a breakpoint at the entry of a function.
    #[must_use]
    pub fn entry_ns(&self, attachment: &Attachment) -> f64 {
        self.traps.unwrap_or(ASSUMED).at(attachment.steppings().entry)
    }

    /// [`Self::prices`], or prices from the reference machine's breakpoints where there are none.
    #[must_use]
    pub fn prices_or_assumed(&self, attachment: &Attachment) -> Prices {
        self.prices(attachment)
            .unwrap_or_else(|| Prices::of(ASSUMED, attachment.steppings(), attachment.runs()))
    }
}

/// CPU time and calls of a process up to its last report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spending {
    elapsed: Duration,
    allocations: u64,
    frees: u64,
    cpu: Option<Duration>,
    /// As of the last snapshot.
    cpu_now: Option<Duration>,
    last: Option<Cost>,
    /// Time that the [`super::Bound`] had spent at the last report.
    reported: Duration,
}

impl Spending {
    /// Starts accounting.
    #[must_use]
    pub fn begin(pid: Pid) -> Self {
        Self { cpu: cpu_time(pid), ..Self::default() }
    }

    /// Reads the CPU time of the process, when a snapshot is taken.
    pub fn read_cpu_time(&mut self, pid: Pid) {
        self.cpu_now = cpu_time(pid).or(self.cpu_now);
    }

    /// Cost since the previous call, for the profile of the last snapshot. For spans that are too short, repeats the previous
    /// figure.
    ///
    /// `bound` is what a [`super::Bound`] has spent, and takes precedence: calls are then estimates, and most of them cost nothing.
    pub fn measure(
        &mut self,
        profile: &Profile,
        prices: Option<Prices>,
        bound: Option<Duration>,
    ) -> Option<Cost> {
        let cpu = self.cpu_now;
        let over = profile.elapsed().saturating_sub(self.elapsed);
        if over < SHORTEST_SPAN && self.last.is_some() {
            return self.last;
        }
        let (allocations, frees) = calls(profile);
        // `execve` resets the counters.
        let since = |now: u64, before: u64| if now < before { now } else { now - before };
        let (new_allocations, new_frees) = (since(allocations, self.allocations), since(frees, self.frees));
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let spent = prices.map(|prices| prices.sum_ns(new_allocations as f64, new_frees as f64) / 1e9);
        let cost = Cost {
            over,
            calls: new_allocations + new_frees,
            spent: match bound {
                Some(spent) => Some(spent.saturating_sub(self.reported)),
                None => spent.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            },
            cpu: cpu.zip(self.cpu).map(|(now, before)| now.saturating_sub(before)),
        };
        let (elapsed, cpu) = (profile.elapsed(), cpu.or(self.cpu));
        *self = Self {
            elapsed,
            allocations,
            frees,
            cpu,
            last: Some(cost),
            reported: bound.unwrap_or_default(),
            ..*self
        };
        self.last
    }
}

/// Allocations and frees since the start, from the profile's totals and notes.
fn calls(profile: &Profile) -> (u64, u64) {
    let noted = |name| profile.notes.get(name).copied().unwrap_or_default();
    let (allocated, live) = (profile.allocated().objects, profile.live().objects);
    let filtered = noted("filtered");
    let frees = allocated.saturating_sub(live) + profile.unknown_frees + noted("inherited_free");
    (allocated + filtered, frees)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Totals;
    use crate::render::sample;

    fn after(seconds: i64, allocated: u64, live: u64) -> Profile {
        let mut profile = sample::empty_profile();
        profile.taken_at = profile.started_at + jiff::SignedDuration::from_secs(seconds);
        let totals = |objects| Totals { bytes: 8 * objects, objects };
        let stack = sample::empty_stack();
        profile.stacks =
            vec![crate::profile::StackProfile { live: totals(live), allocated: totals(allocated), ..stack }];
        profile
    }

    fn advance(
        spending: &mut Spending,
        profile: &Profile,
        cpu: Option<Duration>,
        prices: Option<Prices>,
    ) -> Option<Cost> {
        spending.cpu_now = cpu;
        spending.measure(profile, prices, None)
    }

    #[test]
    fn each_report_covers_the_time_since_the_last() {
        let prices = Some(Prices::of_calls(1_500., 500.));
        let seconds = Duration::from_secs;
        let mut spending = Spending { cpu: Some(seconds(7)), ..Spending::default() };
        let first =
            advance(&mut spending, &after(10, 1_000_000, 1_000_000), Some(seconds(17)), prices).unwrap();
        assert_eq!((first.over, first.calls, first.cpu), (seconds(10), 1_000_000, Some(seconds(10))));
        assert_eq!(first.spent, Some(Duration::from_millis(1_500)));
        assert!((first.of_cpu().unwrap() - 0.15).abs() < 1e-9);
        let second = advance(&mut spending, &after(20, 1_000_000, 0), Some(seconds(19)), prices).unwrap();
        assert_eq!(second.spent, Some(Duration::from_millis(500)));
        assert!((second.of_cpu().unwrap() - 0.25).abs() < 1e-9 && second.ns_per_call() == Some(500.));
    }

    #[test]
    fn a_span_that_is_too_short_repeats_the_last_cost() {
        let mut spending = Spending::default();
        let first = advance(&mut spending, &after(10, 10, 0), None, None).unwrap();
        assert_eq!(advance(&mut spending, &after(10, 12, 0), None, None), Some(first));
        assert_eq!((first.calls, first.spent, first.of_cpu()), (20, None, None));
    }

    #[test]
    fn execve_resets_the_counters() {
        let mut spending = Spending::default();
        advance(&mut spending, &after(10, 1_000, 0), None, None);
        assert_eq!(advance(&mut spending, &after(20, 10, 10), None, None).unwrap().calls, 10);
    }
}
