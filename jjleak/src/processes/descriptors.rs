//! The limit of open descriptors. jjleak keeps each file open that a profiled process has mapped, and more for each probe.

use std::io;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The limits before they were raised: soft and hard.
static BEFORE: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();

/// Raises jjleak's limit as far as it may. Commands that it starts get the limit from before.
pub fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
            // Set once only: later calls find the limit raised.
            let _ = BEFORE.set((soft, hard));
        }
        Ok(())
    });
    if let Err(error) = raised {
        tracing::debug!(%error, "the limit of open descriptors stays as it is");
    }
}

/// Sets the limit from before. Async-signal-safe.
pub(super) fn restore_descriptor_limit() -> io::Result<()> {
    BEFORE.get().map_or(Ok(()), |(soft, hard)| Ok(setrlimit(Resource::RLIMIT_NOFILE, *soft, *hard)?))
}
