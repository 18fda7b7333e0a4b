//! What systemd is told (`sd_notify(3)`). Without systemd, all of it does nothing.

use std::time::Duration;

use sd_notify::NotifyState;

/// Tells of something; nobody can be told that it failed.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd cannot be told: {error}");
    }
}

/// The daemon watches.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// What it does now, in a line.
pub(super) fn status(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

/// It reads its configuration anew, until it is [`ready`] again.
pub(super) fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    let states = now.map(|now| vec![NotifyState::Reloading, now]);
    notify(&states.unwrap_or_else(|_| vec![NotifyState::Reloading]));
}

/// It ends.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// How often systemd wants a sign of life, if it does: twice as often as it must come.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|longest| longest / 2)
}

/// A sign of life.
pub(super) fn alive() {
    notify(&[NotifyState::Watchdog]);
}
