//! Whether the wall clock can be believed when it says that a profile is old. Pure.
//!
//! A clock that is set wrong by a month, for a minute, would have everything deleted.

use std::time::Duration;

use jiff::Timestamp;

/// An instant, by the wall clock and since boot. The latter goes on through sleep and is never set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instant {
    /// By the wall clock.
    pub wall: Timestamp,
    /// Since boot.
    pub boot: Duration,
}

/// Clocks that are slewed differ by less between two looks.
const JUMP: Duration = Duration::from_secs(3600);
/// A wrong clock is set right within so long, or somebody means it.
const PROBATION: Duration = Duration::from_secs(86_400);

/// What is known of the wall clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    last: Option<Instant>,
    /// Until when, since boot, it is not believed.
    doubted: Option<Duration>,
}

impl Clock {
    /// Whether ages by the wall clock hold. Not for a day after it jumped, nor after a start at which all that is kept
    /// would be too old: the newest of it is of this time, and nothing older than this is kept.
    pub(super) fn is_believed(&mut self, now: Instant, newest: Option<Timestamp>, oldest: Timestamp) -> bool {
        let has_jumped = match self.last.replace(now) {
            Some(last) => {
                let expected = last.wall.saturating_add(now.boot.saturating_sub(last.boot));
                expected.is_ok_and(|expected| now.wall.duration_since(expected).unsigned_abs() > JUMP)
            }
            None => newest.is_some_and(|newest| newest < oldest),
        };
        if has_jumped {
            self.doubted = Some(now.boot.saturating_add(PROBATION));
        }
        self.doubted = self.doubted.filter(|until| now.boot < *until);
        self.doubted.is_none()
    }
}
