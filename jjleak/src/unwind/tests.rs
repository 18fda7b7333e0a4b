//! Rows against gimli's own evaluation, on files of this machine and on made-up ones.

mod damaged;
mod evaluated;
mod files;
mod oracle;
mod rules;

/// Whether the run has time for what takes minutes (`cargo xtask test --long`).
pub(super) fn is_long() -> bool {
    std::env::var("JJLEAK_LONG").is_ok_and(|value| value == "1")
}
