//! Everything jjleak says on stderr goes through here.
//!
//! Some of it was chosen by the profiled process, such as the names of its files: nothing of that may steer the
//! terminal. And nobody may be listening: a stderr that is closed or full is no reason to stop.
//!
//! While a view has the terminal, what is said waits.

use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::progress;
use crate::render::printable;

/// Whether what is told goes through the log.
static GOES_TO_LOG: AtomicBool = AtomicBool::new(false);

/// Has what is told go through the log from now on: nobody sits in front of a daemon.
pub(super) fn go_to_log() {
    GOES_TO_LOG.store(true, Ordering::Relaxed);
}

/// Tells the user; one line, whatever is in it.
pub(super) fn tell(line: &str) {
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
    // Nobody else may have to wait while this does, for a pipe that is full.
    write(text);
}

fn write(text: &str) {
    // There is nobody to tell that nobody can be told.
    let _ = progress::aside(|| io::stderr().write_all(text.as_bytes()));
}

/// Most texts that wait: what a view of days has to say is said by then, and the last ones matter most.
const MAX_WAITING: usize = 200;

/// What waits to be said; `None` when nothing has to wait.
static WAITING: Mutex<Option<Waiting>> = Mutex::new(None);

#[derive(Debug, Default)]
struct Waiting {
    texts: Vec<String>,
    /// How many of the first ones were given up.
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

/// Lets everything wait from now on.
pub(super) fn hold() {
    waiting().get_or_insert_default();
}

/// Says what had to wait, and lets nothing wait any more.
pub(super) fn release() {
    let Some(waiting) = mem::take(&mut *waiting()) else { return };
    if waiting.dropped > 0 {
        write(&format!("jjleak: {} earlier messages are not kept\n", waiting.dropped));
    }
    waiting.texts.iter().for_each(|text| write(text));
}

/// The last line that waits, if it is new.
pub(super) fn latest() -> Option<String> {
    let mut waiting = waiting();
    let waiting = waiting.as_mut()?;
    let last = waiting.texts.last().filter(|_| waiting.is_news)?.trim().to_owned();
    waiting.is_news = false;
    Some(last)
}

/// Where the log goes. A message may have several lines, such as what the kernel's verifier says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log;

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
                latest();
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
