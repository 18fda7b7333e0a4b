//! Decides which processes to profile, and when. Pure: no clocks, no processes.
//!
//! In: memory samples of a process, the configuration, and how profiling ended. Out: the state of its [`Case`]. A process is
//! watched, becomes a suspect, is profiled when it is next, and then backs off for a while:
//!
//! ```text
//! watching -> suspected -> profiling -> back-off -> watching
//!                              |            ^
//!                              +-> stuck ---+
//! ```

mod saved;
mod trend;

use std::fmt;
use std::time::Duration;

pub use saved::SavedCase;
pub use trend::MemoryTrend;

use super::config::{Config, Suspicion};
use crate::analyze::Rise;
use crate::processes::MemoryLimit;

/// Minimum growth that counts: the kernel's own accounting of a process is off by this much.
const LEAST_RISE: f64 = 1_048_576.;

/// Memory of a process at an instant.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Resident bytes.
    pub resident: u64,
    /// Memory of its control group, if known.
    pub group: Option<u64>,
    /// The limit that leaves the least memory.
    pub limit: Option<MemoryLimit>,
    /// Share of time for which tasks wait for memory, in per cent.
    pub pressure: Option<f64>,
}

/// Reason to suspect a process, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// A profile was requested.
    Request,
    /// It grows and is close to a limit.
    Limit {
        /// True if the limit is a control group's, false if it is the machine's.
        is_cgroup: bool,
        /// Used share of the limit, in per cent.
        taken: f64,
        /// Time until the limit is reached; `None` if very long.
        left: Option<Duration>,
    },
    /// It grows, and its control group waits for memory (per cent of the time).
    Pressure(f64),
    /// It keeps growing.
    Growth(Rise),
    /// A scheduled profile is due.
    Schedule,
}

/// State of a process. Durations are times since boot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum State {
    /// Scanned regularly.
    Watching,
    /// Waiting to be profiled, since then.
    Suspected(Reason, Duration),
    /// Being profiled, since then.
    Profiling(Reason, Duration),
    /// Its profiling thread hangs, since then; not profiled again until it ends.
    Stuck(Duration),
    /// Not profiled before then.
    BackOff(Duration),
}

/// State of a process and what decides it. All times are since boot, so that they are meaningful to the next daemon.
#[derive(Debug, Clone)]
pub struct Case {
    trend: MemoryTrend,
    state: State,
    /// Time of a request to an earlier daemon, to be served after the back-off.
    requested: Option<Duration>,
    /// Start of the process.
    started: Duration,
    last: Sample,
    /// Time of the last profile, or of discovery.
    profiled: Duration,
    /// Number of profiles taken because of samples.
    rounds: u32,
    /// Last time at which there was a reason for suspicion.
    last_suspicious: Duration,
}

impl Case {
    /// A process discovered at `now` that was started at `started`.
    #[must_use]
    pub fn new(now: Duration, started: Duration) -> Self {
        Self {
            trend: MemoryTrend::default(),
            state: State::Watching,
            requested: None,
            started,
            last: Sample::default(),
            profiled: now,
            rounds: 0,
            last_suspicious: now,
        }
    }

    /// Current state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Latest sample.
    #[must_use]
    pub const fn last(&self) -> Sample {
        self.last
    }

    /// History of its resident memory.
    #[must_use]
    pub const fn trend(&self) -> &MemoryTrend {
        &self.trend
    }

    /// Updates the state with a new sample.
    pub fn observe(&mut self, now: Duration, sample: Sample, config: &Config) {
        self.last = sample;
        if matches!(self.state, State::BackOff(until) if now >= until) {
            let again = |since| State::Suspected(Reason::Request, since);
            self.state = self.requested.take().map_or(State::Watching, again);
        }
        // Until the end of the warm-up, growth is normal.
        if now.saturating_sub(self.started) < config.watch.warm_up.0 {
            return;
        }
        self.trend.record(now, sample.resident);
        let reason = self.suspicion(now, &config.suspect);
        if reason.is_some_and(Reason::is_seen) || self.state != State::Watching {
            self.last_suspicious = now;
        } else if now.saturating_sub(self.last_suspicious) >= config.profile.back_off_max.0 {
            self.rounds = 0;
        }
        let Some(reason) = reason else { return };
        let is_due = match self.state {
            State::Watching => true,
            State::BackOff(until) => self.ends_back_off(now, until, reason, config),
            State::Suspected(..) | State::Profiling(..) | State::Stuck(_) => false,
        };
        if is_due {
            self.state = State::Suspected(reason, now);
        }
    }

