//! Reads saved profiles: from files, stdin and servers, plain or compressed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use flate2::bufread::MultiGzDecoder;
use jiff::Timestamp;
use ruzstd::decoding::StreamingDecoder;

use super::saved_series::{Instance, SavedProfile, SavedSeries};
use super::{Naming, fetch, heap_profile, named_profile, saved_names};
use crate::heap_files;
use crate::notices::{Progress, print};
use crate::pprof::{self, Reading};
use crate::processes::FileSources;
use crate::processes::opener::open_regular;
use crate::symbolize::StackNames;

/// Maximum size of a file; a compressed profile is much smaller than its content.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Maximum size of a profile, decompressed.
const MAX_CONTENT_BYTES: u64 = 1 << 30;

/// Maximum number of remarks that are printed: a source may have another for each profile.
const MAX_PRINTED: usize = 256;

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
    /// The file is a damaged heap profile in text.
    #[error("{}", .0.display())]
    Heap(PathBuf, #[source] heap_files::Error),
    /// The profile does not say which thread allocated.
    #[error("{} does not record which thread allocated", .0.display())]
    WithoutThreads(PathBuf),
}

/// Reads profiles. Names of code that one has are kept for the next.
pub(super) struct Reader {
    naming: Naming,
    sources: FileSources,
    names: StackNames,
    /// Maximum size of a profile, decompressed.
    max_bytes: u64,
    /// True to open regular files only, within a time limit.
    only_regular: bool,
    /// The source of all profiles, if those that do not say which process they are of are of one.
    of_one: Option<PathBuf>,
    /// Remarks that were printed.
    printed: BTreeSet<String>,
}

impl Reader {
    pub(super) fn new(naming: &Naming) -> Self {
        Self {
            naming: naming.clone(),
            sources: naming.sources(),
            names: heap_profile::names(),
            max_bytes: MAX_CONTENT_BYTES,
            only_regular: false,
            of_one: None,
            printed: BTreeSet::new(),
        }
    }

    /// Reads the profiles of a source up to this size, whatever others put in the place of a file.
    pub(super) fn of_source(source: &Path, naming: &Naming, max_bytes: u64) -> Self {
        Self { max_bytes, only_regular: true, of_one: Some(source.to_owned()), ..Self::new(naming) }
    }

    /// Reads a profile, and prints notes on its quality.
    pub(super) fn read(&mut self, path: &Path) -> Result<SavedProfile, SavedFileError> {
        let shown = path.display();
        let progress = Progress::start(&format!("reading {shown}"));
        let failed = |error| SavedFileError::Read(path.to_owned(), error);
        let max_bytes = self.max_bytes.min(MAX_FILE_BYTES);
        let (mut file, taken_at) = self.open(path).map_err(failed)?;
        let begin = file.fill_buf().map_err(failed)?;
        if begin.starts_with(&ZSTD) {
            let decoder = StreamingDecoder::new(file).map_err(|error| failed(io::Error::other(error)))?;
            file = Box::new(BufReader::new(decoder));
        }
        let begin = file.fill_buf().map_err(failed)?;
        let (mut saved, remarks) = if is_text(begin) {
            self.text(file, path, taken_at)?
        } else if begin.starts_with(&GZIP) {
            let bytes = content(file, max_bytes).map_err(failed)?;
            let mut text = BufReader::new(MultiGzDecoder::new(&bytes[..]));
            // A damaged file is reported by the reader of the other format.
            if text.fill_buf().is_ok_and(is_text) {
                self.text(text, path, taken_at)?
            } else {
                self.pprof(&bytes, path, max_bytes)?
            }
        } else {
            self.pprof(&content(file, max_bytes).map_err(failed)?, path, max_bytes)?
        };
        drop(progress);
        for remark in remarks {
            self.print_once(&remark, &format!("{shown}: {remark}"));
        }
        let process = &mut saved.profile.process;
        if process.comm.is_empty() {
            let name = if fetch::is_address(path) { None } else { path.file_name() };
            process.comm = name.unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        }
        if let (None, Some(source)) = (&saved.instance, &self.of_one) {
            if saved.profile.taken_at == Timestamp::default() {
                (saved.profile.started_at, saved.profile.taken_at) = (taken_at, taken_at);
            }
            saved.instance = Some(Instance::Dumped { pid: 0, exe: source.clone(), address: 0 });
        }
        Ok(saved)
    }

    /// Reads a profile for a series, with threads separated or not.
    pub(super) fn add_to(
        &mut self,
        series: &mut SavedSeries,
        place: usize,
        path: &Path,
        threads: bool,
    ) -> Result<(), SavedFileError> {
        let SavedProfile { profile, instance } = self.read(path)?;
        if threads && !profile.coverage.threads {
            return Err(SavedFileError::WithoutThreads(path.to_owned()));
        }
        let profile = if threads { profile } else { profile.across_threads() };
        if !series.add(place, SavedProfile { profile, instance }) {
            let path = path.display();
            let remark = format!(
                "left out: {path} is not newer than another profile of its process (cp -p keeps the times)"
            );
            self.print_once(&remark, &remark);
        }
        Ok(())
    }

