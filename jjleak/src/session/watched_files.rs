//! Saved profiles that appear while jjleak runs.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use glob::{Paths, PatternError};

use super::Naming;
use super::saved_reader::Reader;
use super::saved_series::SavedSeries;
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
        glob::glob(&pattern)?;
        Ok(Self {
            pattern,
            threads,
            reader: Reader::new(naming),
            series: SavedSeries::default(),
            known: BTreeMap::new(),
        })
    }

    /// Reads the files that are new or have changed, oldest first. Returns the profiles of all processes so far; `None` if there is
    /// nothing new. A file that has changed since the last call may still be written: it is read by a later one.
    pub fn read_new(&mut self) -> Option<Vec<Profile>> {
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
        let mut is_new = false;
        for (_, path) in ready {
            match self.reader.add_to(&mut self.series, 0, &path, self.threads) {
                Ok(()) => is_new = true,
                Err(error) => print(&format!("left out: {}", chain(&error))),
            }
        }
        is_new.then(|| self.series.profiles())
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
