//! State of a process that is saved for the next daemon.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Case, MemoryTrend, Reason, Sample, State};
use crate::daemon::config::Config;

/// Saved state, under the names that earlier versions have given it; whatever the next scan shows anyway is left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedCase {
    #[serde(rename = "course")]
    trend: MemoryTrend,
    profiled: Duration,
    rounds: u32,
    #[serde(rename = "unquiet")]
    last_suspicious: Duration,
    #[serde(rename = "standing")]
    state: SavedState,
}

/// Maximum delay of a request that an earlier daemon did not serve. If profiling crashed that daemon before it could save its
/// state, as on a full disk, an immediate retry could crash the next one at once.
const REQUEST_DELAY: Duration = Duration::from_secs(60);

/// Saved form of [`State`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum SavedState {
    /// Watched. A suspicion arises again from the next scan.
    #[serde(rename = "watched")]
    Watching,
    /// A profile was requested then and has not been taken.
    #[serde(rename = "asked")]
    Requested(Duration),
    /// In back-off until then.
    #[serde(rename = "rests")]
    BackOff(Duration),
    /// Being profiled.
    #[serde(rename = "profiled")]
    Profiling,
}

impl Case {
    /// State to save for the next daemon.
    #[must_use]
    pub fn saved(&self) -> SavedCase {
        SavedCase {
            trend: self.trend.clone(),
            profiled: self.profiled,
            rounds: self.rounds,
            last_suspicious: self.last_suspicious,
            state: match self.state {
                State::BackOff(until) => {
                    self.requested.map_or(SavedState::BackOff(until), SavedState::Requested)
                }
                State::Suspected(Reason::Request, since) => SavedState::Requested(since),
                State::Profiling(..) | State::Stuck(_) => SavedState::Profiling,
                State::Watching | State::Suspected(..) => SavedState::Watching,
            },
        }
    }

    /// Restores the saved state. If the process was being profiled, that may be what ended the daemon, so it backs off first lest
    /// this daemon ends as well.
    #[must_use]
    pub fn resume(now: Duration, started: Duration, saved: SavedCase, config: &Config) -> Self {
        let requested =
            if let SavedState::Requested(since) = saved.state { Some(since.min(now)) } else { None };
        let (was_profiled, state) = match saved.state {
            SavedState::Watching => (false, State::Watching),
            SavedState::Requested(_) => {
                (false, State::BackOff(now + config.profile.back_off.0.min(REQUEST_DELAY)))
            }
            SavedState::BackOff(until) => {
                (false, State::BackOff(until.min(now + config.profile.back_off_max.0)))
            }
            SavedState::Profiling => (true, State::BackOff(now + config.profile.back_off.0)),
        };
        Self {
            trend: saved.trend,
            state,
            requested,
            started,
            last: Sample::default(),
            profiled: if was_profiled { now } else { saved.profiled.min(now) },
            rounds: saved.rounds,
            last_suspicious: saved.last_suspicious.min(now),
        }
    }
}
