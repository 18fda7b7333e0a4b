//! Saved profiles that appear while jjleak runs.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use glob::{Paths, PatternError};

use super::saved_reader::Reader;
use super::saved_series::SavedSeries;
use super::{Naming, SavedFileError};
use crate::error_chain::chain;
use crate::notices::print;
use crate::profile::Profile;

/// The files that match a pattern, each read once it is complete.
pub struct WatchedFiles {
    pattern: String,
    threads: bool,
    reader: Reader,
    series: SavedSeries,
    /// All files that match, as they were last found.
    known: BTreeMap<PathBuf, Known>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    changed: SystemTime,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    version: Version,
    is_read: bool,
}

impl WatchedFiles {
    /// No file is read yet. Stacks are separated by thread if `threads` is true.
    pub fn new(pattern: String, threads: bool, naming: &Naming) -> Result<Self, PatternError> {
        Self::with(pattern, threads, Reader::new(naming))
    }

    pub(super) fn with(pattern: String, threads: bool, reader: Reader) -> Result<Self, PatternError> {
        glob::glob(&pattern)?;
        Ok(Self { pattern, threads, reader, series: SavedSeries::default(), known: BTreeMap::new() })
    }

    /// The profiles of all processes so far, if files are new or have changed; `None` if there is nothing new. Prints what cannot be
    /// read.
    pub fn read_new(&mut self) -> Option<Vec<Profile>> {
        let (read, failed) = self.read();
        for error in &failed {
            print(&format!("left out: {}", chain(error)));
        }
        (read > 0).then(|| self.series.profiles())
    }

    /// Reads the files that are new or have changed, oldest first. Returns their number, and those that cannot be read. A file that
    /// has changed since the last call may still be written: it is read by a later one.
    pub(super) fn read(&mut self) -> (usize, Vec<SavedFileError>) {
        let mut ready: Vec<(SystemTime, PathBuf)> = Vec::new();
        let before = std::mem::take(&mut self.known);
        for path in self.matching() {
            let Some(version) = Version::of(&path) else { continue };
            let known = before.get(&path).filter(|known| known.version == version);
            let is_read = known.is_some_and(|known| known.is_read);
            if known.is_some() && !is_read {
                ready.push((version.changed, path.clone()));
            }
            self.known.insert(path, Known { version, is_read: is_read || known.is_some() });
        }
        ready.sort();
        let (mut read, mut failed) = (0, Vec::new());
        for (_, path) in ready {
            match self.reader.add_to(&mut self.series, 0, &path, self.threads) {
                Ok(()) => read += 1,
                Err(error) => failed.push(error),
            }
        }
        (read, failed)
    }

    pub(super) const fn series(&mut self) -> &mut SavedSeries {
        &mut self.series
    }

    fn matching(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let paths = glob::glob(&self.pattern).ok();
        paths.into_iter().flat_map(Paths::into_iter).filter_map(Result::ok)
    }
}

impl Version {
    fn of(path: &Path) -> Option<Self> {
        let metadata = path.metadata().ok().filter(Metadata::is_file)?;
        Some(Self { changed: metadata.modified().ok()?, bytes: metadata.len() })
    }
}
