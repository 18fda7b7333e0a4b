//! Stored profiles in the state directory: pprof files, and an index of them.
//!
//! In: profiles. Out: entries, and profiles read back. A profile is written before its entry, so that the index names only
//! existing files. Profiles missing from the index, because jjleak was killed in between or the index was damaged, are
//! adopted at the next start. File names come from the index only, never from clients.

mod clock;
mod entry;
mod files;
mod lock;
mod reservation;
mod retention;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use clock::Clock;
pub use clock::Instant;
pub use entry::{Costs, Entry, Estimate, Id};
use files::{EXTENSION, PICTURE};
pub use files::{Folder, MAX_PROFILE, Sealed, Stored};
pub use lock::Lock;
pub use reservation::Reservation;

use crate::pprof;
#[cfg(test)]
use crate::profile::Profile;
use crate::store::{self, Journal, Records};

/// The index, in the state directory.
const INDEX: &str = "index";
/// Folder of profiles, in the state directory.
const PROFILES: &str = "profiles";
/// Name to which an unreadable index is moved: it may contain what nothing else does.
const MOVED_INDEX: &str = "index.unreadable";
/// The index is rewritten when its stale lines outnumber its entries by this, or exceed [`MAX_STALE`].
const FEW_STALE: usize = 16;
const MAX_STALE: usize = 1000;

/// A line of the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// A profile was written.
    #[serde(rename = "kept")]
    Stored(Box<Entry>),
    /// A profile was removed.
    Removed(Id),
}

/// Limits of the stored profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Total size of all files.
    pub bytes: u64,
    /// Age of each profile.
    pub age: Duration,
}

/// Errors of storing and reading profiles.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder in the state directory is unusable.
    #[error("cannot {what} {path}")]
    State {
        /// The attempted operation.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another daemon uses the state directory.
    #[error("another jjleak daemon is using it")]
    Taken,
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] store::Error),
    /// The profile does not fit, even if all others are removed.
    #[error(
        "it needs {bytes} bytes with its flame graph, but state.max_bytes leaves only {most} for profiles"
    )]
    TooLarge {
        /// Size of the profile.
        bytes: u64,
        /// Size available.
        most: u64,
    },
    /// The file has changed since it was written.
    #[error("{0} is damaged: wrong checksum")]
    Damaged(Id),
    /// The file contains no valid profile.
    #[error("cannot read {0}")]
    Unreadable(Id, #[source] pprof::Error),
    /// Not a profile ID.
    #[error("not a profile ID")]
    InvalidId,
    /// No profile has this ID.
    #[error("no profile {0}")]
    Unknown(Id),
}

/// Repairs made when the history was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Torn or damaged lines of the index.
    pub lines: usize,
    /// Profiles that were missing from the index.
    pub adopted: usize,
    /// Files named like a profile that cannot be read, or not by this version. They are left alone.
    pub unreadable: usize,
    /// Files left by a daemon that was killed while writing or removing them; now removed.
    pub leftovers: usize,
    /// True if the index was unreadable as a whole, moved aside, and rebuilt from the profiles.
    pub rebuilt: bool,
}

impl fmt::Display for Repairs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, adopted, unreadable, leftovers, rebuilt } = *self;
        let counts = [
            (lines, "damaged lines of the index"),
            (adopted, "profiles missing from the index"),
            (unreadable, "unreadable files ignored"),
            (leftovers, "leftover files removed"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let mut words: Vec<_> = counts.map(|(count, what)| format!("{count} {what}")).collect();
        if rebuilt {
            words.push("index rebuilt".to_owned());
        }
        formatter.write_str(&words.join(", "))
    }
}

/// The stored profiles.
#[derive(Debug)]
pub struct History {
    folder: Folder,
    journal: Journal,
    entries: BTreeMap<Id, Entry>,
    /// Sizes of unreadable files named like a profile. Retention limits apply to them as well.
    unreadable: BTreeMap<Id, u64>,
    /// The unreadable index that was moved aside, and its size.
    moved_index: Option<(PathBuf, u64)>,
    stale_lines: usize,
    clock: Clock,
    /// Size limit, and the part of it that is reserved for profiles being written.
    most: u64,
    /// Size of the index from which on it is shortened.
    most_index: u64,
    reserved: Arc<AtomicU64>,
    /// Number of profiles that could not be stored since the daemon started.
    lost: u64,
    /// Reason why the last one could not be stored.
    last_error: Option<String>,
}

