//! Saved profiles, as a source.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::bufread::MultiGzDecoder;
use jiff::Timestamp;
use ruzstd::decoding::StreamingDecoder;

use super::{Error, Header, Naming, Source, fetch, heap_profile};
use crate::analyze::Pace;
use crate::heap_files;
use crate::notices::{Progress, print};
use crate::pprof::{self, Reading};
use crate::profile::{Moment, Profile};

/// Maximum size of a file; a compressed profile is much smaller than its content.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Maximum size of a profile in text, decompressed.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// First bytes of compressed files (RFC 1952, 2.3.1; RFC 8878, 3.1.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

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
    /// The file is a damaged heap profile of an allocator.
    #[error("{}", .0.display())]
    Heap(PathBuf, #[source] heap_files::Error),
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
    /// Sources of names besides the files that a heap profile lists.
    pub naming: Naming,
}

impl SavedFiles {
    /// Reads a profile, and prints notes on its quality.
    pub fn read(path: &Path, naming: &Naming) -> Result<Profile, SavedFileError> {
        let shown = path.display();
        let progress = Progress::start(&format!("reading {shown}"));
        let failed = |error| SavedFileError::Read(path.to_owned(), error);
        let (mut file, taken_at) = open(path, &naming.headers).map_err(failed)?;
        let begin = file.fill_buf().map_err(failed)?;
        if begin.starts_with(&ZSTD) {
            let decoder = StreamingDecoder::new(file).map_err(|error| failed(io::Error::other(error)))?;
            file = Box::new(BufReader::new(decoder));
        }
        let begin = file.fill_buf().map_err(failed)?;
        let (mut profile, remarks) = if heap_files::is_heap_file(begin) {
            heap(file, path, taken_at, naming)?
        } else if begin.starts_with(&GZIP) {
            let bytes = content(file).map_err(failed)?;
            let mut text = BufReader::new(MultiGzDecoder::new(&bytes[..]));
            // A damaged file is reported by the reader of the other format.
            if text.fill_buf().is_ok_and(heap_files::is_heap_file) {
                heap(text, path, taken_at, naming)?
            } else {
                pprof(&bytes, path)?
            }
        } else {
            pprof(&content(file).map_err(failed)?, path)?
        };
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
            let profile = Self::read(path, &self.naming)?;
            if self.threads && !profile.coverage.threads {
                return Err(SavedFileError::WithoutThreads(path.clone()).into());
            }
            profiles.push(if self.threads { profile } else { profile.across_threads() });
        }
        Ok(last_of_each(profiles))
    }
}

/// Opens a file or requests it from a server; also returns the time of its last change.
fn open(path: &Path, headers: &[Header]) -> io::Result<(Box<dyn BufRead>, Timestamp)> {
    if let Some(address) = path.to_str().filter(|_| fetch::is_address(path)) {
        return Ok((fetch::get(address, headers)?, Timestamp::now()));
    }
    if path == Path::new(STDIN) {
        return Ok((Box::new(BufReader::new(io::stdin())), Timestamp::now()));
    }
    let file = File::open(path)?;
    let changed = file.metadata()?.modified().unwrap_or_else(|_| SystemTime::now());
    Ok((Box::new(BufReader::new(file)), Timestamp::try_from(changed).unwrap_or_default()))
}

fn heap(
    file: impl BufRead,
    path: &Path,
    taken_at: Timestamp,
    naming: &Naming,
) -> Result<(Profile, Vec<String>), SavedFileError> {
    let within = BufReader::new(file.take(MAX_TEXT_BYTES));
    heap_profile::read(within, path, taken_at, naming)
        .map_err(|error| SavedFileError::Heap(path.to_owned(), error))
}

fn pprof(bytes: &[u8], path: &Path) -> Result<(Profile, Vec<String>), SavedFileError> {
    let Reading { profile, remarks } =
        pprof::read(bytes).map_err(|error| SavedFileError::Parse(path.to_owned(), error))?;
    Ok((profile, remarks))
}

fn content(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
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
    let themselves =
        [older, newer].map(|it| Moment { at: it.taken_at, live: it.live(), resident: it.resident });
    let all = older.history.iter().chain(&newer.history).chain(&themselves);
    let sorted: BTreeMap<_, _> = all.map(|moment| (moment.at, *moment)).collect();
    sorted.into_values().collect()
}

/// Returns true if both are of the same process; profiles of other tools do not say.
fn is_same_process(one: &Profile, other: &Profile) -> bool {
    let (one, other) = (&one.process, &other.process);
    one.pid != 0 && (one.pid, one.start_time) == (other.pid, other.start_time)
}
