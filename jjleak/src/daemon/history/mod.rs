//! What has been found, kept in the state directory: profiles in pprof files, and an index of them.
//!
//! In: profiles. Out: entries, and profiles read back. A profile is written before its entry, so that what the index names is
//! there; what is there and not in the index, because jjleak was killed in between or the index was damaged, is taken in
//! at the next start. Nothing is ever opened by a name that comes from elsewhere: names are made of the index.

mod clock;
mod entry;
mod files;
mod lock;
mod retention;
mod room;

use std::collections::{BTreeMap, BTreeSet};
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
pub use files::{Folder, Kept, MAX_PROFILE, Sealed};
pub use lock::Lock;
pub use room::Room;

use crate::pprof;
#[cfg(test)]
use crate::profile::Profile;
use crate::store::{self, Journal, Records};

/// The index, in the state directory.
const INDEX: &str = "index";
/// Beside it, the profiles.
const PROFILES: &str = "profiles";
/// An index that could not be read, aside: it may say what nothing else does.
const ASIDE: &str = "index.unreadable";
/// Lines of the index that name nothing any more, before it is written anew: as many as name something and a few, but no more.
const FEW_DEAD: usize = 16;
const MAX_DEAD: usize = 1000;

/// A line of the index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// A profile has been written.
    Kept(Box<Entry>),
    /// A profile is removed.
    Removed(Id),
}

/// Most bytes and greatest age of what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// All files together.
    pub bytes: u64,
    /// Of each.
    pub age: Duration,
}

/// Something could not be kept, or read back.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be used.
    #[error("{what} {path} failed")]
    State {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is another daemon's.
    #[error("another jjleak daemon keeps its profiles there")]
    Taken,
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] store::Error),
    /// It would not fit, whatever else was removed for it.
    #[error(
        "it takes {bytes} bytes with its flame graph, which is more than state.max_bytes leaves for profiles, {most}"
    )]
    TooLarge {
        /// What it takes.
        bytes: u64,
        /// What there may be.
        most: u64,
    },
    /// The file is not what was written.
    #[error("{0} is damaged: its checksum is another")]
    Damaged(Id),
    /// The file holds no profile.
    #[error("{0} cannot be read")]
    Unreadable(Id, #[source] pprof::Error),
    /// What was asked for is no ID.
    #[error("it is no name of a profile")]
    NoId,
    /// Nothing has this ID.
    #[error("nothing is kept as {0}")]
    Unknown(Id),
}

/// What opening the history has mended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mended {
    /// Lines of the index that were torn or damaged.
    pub lines: usize,
    /// Profiles that were not in the index.
    pub adopted: usize,
    /// Files with the name of a profile that cannot be read: by this version, or now. They are left alone.
    pub unread: usize,
    /// Files that a daemon left which was killed while it wrote or removed them. They are removed.
    pub leftovers: usize,
    /// The index could not be read at all. It is aside, and another was made of the profiles.
    pub rebuilt: bool,
}

/// What is kept.
#[derive(Debug)]
pub struct History {
    folder: Folder,
    journal: Journal,
    entries: BTreeMap<Id, Entry>,
    /// Bytes of files that have the name of a profile and cannot be read. They go when they are too old or too much, as all do.
    unread: BTreeMap<Id, u64>,
    /// The index that could not be read, and its bytes.
    aside: Option<(PathBuf, u64)>,
    dead: usize,
    clock: Clock,
    /// Most bytes of all, and how many of them are promised to profiles that are being written.
    most: u64,
    promised: Arc<AtomicU64>,
    /// Profiles that could not be kept since the daemon began.
    lost: u64,
    /// Why the last one could not.
    trouble: Option<String>,
}