impl History {
    /// Opens or creates the history in a state directory, exclusively: see [`Lock`].
    pub fn open(directory: &Path) -> Result<(Self, Repairs), Error> {
        let folder = directory.join(PROFILES);
        fs::create_dir_all(&folder).map_err(state("create", &folder))?;
        let index = directory.join(INDEX);
        let moved_index = directory.join(MOVED_INDEX);
        let (journal, found, rebuilt) = open_index(&index, &moved_index)?;
        let mut repairs = Repairs { lines: found.damaged, rebuilt, ..Repairs::default() };
        let moved_index = fs::metadata(&moved_index).ok().map(|about| (moved_index, about.len()));
        let mut history = Self {
            folder: Folder::new(folder),
            journal,
            entries: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            moved_index,
            stale_lines: 0,
            clock: Clock::default(),
            most: u64::MAX,
            // Leaves room for the lines of profiles that are being written.
            most_index: Journal::MAX_BYTES / 2,
            reserved: Arc::default(),
            lost: 0,
            last_error: None,
        };
        for line in found.records {
            match line {
                Line::Stored(entry) => drop(history.entries.insert(entry.id.clone(), *entry)),
                Line::Removed(id) => {
                    history.entries.remove(&id);
                    history.stale_lines += 2;
                }
            }
        }
        repairs.leftovers = store::discard_left(directory).map_err(state("read", directory))?;
        let folder = history.folder.as_path();
        repairs.leftovers += store::discard_left(folder).map_err(state("read", folder))?;
        history.compare_with_files(&mut repairs)?;
        history.compact();
        Ok((history, repairs))
    }

