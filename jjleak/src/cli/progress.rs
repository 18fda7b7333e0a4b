//! Says on a terminal what takes a while. Nothing is said where stderr is no terminal.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::render::printable;

/// How often the line moves.
const TICK: Duration = Duration::from_millis(100);

/// The line that stands on the terminal now.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Shown until dropped.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Says what is being done. What else is said meanwhile goes above it.
    pub(super) fn start(what: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        if !bar.is_hidden() {
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.set_message(printable(what).into_owned());
            bar.enable_steady_tick(TICK);
            *shown() = Some(bar.clone());
        }
        Self { bar }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *shown() = None;
        self.bar.finish_and_clear();
    }
}

/// Writes to the terminal with the line out of the way.
pub(super) fn aside<R>(write: impl FnOnce() -> R) -> R {
    let bar = shown().clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

fn shown() -> std::sync::MutexGuard<'static, Option<ProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}
