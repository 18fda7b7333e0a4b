//! Queue of unsent profiles: files in a folder, oldest first.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::store::{self, PendingFile};

/// Suffix of queued files, after their number in 16 hexadecimal digits.
const SUFFIX: &str = ".pb.gz";

/// Queue errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder cannot be created or read.
    #[error("cannot use {folder} as the queue of profiles to push")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A profile could not be written.
    #[error("cannot queue a profile")]
    Store(#[from] store::Error),
}

/// A queue of profiles. Only one process may use a folder at a time.
#[derive(Debug)]
pub struct Queue {
    folder: PathBuf,
    limit: u64,
    /// Oldest first.
    entries: VecDeque<Entry>,
    bytes: u64,
    next: u64,
    dropped: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    number: u64,
    bytes: u64,
}

impl Queue {
    /// Opens the queue in a folder, limited to `limit` bytes, with the profiles that an earlier run left there.
    ///
    /// # Errors
    ///
    /// If the folder can neither be created nor read.
    pub fn open(folder: &Path, limit: u64) -> Result<Self, Error> {
        let failed = |source| Error::Folder { folder: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Some(number) = number(&entry.file_name().to_string_lossy()) {
                entries.push(Entry { number, bytes: entry.metadata().map_err(failed)?.len() });
            }
        }
        entries.sort_by_key(|entry| entry.number);
        let mut queue = Self {
            folder: folder.to_owned(),
            limit,
            bytes: entries.iter().map(|entry| entry.bytes).sum(),
            next: entries.last().map_or(0, |entry| entry.number + 1),
            entries: entries.into(),
            dropped: 0,
        };
        queue.make_room(0);
        Ok(queue)
    }

    /// Appends a profile, dropping the oldest ones if there is no room.
    ///
    /// # Errors
    ///
    /// If it cannot be written; it is counted as dropped.
    pub fn push(&mut self, profile: &[u8]) -> Result<(), Error> {
        let bytes = profile.len() as u64;
        if bytes > self.limit {
            self.dropped += 1;
            return Ok(());
        }
        self.make_room(bytes);
        let entry = Entry { number: self.next, bytes };
        self.next += 1;
        match self.write(entry, profile) {
            Ok(()) => {
                self.entries.push_back(entry);
                self.bytes += bytes;
                Ok(())
            }
            Err(error) => {
                self.dropped += 1;
                Err(error.into())
            }
        }
    }

    fn write(&self, entry: Entry, profile: &[u8]) -> Result<(), store::Error> {
        let mut file = PendingFile::create(&self.path(entry.number))?;
        file.write(profile)?;
        file.finish()?;
        Ok(())
    }

    /// The oldest profile and its number. Unreadable profiles are dropped.
    pub fn oldest(&mut self) -> Option<(u64, Vec<u8>)> {
        while let Some(entry) = self.entries.front().copied() {
            match fs::read(self.path(entry.number)) {
                Ok(profile) => return Some((entry.number, profile)),
                Err(error) => {
                    let path = self.path(entry.number);
                    tracing::warn!(%error, "dropping a queued profile: cannot read {}", path.display());
                    self.dropped += 1;
                    self.remove(entry.number);
                }
            }
        }
        None
    }

    /// Removes a profile, unless it has already been dropped.
    pub fn remove(&mut self, number: u64) {
        let Some(place) = self.entries.iter().position(|entry| entry.number == number) else { return };
        if let Some(entry) = self.entries.remove(place) {
            self.bytes -= entry.bytes;
            let path = self.path(number);
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, "cannot remove {}: this profile will be sent again", path.display());
            }
        }
    }

    fn make_room(&mut self, bytes: u64) {
        while self.bytes + bytes > self.limit
            && let Some(oldest) = self.entries.front().copied()
        {
            self.dropped += 1;
            self.remove(oldest.number);
        }
    }

    /// Number and total size of queued profiles.
    #[must_use]
    pub fn waiting(&self) -> (usize, u64) {
        (self.entries.len(), self.bytes)
    }

    /// Number of profiles that did not fit or were lost from the folder since it was opened.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}{SUFFIX}"))
    }
}

/// Parses the number of a queued file.
fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_first_in_first_out_even_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut queue = Queue::open(folder.path(), 100).unwrap();
        queue.push(b"one").unwrap();
        queue.push(b"two").unwrap();
        let (number, profile) = queue.oldest().unwrap();
        assert_eq!(profile, b"one");
        queue.remove(number);

        let mut queue = Queue::open(folder.path(), 100).unwrap();
        assert_eq!(queue.waiting(), (1, 3));
        queue.push(b"three").unwrap();
        let (number, profile) = queue.oldest().unwrap();
        assert_eq!(profile, b"two");
        queue.remove(number);
        assert_eq!(queue.oldest().unwrap().1, b"three");
        assert_eq!(queue.dropped(), 0);
    }

    #[test]
    fn the_oldest_are_dropped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut queue = Queue::open(folder.path(), 10).unwrap();
        for profile in [b"aaaa", b"bbbb", b"cccc"] {
            queue.push(profile).unwrap();
        }
        assert_eq!((queue.waiting(), queue.dropped()), ((2, 8), 1));
        assert_eq!(queue.oldest().unwrap().1, b"bbbb");

        queue.push(&[0; 11]).unwrap();
        assert_eq!((queue.waiting(), queue.dropped()), ((2, 8), 2));
        // Opened with a lower limit.
        let queue = Queue::open(folder.path(), 5).unwrap();
        assert_eq!((queue.waiting(), queue.dropped()), ((1, 4), 1));
    }

    #[test]
    fn files_of_others_are_left_alone_and_lost_ones_counted() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("note");
        fs::write(&note, "x").unwrap();
        let mut queue = Queue::open(folder.path(), 10).unwrap();
        queue.push(b"lost").unwrap();
        fs::remove_file(folder.path().join("0000000000000000.pb.gz")).unwrap();
        assert!(queue.oldest().is_none());
        assert_eq!((queue.waiting(), queue.dropped()), ((0, 0), 1));
        assert!(note.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_created_is_named() {
        let error = Queue::open(Path::new("/dev/null/queue"), 10).unwrap_err();
        assert!(error.to_string().contains("/dev/null/queue"), "{error}");
    }
}