impl History {
    /// Opens what is kept in a state directory, or begins it. Nobody else may have it open: see [`Lock`].
    pub fn open(directory: &Path) -> Result<(Self, Mended), Error> {
        let folder = directory.join(PROFILES);
        fs::create_dir_all(&folder).map_err(state("creating", &folder))?;
        let index = directory.join(INDEX);
        let aside = directory.join(ASIDE);
        let (journal, found, rebuilt) = open_index(&index, &aside)?;
        let mut mended = Mended { lines: found.damaged, rebuilt, ..Mended::default() };
        let aside = fs::metadata(&aside).ok().map(|about| (aside, about.len()));
        let mut history = Self {
            folder: Folder::new(folder),
            journal,
            entries: BTreeMap::new(),
            unread: BTreeMap::new(),
            aside,
            dead: 0,
            clock: Clock::default(),
            most: u64::MAX,
            promised: Arc::default(),
            lost: 0,
            trouble: None,
        };
        for line in found.records {
            match line {
                Line::Kept(entry) => drop(history.entries.insert(entry.id.clone(), *entry)),
                Line::Removed(id) => {
                    history.entries.remove(&id);
                    history.dead += 2;
                }
            }
        }
        mended.leftovers = store::discard_left(directory).map_err(state("reading", directory))?;
        let folder = history.folder.as_path();
        mended.leftovers += store::discard_left(folder).map_err(state("reading", folder))?;
        history.compare_with_files(&mut mended)?;
        history.compact();
        Ok((history, mended))
    }