    /// All entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.values()
    }

    /// The entry with this ID.
    #[must_use]
    pub fn get(&self, id: &Id) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// Total size of all files, including the index.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let profiles = self.entries.values().map(Entry::bytes).chain(self.unreadable.values().copied());
        profiles.sum::<u64>() + self.index_bytes()
    }

    fn index_bytes(&self) -> u64 {
        self.journal.bytes() + self.moved_index.as_ref().map_or(0, |(_, bytes)| *bytes)
    }

    /// Number of profiles that could not be stored, and the reason if the last one could not.
    #[must_use]
    pub fn last_error(&self) -> (u64, Option<&str>) {
        (self.lost, self.last_error.as_deref())
    }

    /// Commits a profile after [`Self::reserve`] and writing its files, or records that they could not be written.
    pub fn commit(
        &mut self,
        sealed: Sealed<'_>,
        reservation: Reservation,
        written: Result<(), Error>,
    ) -> Result<Id, Error> {
        // Its size now counts itself, or is not needed.
        drop(reservation);
        let kept = written.and_then(|()| self.add(sealed.entry));
        self.record_outcome(kept)
    }

    /// Records whether a profile could be stored.
    fn record_outcome<T>(&mut self, kept: Result<T, Error>) -> Result<T, Error> {
        match &kept {
            Ok(_) => self.last_error = None,
            Err(error) => {
                self.record_loss(crate::error_chain::chain(error));
            }
        }
        kept
    }

    /// Records that a profile is lost, and why.
    pub fn record_loss(&mut self, why: String) {
        self.lost += 1;
        self.last_error = Some(why);
    }

    fn add(&mut self, entry: Entry) -> Result<Id, Error> {
        let lines = [Line::Stored(Box::new(entry.clone()))];
        if let Err(error) = self.journal.append(&lines).map_err(state("write", self.folder.as_path())) {
            self.folder.remove(&entry.id);
            return Err(error);
        }
        let id = entry.id.clone();
        self.entries.insert(id.clone(), entry);
        Ok(id)
    }

    /// Stores a profile.
    #[cfg(test)]
    pub(crate) fn keep(&mut self, profile: &Profile, entry: Entry, picture: &[u8]) -> Result<Id, Error> {
        let sealed = Sealed::of(profile, entry, picture)?;
        let reservation = self.reserve(&sealed)?;
        let written = reservation.folder().write(&sealed);
        self.commit(sealed, reservation, written)
    }

    /// The file of a profile, to be opened without holding the history.
    pub fn profile(&self, id: &Id) -> Result<Stored, Error> {
        let entry = self.get(id).ok_or_else(|| Error::Unknown(id.clone()))?;
        Ok(Stored { path: self.folder.path(id, EXTENSION), entry: entry.clone() })
    }

    /// Path of a profile's flame graph.
    pub fn picture(&self, id: &Id) -> Result<PathBuf, Error> {
        let id = self.get(id).map(|entry| &entry.id).ok_or_else(|| Error::Unknown(id.clone()))?;
        Ok(self.folder.path(id, PICTURE))
    }

    /// Rewrites the index without stale lines.
    fn compact(&mut self) {
        if self.stale_lines == 0 {
            return;
        }
        let lines: Vec<_> =
            self.entries.values().map(|entry| Line::Stored(Box::new(entry.clone()))).collect();
        match self.journal.rewrite(lines.iter()) {
            Ok(()) => self.stale_lines = 0,
            // The old index remains valid.
            Err(error) => tracing::warn!("cannot rewrite the index: {}", crate::error_chain::chain(&error)),
        }
    }

    /// Adopts profiles that are missing from the index, and drops entries without a profile.
    fn compare_with_files(&mut self, repairs: &mut Repairs) -> Result<(), Error> {
        let (mut present, mut pictures) = (BTreeSet::new(), BTreeSet::new());
        for file in fs::read_dir(self.folder.as_path()).map_err(state("read", self.folder.as_path()))? {
            // An incomplete listing would drop existing profiles.
            let file = file.map_err(state("read", self.folder.as_path()))?;
            let name = file.file_name().to_string_lossy().into_owned();
            let id =
                name.strip_suffix(EXTENSION).or(name.strip_suffix(PICTURE)).and_then(|id| id.parse().ok());
            let Some(id): Option<Id> = id else { continue };
            if name.ends_with(EXTENSION) {
                present.insert(id)
            } else {
                pictures.insert(id)
            };
        }
        // A flame graph is written before its profile and removed after it, so one alone is a leftover.
        for id in pictures.difference(&present) {
            repairs.leftovers += usize::from(fs::remove_file(self.folder.path(id, PICTURE)).is_ok());
        }
        let known: BTreeSet<Id> = self.entries.keys().cloned().collect();
        for id in known.difference(&present) {
            self.entries.remove(id);
            self.stale_lines += 1;
        }
        for id in present.difference(&known) {
            match self.adopt(id) {
                Ok(entry) => {
                    repairs.adopted += 1;
                    // If the index cannot be written, the next start adopts it again.
                    let _ = self.journal.append(&[Line::Stored(Box::new(entry.clone()))]);
                    self.entries.insert(id.clone(), entry);
                }
                // A newer version may have written it, or it may be readable again later: do not remove it.
                Err(error) => {
                    tracing::warn!("ignoring a profile: {}", crate::error_chain::chain(&error));
                    repairs.unreadable += 1;
                    self.unreadable.insert(id.clone(), self.file_bytes(id));
                }
            }
        }
        Ok(())
    }

    fn adopt(&self, id: &Id) -> Result<Entry, Error> {
        let path = self.folder.path(id, EXTENSION);
        let bytes = fs::read(&path).map_err(state("read", &path))?;
        let profile = pprof::read_within(&bytes, MAX_PROFILE)
            .map_err(|error| Error::Unreadable(id.clone(), error))?
            .profile;
        let picture = fs::read(self.folder.path(id, PICTURE)).unwrap_or_default();
        let mut entry = Entry::of(id.clone(), &profile, "found without an entry in the index");
        entry.seal(&bytes, &picture);
        Ok(entry)
    }

    /// Size of the files with this ID.
    fn file_bytes(&self, id: &Id) -> u64 {
        let bytes = |extension| fs::metadata(self.folder.path(id, extension)).map_or(0, |about| about.len());
        bytes(EXTENSION) + bytes(PICTURE)
    }
}

/// Opens the index. One that is too large is moved aside and replaced; returns whether that happened.
fn open_index(index: &Path, moved_index: &Path) -> Result<(Journal, Records<Line>, bool), Error> {
    let opening = || state("open", index);
    match Journal::open(index) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            fs::rename(index, moved_index).map_err(state("rename", index))?;
            let (journal, found) = Journal::open(index).map_err(opening())?;
            Ok((journal, found, true))
        }
        opened => opened.map(|(journal, found)| (journal, found, false)).map_err(opening()),
    }
}

fn state<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |source| Error::State { what, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
