//! Notifications to systemd (`sd_notify(3)`). No-ops without systemd.

use std::time::Duration;

use sd_notify::NotifyState;

/// Sends a notification; failures are only logged.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("cannot notify systemd: {error}");
    }
}

/// The daemon is ready.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Status line.
pub(super) fn status(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

/// The daemon is reloading its configuration, until the next [`ready`].
pub(super) fn reloading() {
    let now = NotifyState::monotonic_usec_now();
    let states = now.map(|now| vec![NotifyState::Reloading, now]);
    notify(&states.unwrap_or_else(|_| vec![NotifyState::Reloading]));
}

/// The daemon is stopping.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Interval for [`alive`], if the watchdog is enabled: half of its timeout.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|longest| longest / 2)
}

/// Keep-alive for the watchdog.
pub(super) fn alive() {
    notify(&[NotifyState::Watchdog]);
}
