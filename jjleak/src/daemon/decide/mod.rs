//! Decides which process is to be profiled, and when. Pure: no clocks, no processes.
//!
//! In: what was seen of a process, what is allowed, and how profiling ended. Out: what state its [`Case`] is in. A process is
//! watched, becomes a suspect, is profiled when its turn comes, and is left in peace for a while after the verdict:
//!
//! ```text
//! watching -> suspected -> profiling -> back-off -> watching
//!                              |            ^
//!                              +-> stuck ---+
//! ```

mod course;
mod past;

use std::fmt;
use std::time::Duration;

pub use course::Course;
pub use past::Past;

use super::config::{Config, Suspicion};
use crate::analyze::Rise;
use crate::processes::MemoryLimit;

/// Growth by less is no reason for anything: the kernel's own books of a process are off by this much.
const LEAST_RISE: f64 = 1_048_576.;

/// What was seen of a process's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Resident bytes.
    pub resident: u64,
    /// What its control group has, if that is known.
    pub group: Option<u64>,
    /// The limit that leaves the least.
    pub limit: Option<MemoryLimit>,
    /// For how much of the time tasks wait for memory, in per cent.
    pub pressure: Option<f64>,
}

/// Why a process is suspected, what is most urgent first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    /// Somebody asked for it.
    Request,
    /// It grows, and a limit is near: this is how much of it is taken, in per cent, and how long what is left lasts.
    Limit {
        /// Whether it is a control group's, rather than the machine's.
        is_cgroup: bool,
        /// In per cent.
        taken: f64,
        /// `None` when longer than anybody cares for.
        left: Option<Duration>,
    },
    /// It grows, and its control group waits for memory.
    Pressure(f64),
    /// It grows and grows.
    Growth(Rise),
    /// It is time.
    Schedule,
}

/// Where a process stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum State {
    /// It is looked at.
    Watching,
    /// It is to be profiled, since then.
    Suspected(Reason, Duration),
    /// It is being profiled, since then.
    Profiling(Reason, Duration),
    /// Profiling it does not end, since then: it is not profiled before that has.
    Stuck(Duration),
    /// It has been profiled, and is left in peace until then.
    BackOff(Duration),
}

/// What is known of a process, and where it stands. All times are since the host was started, so that they mean
/// the same to the next daemon.
#[derive(Debug, Clone)]
pub struct Case {
    course: Course,
    state: State,
    /// When somebody asked another daemon for a profile, which is taken after the back-off.
    asked: Option<Duration>,
    /// When the process was started.
    started: Duration,
    last: Sample,
    /// When it was last profiled, or taken in.
    profiled: Duration,
    /// How often it has been profiled because of what was seen of it.
    rounds: u32,
    /// When there was a reason to suspect it last.
    unquiet: Duration,
}

impl Case {
    /// A process that was started then.
    #[must_use]
    pub fn new(now: Duration, started: Duration) -> Self {
        Self {
            course: Course::default(),
            state: State::Watching,
            asked: None,
            started,
            last: Sample::default(),
            profiled: now,
            rounds: 0,
            unquiet: now,
        }
    }

    /// Where it stands.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// What was last seen of it.
    #[must_use]
    pub const fn last(&self) -> Sample {
        self.last
    }

    /// The past of its resident memory.
    #[must_use]
    pub const fn course(&self) -> &Course {
        &self.course
    }

    /// Takes in what is seen now.
    pub fn observe(&mut self, now: Duration, sample: Sample, config: &Config) {
        self.last = sample;
        if matches!(self.state, State::BackOff(until) if now >= until) {
            let again = |since| State::Suspected(Reason::Request, since);
            self.state = self.asked.take().map_or(State::Watching, again);
        }
        // What grows before that is the start of the program.
        if now.saturating_sub(self.started) < config.watch.warm_up.0 {
            return;
        }
        self.course.enter(now, sample.resident);
        let reason = self.suspicion(now, &config.suspect);
        if reason.is_some_and(Reason::is_seen) || self.state != State::Watching {
            self.unquiet = now;
        } else if now.saturating_sub(self.unquiet) >= config.profile.back_off_max.0 {
            self.rounds = 0;
        }
        let Some(reason) = reason else { return };
        let is_due = match self.state {
            State::Watching => true,
            State::BackOff(until) => self.cannot_wait(now, until, reason, config),
            State::Suspected(..) | State::Profiling(..) | State::Stuck(_) => false,
        };
        if is_due {
            self.state = State::Suspected(reason, now);
        }
    }

    /// Whether something happens before a back-off is over. The shortest is always kept.
    fn cannot_wait(&self, now: Duration, until: Duration, reason: Reason, config: &Config) -> bool {
        let is_urgent = match reason {
            Reason::Limit { left, .. } => left.is_some_and(|left| now.saturating_add(left) < until),
            Reason::Pressure(_) => true,
            Reason::Request | Reason::Growth(_) | Reason::Schedule => false,
        };
        is_urgent && now.saturating_sub(self.profiled) >= config.profile.back_off.0
    }

