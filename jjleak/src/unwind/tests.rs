//! Compares rows with gimli's own evaluation, for files of this machine and for synthetic ones.

mod damaged;
mod evaluated;
mod files;
mod oracle;
mod rules;

/// Returns true if the run includes tests that take minutes (`cargo xtask test --long`).
pub(super) fn is_long() -> bool {
    std::env::var("JJLEAK_LONG").is_ok_and(|value| value == "1")
}
