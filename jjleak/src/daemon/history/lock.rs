//! Exclusive use of a state directory.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::{Error, state};

/// Lock file in the state directory. Never removed, because another daemon might hold it.
const LOCK: &str = "lock";

/// Time allowed for the child process of a killed daemon, which holds the lock until it has detached the probes.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);

/// Lock on a state directory, held until dropped or until the process ends in any way (`flock(2)`).
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held until dropped")] Flock<File>);

impl Lock {
    /// Locks a state directory, and creates it if necessary.
    pub fn take(directory: &Path) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(state("create", directory))?;
        let path = directory.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o640);
        let mut file = options.open(&path).map_err(state("open", &path))?;
        let begin = Instant::now();
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Self(lock)),
                Err((unlocked, Errno::EWOULDBLOCK)) if begin.elapsed() < CLEANUP_TIMEOUT => file = unlocked,
                Err((_, Errno::EWOULDBLOCK)) => return Err(Error::Taken),
                Err((_, errno)) => return Err(state("lock", &path)(errno.into())),
            }
            thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_daemon_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        let lock = Lock::take(&directory).unwrap();
        assert!(matches!(Lock::take(&directory), Err(Error::Taken)));
        drop(lock);
        Lock::take(&directory).unwrap();
    }

    #[test]
    fn taking_the_lock_waits_for_the_cleanup_of_a_killed_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::take(folder.path()).unwrap();
        let ending = thread::spawn(|| {
            thread::sleep(2 * PAUSE);
            drop(lock);
        });
        Lock::take(folder.path()).unwrap();
        ending.join().unwrap();
    }
}