    /// Prints a line, unless it has printed one with this remark: the next profile of a program has the same.
    fn print_once(&mut self, remark: &str, line: &str) {
        if self.printed.len() < MAX_PRINTED && self.printed.insert(remark.to_owned()) {
            print(line);
        }
    }

    /// Opens a file or requests it from a server; also returns the time of its last change.
    fn open(&self, path: &Path) -> io::Result<(Box<dyn BufRead>, Timestamp)> {
        if let Some(address) = path.to_str().filter(|_| fetch::is_address(path)) {
            return Ok((fetch::get(address, &self.naming.headers)?, Timestamp::now()));
        }
        if path == Path::new(STDIN) {
            return Ok((Box::new(BufReader::new(io::stdin())), Timestamp::now()));
        }
        let file = if self.only_regular { open_regular(path)? } else { File::open(path)? };
        let changed = file.metadata()?.modified().unwrap_or_else(|_| SystemTime::now());
        Ok((Box::new(BufReader::new(file)), Timestamp::try_from(changed).unwrap_or_default()))
    }

    fn text(
        &mut self,
        file: impl BufRead,
        path: &Path,
        taken_at: Timestamp,
    ) -> Result<(SavedProfile, Vec<String>), SavedFileError> {
        let mut within = BufReader::new(Within { file, left: self.max_bytes, most: self.max_bytes });
        let read = match within.fill_buf() {
            Ok(begin) if heap_files::is_heap_file(begin) => {
                heap_profile::read(within, path, taken_at, &self.naming, &self.sources, &mut self.names)
            }
            Ok(_) => named_profile::read(within, taken_at),
            Err(error) => Err(error.into()),
        };
        read.map_err(|error| SavedFileError::Heap(path.to_owned(), error))
    }

    fn pprof(
        &mut self,
        bytes: &[u8],
        path: &Path,
        max_bytes: u64,
    ) -> Result<(SavedProfile, Vec<String>), SavedFileError> {
        let Reading { mut profile, mut remarks, mapped } = pprof::read_within(bytes, max_bytes)
            .map_err(|error| SavedFileError::Parse(path.to_owned(), error))?;
        remarks.extend(saved_names::add(&mut profile, &mapped, &self.sources, &mut self.names));
        let (pid, start_time) = (profile.process.pid, profile.process.start_time);
        // Profiles of other tools do not say which process they are of.
        let instance = (pid != 0).then_some(Instance::Process { pid, start_time });
        Ok((SavedProfile { profile, instance }, remarks))
    }
}

/// A file that cannot be read beyond a size.
struct Within<F> {
    file: F,
    left: u64,
    most: u64,
}

impl<F: Read> Read for Within<F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(into)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| too_large(self.most))?;
        Ok(read)
    }
}

fn is_text(begin: &[u8]) -> bool {
    heap_files::is_heap_file(begin) || heap_files::is_named_file(begin)
}

fn too_large(most: u64) -> io::Error {
    io::Error::other(format!("it has more than {most} bytes"))
}

fn content(source: impl Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_large(max_bytes));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::render::sample;

    #[test]
    fn profiles_of_a_source_that_name_no_process_are_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut profile = sample::profile();
        profile.process.pid = 0;
        let mut files = Vec::new();
        for second in [1_000_000_000, 1_000_000_060] {
            profile.taken_at = Timestamp::from_second(second).unwrap();
            let path = folder.path().join(second.to_string());
            pprof::write(&profile, &mut File::create(&path).unwrap()).unwrap();
            files.push(path);
        }
        let processes = |mut reader: Reader| {
            let mut series = SavedSeries::default();
            for path in &files {
                reader.add_to(&mut series, 0, path, false).unwrap();
            }
            series.into_profiles().len()
        };
        let source = Reader::of_source(folder.path(), &Naming::default(), 1 << 20);
        assert_eq!((processes(source), processes(Reader::new(&Naming::default()))), (1, 2));
    }

    #[test]
    fn the_reader_of_a_source_opens_no_pipe_and_reads_no_large_file() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, large) = (folder.path().join("pipe"), folder.path().join("large"));
        mkfifo(&pipe, Mode::S_IRUSR).unwrap();
        File::create(&large).unwrap().set_len(1 << 40).unwrap();
        let mut reader = Reader::of_source(folder.path(), &Naming::default(), 1 << 20);
        let mut error = |path: &Path| crate::error_chain::chain(&reader.read(path).unwrap_err());
        assert!(error(&pipe).ends_with("it is not a regular file"), "{}", error(&pipe));
        assert!(error(&large).ends_with("it has more than 1048576 bytes"), "{}", error(&large));
    }
}
