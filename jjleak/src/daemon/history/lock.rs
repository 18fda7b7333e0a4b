//! One daemon to a state directory.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::{Error, state};

/// What is locked, in the state directory. It stays: removing it could take it from under another daemon.
const LOCK: &str = "lock";

/// A daemon that was killed while it took probes out has a process left that finishes that, and holds the lock until then.
const OF_A_KILLED_ONE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(50);

/// A state directory that is nobody else's, until this is dropped or the process ends, however it ends (`flock(2)`).
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is held")] Flock<File>);

impl Lock {
    /// Takes a state directory; makes it if need be.
    pub fn take(directory: &Path) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(state("creating", directory))?;
        let path = directory.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o640);
        let mut file = options.open(&path).map_err(state("opening", &path))?;
        let begin = Instant::now();
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Self(lock)),
                Err((unlocked, Errno::EWOULDBLOCK)) if begin.elapsed() < OF_A_KILLED_ONE => file = unlocked,
                Err((_, Errno::EWOULDBLOCK)) => return Err(Error::Taken),
                Err((_, errno)) => return Err(state("locking", &path)(errno.into())),
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
    fn what_a_killed_daemon_still_has_to_do_is_waited_for() {
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
