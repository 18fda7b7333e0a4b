//! Progress indicator for long steps. Silent if stderr is not a terminal.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::render::printable;

/// Interval of the animation.
const TICK: Duration = Duration::from_millis(100);

/// The progress line on the terminal.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// A progress line, shown until dropped.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows what is in progress. Other messages are printed above it.
    #[must_use]
    pub fn start(what: &str) -> Self {
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

/// Writes to the terminal while the progress line is hidden.
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
