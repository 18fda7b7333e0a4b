//! All output of jjleak to stderr.
//!
//! Some of it is controlled by the profiled process, such as the names of its files, and must not be able to steer the terminal.
//! A closed or full stderr is no reason to stop.
//!
//! While a view has the terminal, messages are queued.

mod progress;

use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::render::printable;

pub use progress::Progress;

/// True if messages go to the log.
static GOES_TO_LOG: AtomicBool = AtomicBool::new(false);

/// Sends all further messages to the log: a daemon has no user in front of it.
pub fn go_to_log() {
    GOES_TO_LOG.store(true, Ordering::Relaxed);
}

/// Prints a message for the user, always as one line.
pub fn print(line: &str) {
    if GOES_TO_LOG.load(Ordering::Relaxed) {
        tracing::info!("{}", printable(line));
        return;
    }
    say(&format!("jjleak: {}\n", printable(line)));
}

fn say(text: &str) {
    say_by(write, text);
}

fn say_by(write: impl FnOnce(&str), text: &str) {
    if let Some(waiting) = &mut *waiting() {
        waiting.add(text);
        return;
    }
    // Outside the lock: other threads must not wait for a pipe that is full.
    write(text);
}

fn write(text: &str) {
    // An error cannot be reported: stderr is the place for it.
    let _ = progress::aside(|| io::stderr().write_all(text.as_bytes()));
}

/// Maximum number of queued messages: enough for a view that runs for days; the last ones matter most.
const MAX_WAITING: usize = 200;

/// Queued messages; `None` if messages are printed at once.
static WAITING: Mutex<Option<Waiting>> = Mutex::new(None);

#[derive(Debug, Default)]
struct Waiting {
    texts: Vec<String>,
    /// Number of old messages that were dropped.
    dropped: usize,
    is_news: bool,
}

impl Waiting {
    fn add(&mut self, text: &str) {
        self.texts.push(text.to_owned());
        self.is_news = true;
        if self.texts.len() > MAX_WAITING {
            self.texts.remove(0);
            self.dropped += 1;
        }
    }
}

fn waiting() -> MutexGuard<'static, Option<Waiting>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queues all further messages.
pub fn hold() {
    waiting().get_or_insert_default();
}

/// Prints the queued messages, and all further ones at once.
pub fn release() {
    let Some(waiting) = mem::take(&mut *waiting()) else { return };
    if waiting.dropped > 0 {
        write(&format!("jjleak: {} earlier messages were dropped\n", waiting.dropped));
    }
    waiting.texts.iter().for_each(|text| write(text));
}

/// The last queued message, if it is new.
#[must_use]
pub fn latest() -> Option<String> {
    let mut waiting = waiting();
    let waiting = waiting.as_mut()?;
    let last = waiting.texts.last().filter(|_| waiting.is_news)?.trim().to_owned();
    waiting.is_news = false;
    Some(last)
}

/// Writer of the log. A message may have several lines, such as the output of the kernel's verifier.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        say(&printable_lines(message));
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn printable_lines(message: &[u8]) -> String {
    let message = String::from_utf8_lossy(message);
    let lines: Vec<_> = message.split('\n').map(printable).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_waits_for_what_is_said_to_a_full_pipe() {
        let (done, is_done) = mpsc::channel();
        let other = || {
            thread::spawn(move || {
                let _ = latest();
                let _ = done.send(());
            });
            is_done.recv_timeout(Duration::from_secs(20)).expect("another thread waits");
        };
        say_by(|_| other(), "text");
    }

    #[test]
    fn the_log_keeps_its_lines_and_steers_no_terminal() {
        assert_eq!(printable_lines(b"one\n\x1b[2Jtwo\xff\n"), "one\n\u{fffd}[2Jtwo\u{fffd}\n");
    }
}