    /// Returns true if a reason is urgent enough to end a back-off early, but never before the configured minimum.
    fn ends_back_off(&self, now: Duration, until: Duration, reason: Reason, config: &Config) -> bool {
        let is_urgent = match reason {
            Reason::Limit { left, .. } => left.is_some_and(|left| now.saturating_add(left) < until),
            Reason::Pressure(_) => true,
            Reason::Request | Reason::Growth(_) | Reason::Schedule => false,
        };
        is_urgent && now.saturating_sub(self.profiled) >= config.profile.back_off.0
    }

    /// Requests a profile regardless of samples; false if it is being profiled.
    pub fn request(&mut self, now: Duration) -> bool {
        self.requested = None;
        match self.state {
            State::Profiling(..) | State::Stuck(_) => false,
            State::Suspected(_, since) => {
                self.state = State::Suspected(Reason::Request, since);
                true
            }
            State::Watching | State::BackOff(_) => {
                self.state = State::Suspected(Reason::Request, now);
                true
            }
        }
    }

    /// Suspects it for memory pressure.
    #[cfg(test)]
    pub(in crate::daemon) const fn suspect_for_a_test(&mut self) {
        self.state = State::Suspected(Reason::Pressure(50.), Duration::ZERO);
    }

    /// Number of profiles taken because of samples.
    #[cfg(test)]
    pub(in crate::daemon) const fn rounds_for_a_test(&self) -> u32 {
        self.rounds
    }

    /// Starts profiling; returns the reason, or `None` if it is no suspect.
    pub fn begin(&mut self, now: Duration) -> Option<Reason> {
        let State::Suspected(reason, _) = self.state else { return None };
        (self.state, self.requested) = (State::Profiling(reason, now), None);
        Some(reason)
    }

    /// Ends profiling and starts a back-off, because another profile soon after would hardly find more. The back-off doubles if
    /// there was a verdict on a process that was suspected for its samples; it stays the same if there was none, or if the profile
    /// was requested or scheduled.
    pub fn end(&mut self, now: Duration, is_profiled: bool, config: &Config) {
        let is_seen = match self.state {
            State::Profiling(reason, _) => reason.is_seen(),
            State::Stuck(_) => false,
            State::Watching | State::Suspected(..) | State::BackOff(_) => return,
        };
        self.profiled = now;
        let profile = &config.profile;
        self.rounds = self.rounds.saturating_add(u32::from(is_profiled && is_seen));
        // Beyond this the maximum is reached in any case.
        let times = 1u32 << self.rounds.saturating_sub(1).min(30);
        let back_off = profile.back_off.0.saturating_mul(times).min(profile.back_off_max.0);
        self.state = State::BackOff(now.saturating_add(back_off));
    }

    /// Records that the daemon ended before there was a verdict. Suspicions arise again from new samples; requests have to be
    /// saved.
    pub const fn interrupt(&mut self) {
        if let State::Profiling(reason, since) = self.state {
            self.state = match reason {
                Reason::Request => State::Suspected(reason, since),
                _ => State::Watching,
            };
        }
    }

    /// Records that profiling did not end when asked to.
    pub const fn give_up(&mut self, now: Duration) {
        if let State::Profiling(..) = self.state {
            self.state = State::Stuck(now);
        }
    }

    fn suspicion(&self, now: Duration, rules: &Suspicion) -> Option<Reason> {
        let rises = || self.trend.current().filter(|rise| rise.bytes >= LEAST_RISE);
        rises()
            .find_map(|rise| self.near_limit(&rise, rules))
            .or_else(|| {
                rises()
                    .next()
                    .and(self.last.pressure)
                    .filter(|pressure| *pressure >= rules.pressure_percent.0)
                    .map(Reason::Pressure)
            })
            .or_else(|| rises().find(|rise| self.is_much(rise, rules)).map(Reason::Growth))
            .or_else(|| {
                let due = |every: Duration| now.saturating_sub(self.profiled) >= every;
                rules.schedule.0.is_some_and(due).then_some(Reason::Schedule)
            })
    }