    /// What is kept, the oldest first.
    #[must_use]
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.entries.values()
    }

    /// What is kept under an ID.
    #[must_use]
    pub fn get(&self, id: &Id) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// Bytes of all files, those of the index among them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let profiles = self.entries.values().map(Entry::bytes).chain(self.unread.values().copied());
        profiles.sum::<u64>() + self.index_bytes()
    }

    fn index_bytes(&self) -> u64 {
        self.journal.bytes() + self.aside.as_ref().map_or(0, |(_, bytes)| *bytes)
    }

    /// How many profiles could not be kept since the daemon began, and why the last one could not, unless one could since.
    #[must_use]
    pub fn trouble(&self) -> (u64, Option<&str>) {
        (self.lost, self.trouble.as_deref())
    }

    /// Enters a profile for which [room was made](Self::make_room) and whose files have been written, or that they could not be.
    pub fn enter(&mut self, sealed: Sealed<'_>, room: Room, written: Result<(), Error>) -> Result<Id, Error> {
        // It is its own now, or is not needed.
        drop(room);
        let kept = written.and_then(|()| self.add(sealed.entry));
        self.note(kept)
    }

    /// Notes whether a profile could be kept.
    fn note<T>(&mut self, kept: Result<T, Error>) -> Result<T, Error> {
        match &kept {
            Ok(_) => self.trouble = None,
            Err(error) => {
                self.lose(crate::cli::chain(error));
            }
        }
        kept
    }

    /// Notes that a profile is lost, and why.
    pub fn lose(&mut self, why: String) {
        self.lost += 1;
        self.trouble = Some(why);
    }

    fn add(&mut self, entry: Entry) -> Result<Id, Error> {
        let lines = [Line::Kept(Box::new(entry.clone()))];
        if let Err(error) = self.journal.append(&lines).map_err(state("writing", self.folder.as_path())) {
            self.folder.remove(&entry.id);
            return Err(error);
        }
        let id = entry.id.clone();
        self.entries.insert(id.clone(), entry);
        Ok(id)
    }

    /// Keeps a profile.
    #[cfg(test)]
    pub(crate) fn keep(&mut self, profile: &Profile, entry: Entry, picture: &[u8]) -> Result<Id, Error> {
        let sealed = Sealed::of(profile, entry, picture)?;
        let room = self.make_room(&sealed)?;
        let written = room.folder().write(&sealed);
        self.enter(sealed, room, written)
    }

    /// The file of a profile, to be opened without the history.
    pub fn profile(&self, id: &Id) -> Result<Kept, Error> {
        let entry = self.get(id).ok_or_else(|| Error::Unknown(id.clone()))?;
        Ok(Kept { path: self.folder.path(id, EXTENSION), entry: entry.clone() })
    }

    /// The flame graph that was drawn of a profile: where it is.
    pub fn picture(&self, id: &Id) -> Result<PathBuf, Error> {
        let id = self.get(id).map(|entry| &entry.id).ok_or_else(|| Error::Unknown(id.clone()))?;
        Ok(self.folder.path(id, PICTURE))
    }

    /// Writes the index without what is not there any more.
    fn compact(&mut self) {
        if self.dead == 0 {
            return;
        }
        let lines: Vec<_> = self.entries.values().map(|entry| Line::Kept(Box::new(entry.clone()))).collect();
        match self.journal.rewrite(lines.iter()) {
            Ok(()) => self.dead = 0,
            // It holds for longer.
            Err(error) => tracing::warn!("the index cannot be written anew: {}", crate::cli::chain(&error)),
        }
    }

    /// Takes in what is there and not in the index, and forgets what is not there.
    fn compare_with_files(&mut self, mended: &mut Mended) -> Result<(), Error> {
        let (mut there, mut pictures) = (BTreeSet::new(), BTreeSet::new());
        for file in fs::read_dir(self.folder.as_path()).map_err(state("reading", self.folder.as_path()))? {
            // What is not listed would count as gone.
            let file = file.map_err(state("reading", self.folder.as_path()))?;
            let name = file.file_name().to_string_lossy().into_owned();
            let id =
                name.strip_suffix(EXTENSION).or(name.strip_suffix(PICTURE)).and_then(|id| id.parse().ok());
            let Some(id): Option<Id> = id else { continue };
            if name.ends_with(EXTENSION) {
                there.insert(id)
            } else {
                pictures.insert(id)
            };
        }
        // A picture says nothing that its profile does not, and is written before it and removed after it.
        for id in pictures.difference(&there) {
            mended.leftovers += usize::from(fs::remove_file(self.folder.path(id, PICTURE)).is_ok());
        }
        let known: BTreeSet<Id> = self.entries.keys().cloned().collect();
        for id in known.difference(&there) {
            self.entries.remove(id);
            self.dead += 1;
        }
        for id in there.difference(&known) {
            match self.adopt(id) {
                Ok(entry) => {
                    mended.adopted += 1;
                    // Without room for it in the index, it is found at the next start again.
                    let _ = self.journal.append(&[Line::Kept(Box::new(entry.clone()))]);
                    self.entries.insert(id.clone(), entry);
                }
                // It may be there for a newer version, or be readable again at the next start: it is not ours to remove.
                Err(error) => {
                    tracing::warn!("a profile is left aside: {}", crate::cli::chain(&error));
                    mended.unread += 1;
                    self.unread.insert(id.clone(), self.file_bytes(id));
                }
            }
        }
        Ok(())
    }

    fn adopt(&self, id: &Id) -> Result<Entry, Error> {
        let path = self.folder.path(id, EXTENSION);
        let bytes = fs::read(&path).map_err(state("reading", &path))?;
        let profile = pprof::read_within(&bytes, MAX_PROFILE)
            .map_err(|error| Error::Unreadable(id.clone(), error))?
            .profile;
        let picture = fs::read(self.folder.path(id, PICTURE)).unwrap_or_default();
        let mut entry = Entry::of(id.clone(), &profile, "found without an entry in the index");
        entry.seal(&bytes, &picture);
        Ok(entry)
    }

    /// Bytes of the files that are there under a name.
    fn file_bytes(&self, id: &Id) -> u64 {
        let bytes = |extension| fs::metadata(self.folder.path(id, extension)).map_or(0, |about| about.len());
        bytes(EXTENSION) + bytes(PICTURE)
    }
}

/// Opens the index; one that is too large to be one is put aside, and another begun. Whether it was.
fn open_index(index: &Path, aside: &Path) -> Result<(Journal, Records<Line>, bool), Error> {
    let opening = || state("opening", index);
    match Journal::open(index) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            fs::rename(index, aside).map_err(state("renaming", index))?;
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
