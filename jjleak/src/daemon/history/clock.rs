//! Plausibility of the wall clock as a reason to delete old profiles. Pure.
//!
//! A clock that is wrong by a month, even for a minute, would cause all profiles to be deleted.

use std::time::Duration;

use jiff::Timestamp;

/// An instant on two clocks. The time since boot includes sleep and is never set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instant {
    /// Wall clock.
    pub wall: Timestamp,
    /// Time since boot.
    pub boot: Duration,
}

/// Maximum difference between two checks that is due to slewing.
const JUMP: Duration = Duration::from_secs(3600);
/// Time within which a wrong clock is corrected; beyond it, the change is intended.
const PROBATION: Duration = Duration::from_secs(86_400);

/// Trust in the wall clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    last: Option<Instant>,
    /// End of distrust, since boot.
    distrusted_until: Option<Duration>,
}

impl Clock {
    /// Returns true if ages by the wall clock can be trusted: not for a day after it jumped, nor after a start at which even the
    /// newest profile would be too old (`oldest` is the limit).
    pub(super) fn is_trusted(&mut self, now: Instant, newest: Option<Timestamp>, oldest: Timestamp) -> bool {
        let has_jumped = match self.last.replace(now) {
            Some(last) => {
                let expected = last.wall.saturating_add(now.boot.saturating_sub(last.boot));
                expected.is_ok_and(|expected| now.wall.duration_since(expected).unsigned_abs() > JUMP)
            }
            None => newest.is_some_and(|newest| newest < oldest),
        };
        if has_jumped {
            self.distrusted_until = Some(now.boot.saturating_add(PROBATION));
        }
        self.distrusted_until = self.distrusted_until.filter(|until| now.boot < *until);
        self.distrusted_until.is_none()
    }
}
