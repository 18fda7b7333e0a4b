//! Follows a perf map as the process appends to it.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::file::{self, MAX_BYTES, Place};
use super::{NamedRanges, Refusal};
use crate::processes::Process;

/// Bytes before the end of the read part that are compared when the file has grown. They distinguish appended
/// from rewritten files: an insertion further up would have moved them.
const COMPARED: u64 = 4096;
/// Minimum ratio of the time since the last read to its duration.
const MIN_PAUSE_RATIO: u32 = 20;
/// Duration from which on a read is throttled even if names are needed. A map of the maximum size that is
/// constantly rewritten takes about this long.
const MAX_UNTHROTTLED: Duration = Duration::from_secs(1);
/// Bytes per read.
const BUFFER: usize = 128 << 10;

/// A process's perf map.
#[derive(Debug, Default)]
pub struct PerfMap {
    names: NamedRanges,
    place: Option<Place>,
    read: Option<LastRead>,
    /// Time and duration of the last read.
    last: Option<(Instant, Duration)>,
    refused: Option<Refusal>,
}

/// State of the last read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastRead {
    /// Device and inode.
    file: (u64, u64),
    /// Size and modification time, in seconds and nanoseconds.
    state: (u64, i64, i64),
    /// Offset after the last complete line.
    offset: u64,
    /// The bytes before that.
    tail: Vec<u8>,
    /// Bytes after it: a line without its newline.
    unfinished: Vec<u8>,
}

/// Result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Skipped: recent reads took too long.
    Throttled,
    /// No file, or an unchanged one.
    Same,
    /// Names were added or changed.
    Changed,
    /// The file is refused; reported once per reason.
    Refused(Refusal),
}

impl PerfMap {
    /// Path of the perf map in the process's own view.
    #[must_use]
    pub fn path(process: &Process) -> PathBuf {
        file::path(process)
    }

    /// The reason why the file at the path of the perf map would be refused, if any.
    #[must_use]
    pub fn refusal(process: &Process) -> Option<Refusal> {
        Place::of(process).and_then(|place| place.open()).err()
    }

    /// Keeps the location open, so that the map can be read after the process has ended.
    pub fn hold(&mut self, process: &Process) {
        if self.place.is_none() {
            let place = Place::of(process);
            let place = place.inspect_err(|error| tracing::debug!(%error, "cannot locate the perf map"));
            self.place = place.ok();
        }
    }

    /// The name of the code at an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Rc<str>> {
        self.names.find(address)
    }

    /// All names read so far.
    #[must_use]
    pub const fn names(&self) -> &NamedRanges {
        &self.names
    }

    /// Reads what is new. It is skipped if recent reads took much of the time and this one `may_wait`, or if
    /// reads take long.
    pub fn update(&mut self, process: &Process, may_wait: bool) -> Outcome {
        if self.last.is_some_and(|(at, took)| is_throttled(at.elapsed(), took, may_wait)) {
            return Outcome::Throttled;
        }
        let begun = Instant::now();
        self.hold(process);
        let found = match &self.place {
            Some(place) => place.open(),
            None => Ok(None),
        };
        let outcome = self.refresh(found);
        self.last = Some((Instant::now(), begun.elapsed()));
        outcome
    }

    /// Reads what is new in the opened file.
    pub(super) fn refresh(&mut self, found: Result<Option<(File, Metadata)>, Refusal>) -> Outcome {
        let read = found.and_then(|found| {
            let Some((file, metadata)) = found else { return Ok(false) };
            self.read(&file, &metadata).map_err(|error| Refusal::System(error.to_string()))
        });
        match read {
            Ok(false) => Outcome::Same,
            Ok(true) => Outcome::Changed,
            Err(refusal) if self.refused.as_ref() == Some(&refusal) => Outcome::Same,
            Err(refusal) => {
                self.refused = Some(refusal.clone());
                Outcome::Refused(refusal)
            }
        }
    }

    /// Reads what is new. Returns whether anything was.
    fn read(&mut self, file: &File, metadata: &Metadata) -> io::Result<bool> {
        let id = (metadata.dev(), metadata.ino());
        let state = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        if let Some(read) = self.read.as_mut().filter(|read| (read.file, read.state) == (id, state)) {
            // An unfinished last line that has not changed is complete.
            let unfinished = std::mem::take(&mut read.unfinished);
            self.names.add_text(&unfinished);
            return Ok(!unfinished.is_empty());
        }
        let known = self.read.take().filter(|read| read.file == id && has_grown(file, read, state.0));
        let from = known.map_or(0, |read| read.offset);
        if from == 0 {
            self.names = NamedRanges::default();
        }
        let (offset, unfinished) = self.add_lines(file, from)?;
        let tail_from = offset.saturating_sub(COMPARED);
        let tail = read_at(file, tail_from, usize::try_from(offset - tail_from).unwrap_or_default())?;
        self.read = Some(LastRead { file: id, state, offset, tail, unfinished });
        Ok(true)
    }

    /// Adds the lines from an offset on. Returns the offset after the last complete line, and the bytes after
    /// it.
    fn add_lines(&mut self, mut file: &File, mut offset: u64) -> io::Result<(u64, Vec<u8>)> {
        file.seek(SeekFrom::Start(offset))?;
        // The file can grow while it is read.
        let mut lines = BufReader::with_capacity(BUFFER, file.take(MAX_BYTES.saturating_sub(offset)));
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = lines.read_until(b'\n', &mut line)?;
            if length == 0 || line.last() != Some(&b'\n') {
                return Ok((offset, line));
            }
            offset += length as u64;
            self.names.add_text(&line);
        }
    }
}

/// Returns whether to skip a read, given the time since the last one and its duration.
pub(super) fn is_throttled(ago: Duration, took: Duration, may_wait: bool) -> bool {
    (may_wait || took > MAX_UNTHROTTLED) && ago < took * MIN_PAUSE_RATIO
}

/// Returns whether the file still begins with what was read, so that only the rest is new.
fn has_grown(file: &File, read: &LastRead, length: u64) -> bool {
    let from = read.offset - read.tail.len() as u64;
    length > read.state.0 && read_at(file, from, read.tail.len()).is_ok_and(|tail| tail == read.tail)
}

/// Reads exactly `length` bytes from an offset on; fewer are an error.
fn read_at(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}
