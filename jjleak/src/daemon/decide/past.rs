//! What the next daemon is told of a process that goes on while daemons come and go.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Case, Course, Reason, Sample, State};
use crate::daemon::config::Config;

/// What is known of a process, but for what the next look shows anyway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Past {
    course: Course,
    profiled: Duration,
    rounds: u32,
    unquiet: Duration,
    standing: Standing,
}

/// How long a request of the daemon before waits, unless back-offs are shorter: if that is what ended the daemon, and the disk is
/// full, so that nobody could be told, the next one would end at once, too.
const ASKED_BEFORE: Duration = Duration::from_secs(60);

/// Where a process stands that is known to the next daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Standing {
    /// It is looked at. A suspicion comes again with the next look.
    Watched,
    /// Somebody asked for a profile then, and has none yet.
    Asked(Duration),
    /// It is left in peace until then.
    Rests(Duration),
    /// There was a profiler in it.
    Profiled,
}

impl Case {
    /// What the next daemon is to know.
    #[must_use]
    pub fn past(&self) -> Past {
        Past {
            course: self.course.clone(),
            profiled: self.profiled,
            rounds: self.rounds,
            unquiet: self.unquiet,
            standing: match self.state {
                State::BackOff(until) => self.asked.map_or(Standing::Rests(until), Standing::Asked),
                State::Suspected(Reason::Request, since) => Standing::Asked(since),
                State::Profiling(..) | State::Stuck(_) => Standing::Profiled,
                State::Watching | State::Suspected(..) => Standing::Watched,
            },
        }
    }

    /// Goes on where another daemon was. One that ended while it profiled this process may have ended because of that: the
    /// process is left in peace for a while, or the next daemon ends, too.
    #[must_use]
    pub fn resume(now: Duration, started: Duration, past: Past, config: &Config) -> Self {
        let asked = if let Standing::Asked(since) = past.standing { Some(since.min(now)) } else { None };
        let (was_profiled, state) = match past.standing {
            Standing::Watched => (false, State::Watching),
            Standing::Asked(_) => (false, State::BackOff(now + config.profile.back_off.0.min(ASKED_BEFORE))),
            Standing::Rests(until) => (false, State::BackOff(until.min(now + config.profile.back_off_max.0))),
            Standing::Profiled => (true, State::BackOff(now + config.profile.back_off.0)),
        };
        Self {
            course: past.course,
            state,
            asked,
            started,
            last: Sample::default(),
            profiled: if was_profiled { now } else { past.profiled.min(now) },
            rounds: past.rounds,
            unquiet: past.unquiet.min(now),
        }
    }
}
