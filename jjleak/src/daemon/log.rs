//! Log on stderr, as text or JSON, rate-limited.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Filter, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::config::{Log, LogFormat, LogLevel};
use crate::http_client;

/// Number of suppressed messages.
static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// Number of messages suppressed by the rate limit since the start.
#[must_use]
pub fn suppressed() -> u64 {
    SUPPRESSED.load(Ordering::Relaxed)
}

/// Installs the log. Only the first call has an effect.
pub fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
    };
    let writer = Writer { is_journal: is_journal() };
    let limit = Limit { level, per_minute: log.per_minute.0, seen: Mutex::default() };
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_target(false);
    let registry = tracing_subscriber::registry().with(http_client::messages(level));
    // Fails if a log is already installed, as in tests.
    let _ = match log.format {
        LogFormat::Text => registry.with(layer.without_time().with_ansi(false).with_filter(limit)).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true).with_filter(limit)).try_init(),
    };
}

/// Returns true if the log goes to systemd's journal (`systemd.exec(5)`, `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    let stderr = fs::metadata("/proc/self/fd/2").map(|stderr| format!("{}:{}", stderr.dev(), stderr.ino()));
    env::var("JOURNAL_STREAM").is_ok_and(|journal| stderr.is_ok_and(|stderr| stderr == journal))
}

/// Creates a writer for each message.
struct Writer {
    is_journal: bool,
}

impl<'a> MakeWriter<'a> for Writer {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        Lines { level: "" }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Lines {
        Lines { level: if self.is_journal { level(*metadata.level()) } else { "" } }
    }
}

/// Priority prefix of a line for the journal (`sd-daemon(3)`), for example for `journalctl -p warning`.
const fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

/// Writes each message as one line. Messages contain process names, and a line break in one could forge another message.
struct Lines {
    level: &'static str,
}

impl Write for Lines {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let line = format!("{}{}", self.level, one_line(&String::from_utf8_lossy(message)));
        crate::notices::Log.write_all(line.as_bytes())?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Joins the lines of a message. The formatter writes each message at once, with a line break at its end.
fn one_line(message: &str) -> String {
    let ends_lines = ['\n', '\r', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];
    let lines: Vec<_> = message.split(ends_lines).map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" | ") + "\n"
}

/// Filter by level, and rate limit per call site in the code, of which there is a fixed number.
struct Limit {
    level: Level,
    per_minute: usize,
    seen: Mutex<HashMap<Identifier, Window>>,
}

/// Messages of a call site within a minute.
#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    count: usize,
}

/// Target prefix of the daemon's own messages.
const OWN: &str = "jjleak::daemon";
const MINUTE: Duration = Duration::from_secs(60);

impl Window {
    /// Counts a message; returns whether it may pass.
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
        // Other modules' info messages are meant for users who profile a single process; here they are details.
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
    fn a_message_is_one_line_whatever_it_contains() {
        let forged = "INFO watching a\nWARN java (pid 1) leaks (pid 2)\n";
        assert_eq!(one_line(forged), "INFO watching a | WARN java (pid 1) leaks (pid 2)\n");
        assert_eq!(
            one_line("the verifier says:\n\n  0: r0\r\n  1: exit\n"),
            "the verifier says: | 0: r0 | 1: exit\n"
        );
        assert_eq!(one_line("a\u{2028}b\n"), "a | b\n");
    }

    #[test]
    fn the_rate_limit_is_per_minute() {
        let began = Instant::now();
        let mut window = Window { began, count: 0 };
        let passed = |window: &mut Window, now| (0..10).filter(|_| window.admit(now, 3)).count();
        assert_eq!(passed(&mut window, began), 3);
        assert_eq!(passed(&mut window, began + MINUTE), 3);
        assert!((0..10).all(|_| window.admit(began, 0)));
    }
}
