//! The limit of open descriptors. jjleak keeps each file open that a profiled process has mapped, and more for each probe. A process
//! can map any number of files: half of the descriptors stay free for everything else.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The limits before they were raised: soft and hard.
static BEFORE: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();

/// Number of mapped files that are open.
static MAPPED_FILES: AtomicU64 = AtomicU64::new(0);

/// The right to keep a mapped file open.
#[derive(Debug)]
pub(super) struct FileSlot(());

impl FileSlot {
    /// Fails if half of the descriptors are in use for mapped files.
    pub(super) fn take() -> io::Result<Self> {
        Self::take_of(most_files())
    }

    fn take_of(most: u64) -> io::Result<Self> {
        let taken = MAPPED_FILES.fetch_add(1, Ordering::Relaxed);
        let slot = Self(());
        if taken >= most {
            return Err(io::Error::other(format!(
                "{taken} mapped files are open, and the limit of descriptors (ulimit -n) allows no more"
            )));
        }
        Ok(slot)
    }

    /// Returns true if there is none.
    pub(super) fn is_none_left() -> bool {
        MAPPED_FILES.load(Ordering::Relaxed) >= most_files()
    }
}

impl Drop for FileSlot {
    fn drop(&mut self) {
        MAPPED_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Maximum number of mapped files that are kept open.
fn most_files() -> u64 {
    // A process can always read its limits.
    getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft) / 2
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beyond_the_limit_is_refused_and_counts_no_more() {
        assert!(FileSlot::take_of(0).is_err());
        let slots: Vec<_> = (0..3).map(|_| FileSlot::take().unwrap()).collect();
        assert!(FileSlot::take_of(3).is_err() && !FileSlot::is_none_left());
        drop(slots);
        assert!(FileSlot::take_of(u64::MAX).is_ok());
    }
}
