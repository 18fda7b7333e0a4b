//! Saved profiles, as a source.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::saved_reader::Reader;
use super::saved_series::SavedSeries;
use super::{Error, Naming, SavedFileError, Source};
use crate::analyze::Pace;
use crate::profile::Profile;

/// Saved profiles: pprof files, and heap profiles of allocators. Several files of one process are successive reports: the last is
/// its profile, with the history of all.
#[derive(Debug, Clone)]
pub struct SavedFiles {
    /// The files; `-` is stdin.
    pub paths: Vec<PathBuf>,
    /// True to distinguish threads.
    pub threads: bool,
    /// Sources of names besides the files that a heap profile lists.
    pub naming: Naming,
}

impl SavedFiles {
    /// Reads a profile, and prints notes on its quality.
    pub fn read(path: &Path, naming: &Naming) -> Result<Profile, SavedFileError> {
        Reader::new(naming).read(path).map(|saved| saved.profile)
    }
}

impl Source for SavedFiles {
    fn profiles(&mut self, _pace: Pace) -> Result<Vec<Profile>, Error> {
        let (mut series, mut reader) = (SavedSeries::default(), Reader::new(&self.naming));
        let mut paths: Vec<_> = self.paths.iter().enumerate().collect();
        paths.sort_by_cached_key(|(_, path)| changed(path));
        for (place, path) in paths {
            reader.add_to(&mut series, place, path, self.threads)?;
        }
        Ok(series.into_profiles())
    }
}

/// Time of the last change of a file; now for what is no file.
fn changed(path: &Path) -> SystemTime {
    path.metadata().and_then(|metadata| metadata.modified()).unwrap_or_else(|_| SystemTime::now())
}
