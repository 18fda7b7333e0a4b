//! The log: as lines or JSON on stderr, and never too much of the same.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::config::{Log, LogFormat, LogLevel};

/// Messages that were left out because there were too many of their kind.
static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// How many messages were left out since the start.
#[must_use]
pub fn suppressed() -> u64 {
    SUPPRESSED.load(Ordering::Relaxed)
}

/// Has messages written from now on; once.
pub fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
    };
    let writer = || crate::cli::Log;
    let limit = Limit { level, per_minute: log.per_minute.0, seen: Mutex::default() };
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_target(false);
    let registry = tracing_subscriber::registry();
    // A second one, as in tests, changes nothing.
    let _ = match log.format {
        LogFormat::Text => registry.with(layer.without_time().with_ansi(false).with_filter(limit)).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_filter(limit)).try_init(),
    };
}

/// Lets so many messages of each place in the code through in a minute. There are as many places as the code has.
struct Limit {
    level: Level,
    per_minute: usize,
    seen: Mutex<HashMap<Identifier, Window>>,
}

/// A minute of a place.
#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    count: usize,
}

/// Where the daemon's own messages come from.
const OWN: &str = "jjleak::daemon";
const MINUTE: Duration = Duration::from_secs(60);

impl Window {
    /// Whether another message may pass now.
    fn admit(&mut self, now: Instant, per_minute: usize) -> bool {
        if now.saturating_duration_since(self.began) >= MINUTE {
            *self = Self { began: now, count: 0 };
        }
        self.count += 1;
        per_minute == 0 || self.count <= per_minute
    }
}

impl<S> Filter<S> for Limit {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        let is_own = metadata.target().starts_with(OWN);
        // What is news to somebody who profiles one process is a detail here.
        let is_detail = !is_own && *metadata.level() == Level::INFO;
        let level = if is_detail { Level::DEBUG } else { *metadata.level() };
        level <= self.level
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let window = seen.entry(event.metadata().callsite()).or_insert(Window { began: now, count: 0 });
        let passes = window.admit(now, self.per_minute);
        SUPPRESSED.fetch_add(u64::from(!passes), Ordering::Relaxed);
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_messages_pass_in_a_minute_and_then_again() {
        let began = Instant::now();
        let mut window = Window { began, count: 0 };
        let passed = |window: &mut Window, now| (0..10).filter(|_| window.admit(now, 3)).count();
        assert_eq!(passed(&mut window, began), 3);
        assert_eq!(passed(&mut window, began + MINUTE), 3);
        assert!((0..10).all(|_| window.admit(began, 0)));
    }
}