    #[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
    fn is_much(&self, rise: &Rise, rules: &Suspicion) -> bool {
        let share = self.last.resident as f64 * rules.growth_percent.0 / 100.;
        rise.bytes >= (rules.growth_bytes.0 as f64).max(share)
    }

    #[expect(clippy::cast_precision_loss, reason = "memory is less than 2^53 bytes")]
    fn near_limit(&self, rise: &Rise, rules: &Suspicion) -> Option<Reason> {
        let MemoryLimit { is_cgroup, limit, available } = self.last.limit?;
        let taken = 100. * (1. - available as f64 / limit.max(1) as f64);
        let left = rise.rate.time_to_fill(available);
        let is_near = left.is_some_and(|left| left <= rules.limit_within.0) || taken >= rules.limit_percent.0;
        is_near.then_some(Reason::Limit { is_cgroup, taken, left })
    }
}

/// Selects the suspects to profile next, as many as there is room for: most urgent first, then the longest waiting.
#[must_use]
pub fn next<K: Copy + Ord>(cases: impl Iterator<Item = (K, State)>, room: usize) -> Vec<K> {
    let waiting = cases.filter_map(|(key, state)| match state {
        State::Suspected(reason, since) => Some((reason.urgency(), since, key)),
        _ => None,
    });
    let mut waiting: Vec<_> = waiting.collect();
    waiting.sort_unstable();
    waiting.into_iter().take(room).map(|(_, _, key)| key).collect()
}

impl Reason {
    /// Returns true if the reason comes from samples.
    const fn is_seen(self) -> bool {
        matches!(self, Self::Limit { .. } | Self::Pressure(_) | Self::Growth(_))
    }

    const fn urgency(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Limit { .. } => 1,
            Self::Pressure(_) => 2,
            Self::Growth(_) => 3,
            Self::Schedule => 4,
        }
    }

    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Limit { .. } => "limit",
            Self::Pressure(_) => "pressure",
            Self::Growth(_) => "growth",
            Self::Schedule => "schedule",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request => formatter.write_str("requested"),
            Self::Limit { is_cgroup, taken, left } => {
                let limit =
                    if *is_cgroup { "its control group's memory limit" } else { "the machine's memory" };
                match left.map(crate::render::duration) {
                    Some(left) => {
                        write!(
                            formatter,
                            "it grows, {taken:.0} % of {limit} is used, and the rest lasts {left}"
                        )
                    }
                    None => write!(formatter, "it grows, and {taken:.0} % of {limit} is used"),
                }
            }
            Self::Pressure(percent) => {
                write!(
                    formatter,
                    "it grows, and its control group waits for memory {percent:.0} % of the time"
                )
            }
            Self::Growth(rise) => {
                let pace = crate::render::pace(rise.rate);
                let span =
                    crate::render::duration(Duration::try_from_secs_f64(rise.seconds).unwrap_or_default());
                write!(formatter, "its resident memory has been growing for {span}, {pace}")
            }
            Self::Schedule => formatter.write_str("scheduled"),
        }
    }
}

impl State {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Watching => "watching",
            Self::Suspected(..) => "suspected",
            Self::Profiling(..) => "profiling",
            Self::Stuck(_) => "stuck",
            Self::BackOff(_) => "back_off",
        }
    }

    /// Reason for profiling it, now or next.
    #[must_use]
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Suspected(reason, _) | Self::Profiling(reason, _) => Some(reason),
            Self::Watching | Self::Stuck(_) | Self::BackOff(_) => None,
        }
    }

    /// Returns true if a profiling thread is attached to it.
    #[must_use]
    pub const fn has_probes(&self) -> bool {
        matches!(self, Self::Profiling(..) | Self::Stuck(_))
    }
}

#[cfg(test)]
mod tests;
