//! Saved profiles, as a source.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{Error, Source};
use crate::analyze::Pace;
use crate::notices::{Progress, print};
use crate::pprof::{self, Reading};
use crate::profile::{Moment, Profile};

/// Maximum size of a file; a compressed profile is much smaller than its content.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// File name that means stdin.
const STDIN: &str = "-";

/// Reason why a saved profile is not used.
#[derive(Debug, thiserror::Error)]
pub enum SavedFileError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The file is no profile.
    #[error("{}", .0.display())]
    Parse(PathBuf, #[source] pprof::Error),
    /// The profile does not say which thread allocated.
    #[error("{} does not record which thread allocated", .0.display())]
    WithoutThreads(PathBuf),
}

/// Files in pprof's format. Several files of one process are successive reports: the last is its profile, with the history of
/// all.
#[derive(Debug, Clone)]
pub struct SavedFiles {
    /// The files; `-` is stdin.
    pub paths: Vec<PathBuf>,
    /// True to distinguish threads.
    pub threads: bool,
}

impl SavedFiles {
    /// Reads a profile, and prints notes on its quality.
    pub fn read(path: &Path) -> Result<Profile, SavedFileError> {
        let shown = path.display();
        let progress = Progress::start(&format!("reading {shown}"));
        let bytes = content(path).map_err(|error| SavedFileError::Read(path.to_owned(), error))?;
        let Reading { mut profile, remarks } =
            pprof::read(&bytes).map_err(|error| SavedFileError::Parse(path.to_owned(), error))?;
        drop(progress);
        for remark in remarks {
            print(&format!("{shown}: {remark}"));
        }
        if profile.process.comm.is_empty() {
            let name = path.file_name().unwrap_or_default();
            profile.process.comm = name.to_string_lossy().into_owned();
        }
        Ok(profile)
    }
}

impl Source for SavedFiles {
    fn profiles(&mut self, _pace: Pace) -> Result<Vec<Profile>, Error> {
        let mut profiles = Vec::new();
        for path in &self.paths {
            let profile = Self::read(path)?;
            if self.threads && !profile.coverage.threads {
                return Err(SavedFileError::WithoutThreads(path.clone()).into());
            }
            profiles.push(if self.threads { profile } else { profile.across_threads() });
        }
        Ok(last_of_each(profiles))
    }
}

fn content(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let source: Box<dyn Read> =
        if path == Path::new(STDIN) { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}

/// The last profile of each process, in the order in which the processes are first named.
fn last_of_each(profiles: Vec<Profile>) -> Vec<Profile> {
    let mut last: Vec<Profile> = Vec::new();
    for profile in profiles {
        match last.iter_mut().find(|other| is_same_process(other, &profile)) {
            Some(other) => {
                let (newer, older) = if other.taken_at <= profile.taken_at {
                    (profile, &*other)
                } else {
                    (other.clone(), &profile)
                };
                let history = together(older, &newer);
                *other = Profile { history, ..newer };
            }
            None => last.push(profile),
        }
    }
    last
}

/// The combined history of both.
fn together(older: &Profile, newer: &Profile) -> Vec<Moment> {
    let themselves = [older, newer].map(|it| Moment { at: it.taken_at, live: it.live() });
    let all = older.history.iter().chain(&newer.history).chain(&themselves);
    let sorted: BTreeMap<_, _> = all.map(|moment| (moment.at, *moment)).collect();
    sorted.into_values().collect()
}

/// Returns true if both are of the same process; profiles of other tools do not say.
fn is_same_process(one: &Profile, other: &Profile) -> bool {
    let (one, other) = (&one.process, &other.process);
    one.pid != 0 && (one.pid, one.start_time) == (other.pid, other.start_time)
}