    /// Somebody wants it profiled, whatever it looks like; whether that will be.
    pub fn request(&mut self, now: Duration) -> bool {
        self.asked = None;
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

    /// As if its control group waited for memory.
    #[cfg(test)]
    pub(in crate::daemon) const fn suspect_for_a_test(&mut self) {
        self.state = State::Suspected(Reason::Pressure(50.), Duration::ZERO);
    }

    /// How often it has been profiled for what was seen of it.
    #[cfg(test)]
    pub(in crate::daemon) const fn rounds_for_a_test(&self) -> u32 {
        self.rounds
    }

    /// Its turn has come. Why it is profiled; `None` when it is no suspect.
    pub fn begin(&mut self, now: Duration) -> Option<Reason> {
        let State::Suspected(reason, _) = self.state else { return None };
        (self.state, self.asked) = (State::Profiling(reason, now), None);
        Some(reason)
    }

    /// Profiling has ended. A leak that has been found is known, and what was not found will hardly be found the next minute:
    /// it is left in peace whatever came out: twice as long as the last time if there was a verdict on what was seen of it, and as
    /// long as the last time if there was none, or somebody else wanted it.
    pub fn end(&mut self, now: Duration, is_profiled: bool, config: &Config) {
        let is_seen = match self.state {
            State::Profiling(reason, _) => reason.is_seen(),
            State::Stuck(_) => false,
            State::Watching | State::Suspected(..) | State::BackOff(_) => return,
        };
        self.profiled = now;
        let profile = &config.profile;
        self.rounds = self.rounds.saturating_add(u32::from(is_profiled && is_seen));
        // Beyond, the longest back-off is reached whatever the shortest is.
        let times = 1u32 << self.rounds.saturating_sub(1).min(30);
        let back_off = profile.back_off.0.saturating_mul(times).min(profile.back_off_max.0);
        self.state = State::BackOff(now.saturating_add(back_off));
    }

    /// Profiling has ended before anything could be judged, because the daemon ends: the next one is to begin anew. What was
    /// seen of the process is seen again; that somebody asked is not.
    pub const fn interrupt(&mut self) {
        if let State::Profiling(reason, since) = self.state {
            self.state = match reason {
                Reason::Request => State::Suspected(reason, since),
                _ => State::Watching,
            };
        }
    }

    /// Profiling has not ended when it was told to.
    pub const fn give_up(&mut self, now: Duration) {
        if let State::Profiling(..) = self.state {
            self.state = State::Stuck(now);
        }
    }

    fn suspicion(&self, now: Duration, rules: &Suspicion) -> Option<Reason> {
        let rises = || self.course.current().filter(|rise| rise.bytes >= LEAST_RISE);
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

/// Which of the suspects are to be profiled next, the most urgent first and of those the one that waits longest: as many as
/// there is room for.
#[must_use]
pub fn next<K: Copy + Ord>(cases: impl Iterator<Item = (K, State)>, room: usize) -> Vec<K> {
    let waiting = cases.filter_map(|(key, state)| match state {
        State::Suspected(reason, since) => Some((reason.rank(), since, key)),
        _ => None,
    });
    let mut waiting: Vec<_> = waiting.collect();
    waiting.sort_unstable();
    waiting.into_iter().take(room).map(|(_, _, key)| key).collect()
}

impl Reason {
    /// Whether it is something that was seen of the process.
    const fn is_seen(self) -> bool {
        matches!(self, Self::Limit { .. } | Self::Pressure(_) | Self::Growth(_))
    }

    const fn rank(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Limit { .. } => 1,
            Self::Pressure(_) => 2,
            Self::Growth(_) => 3,
            Self::Schedule => 4,
        }
    }

    /// The name in JSON.
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
            Self::Request => formatter.write_str("it was asked for"),
            Self::Limit { is_cgroup, taken, left } => {
                let limit =
                    if *is_cgroup { "its control group's memory limit" } else { "the machine's memory" };
                match left.map(crate::render::duration) {
                    Some(left) => {
                        write!(
                            formatter,
                            "it grows, {taken:.0} % of {limit} is taken, and the rest lasts {left}"
                        )
                    }
                    None => write!(formatter, "it grows, and {taken:.0} % of {limit} is taken"),
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
            Self::Schedule => formatter.write_str("it is time to"),
        }
    }
}

impl State {
    /// The name in JSON.
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

    /// Why it is, or is to be, profiled.
    #[must_use]
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Suspected(reason, _) | Self::Profiling(reason, _) => Some(reason),
            Self::Watching | Self::Stuck(_) | Self::BackOff(_) => None,
        }
    }

    /// Whether somebody is at work in it.
    #[must_use]
    pub const fn has_probes(&self) -> bool {
        matches!(self, Self::Profiling(..) | Self::Stuck(_))
    }
}

#[cfg(test)]
mod tests;
