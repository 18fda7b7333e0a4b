//! Heap profiles that programs write or serve again and again, read for as long as jjleak runs.

use std::path::{Path, PathBuf};

use glob::PatternError;

use super::saved_reader::Reader;
use super::saved_series::SavedSeries;
use super::watched_files::WatchedFiles;
use super::{Naming, SavedFileError, fetch};
use crate::profile::Profile;

/// Maximum number of processes of a source that are kept, with their last profile and history: those with the latest.
pub const MAX_DUMPED: usize = 32;

/// Files that match a pattern, or a server that sends a profile when it is asked.
pub struct DumpSource(Kind);

enum Kind {
    Files(WatchedFiles),
    Server { address: PathBuf, reader: Reader, series: SavedSeries },
}

/// The profiles that are new.
#[derive(Debug, Default)]
pub struct Dumps {
    /// The last profile of each process that has a new one, with verdicts on all of its profiles.
    pub profiles: Vec<Profile>,
    /// Number of profiles read.
    pub read: usize,
    /// Profiles that could not be read.
    pub failed: Vec<SavedFileError>,
}

impl DumpSource {
    /// A pattern of files, or the address of a server. Profiles of more than `max_bytes` are not read.
    pub fn new(from: &str, naming: &Naming, max_bytes: u64) -> Result<Self, PatternError> {
        let address = Path::new(from);
        let reader = Reader::of_source(address, naming, max_bytes);
        Ok(Self(if fetch::is_address(address) {
            Kind::Server { address: address.to_owned(), reader, series: SavedSeries::default() }
        } else {
            Kind::Files(WatchedFiles::with(from.to_owned(), false, reader)?)
        }))
    }

    /// Reads what is new. Blocks.
    pub fn read_new(&mut self) -> Dumps {
        let (read, failed, series) = match &mut self.0 {
            Kind::Files(files) => {
                let (read, failed) = files.read();
                (read, failed, files.series())
            }
            Kind::Server { address, reader, series } => {
                let failed = reader.add_to(series, 0, address, false).err();
                (usize::from(failed.is_none()), Vec::from_iter(failed), series)
            }
        };
        let profiles = series.take_new();
        series.keep_latest(MAX_DUMPED);
        Dumps { profiles, read, failed }
    }
}
