//! Follows a perf map as the process writes to it.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::file::{self, MAX_BYTES, Place};
use super::{NamedRanges, Refusal};
use crate::processes::Process;

/// Bytes before the end of what has been read that are compared when there is more: they tell a file that has grown from
/// one that was written anew. A line that came or went further up would have moved them.
const COMPARED: u64 = 4096;
/// A look may take so large a part of the time since the last one, as its inverse.
const REST: u32 = 20;
/// After a look that took so long, nobody looks before it has rested, however much it is needed: a map of the largest size
/// that is written anew all the time is read in about this time.
const LONG: Duration = Duration::from_secs(1);
/// Bytes that are read at a time.
const BUFFER: usize = 128 << 10;

/// A process's perf map.
#[derive(Debug, Default)]
pub struct PerfMap {
    names: NamedRanges,
    place: Option<Place>,
    read: Option<LastRead>,
    /// When it was looked at last, and how long that took.
    last: Option<(Instant, Duration)>,
    refused: Option<Refusal>,
}

/// What has been read of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastRead {
    /// Device and inode.
    file: (u64, u64),
    /// Its size, and when it was last written to, in seconds and nanoseconds.
    state: (u64, i64, i64),
    /// Up to where whole lines have been read.
    offset: u64,
    /// The bytes before that.
    tail: Vec<u8>,
    /// What stands behind, without an end of line.
    unfinished: Vec<u8>,
}

/// What a look at the file has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// So much time has gone into looking lately that nobody has looked now.
    Resting,
    /// There is none, or it is what it was.
    Same,
    /// Names have come, or changed.
    Changed,
    /// It is not read, for the first time for this reason.
    Refused(Refusal),
}

impl PerfMap {
    /// Where a process's perf map is, as it sees it itself.
    #[must_use]
    pub fn path(process: &Process) -> PathBuf {
        file::path(process)
    }

    /// Why what is in the place of a process's perf map would not be read, if so.
    #[must_use]
    pub fn refusal(process: &Process) -> Option<Refusal> {
        Place::of(process).and_then(|place| place.open()).err()
    }

    /// Holds on to the place where the process's map is, so that it can be read when the process is over.
    pub fn hold(&mut self, process: &Process) {
        if self.place.is_none() {
            let place = Place::of(process);
            let place = place.inspect_err(|error| tracing::debug!(%error, "a perf map cannot be looked for"));
            self.place = place.ok();
        }
    }

    /// The name of the code at an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Rc<str>> {
        self.names.find(address)
    }

    /// What has been read.
    #[must_use]
    pub const fn names(&self) -> &NamedRanges {
        &self.names
    }

    /// Looks whether there is more, unless so much time has gone into that lately that it can wait: if it may, or if a
    /// look takes long.
    pub fn look(&mut self, process: &Process, may_wait: bool) -> Outcome {
        if self.last.is_some_and(|(at, took)| rests(at.elapsed(), took, may_wait)) {
            return Outcome::Resting;
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

    /// Takes in what is new in the file that was found.
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

    /// Reads what is new; whether anything was.
    fn read(&mut self, file: &File, metadata: &Metadata) -> io::Result<bool> {
        let id = (metadata.dev(), metadata.ino());
        let state = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        if let Some(read) = self.read.as_mut().filter(|read| (read.file, read.state) == (id, state)) {
            // A last line without its end that stays as it is was not just being written.
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

    /// Takes in the lines from an offset on. Where the last whole one ends, and what is behind it.
    fn add_lines(&mut self, mut file: &File, mut offset: u64) -> io::Result<(u64, Vec<u8>)> {
        file.seek(SeekFrom::Start(offset))?;
        // It can grow while it is read.
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

/// Whether a map is left alone that was looked at so long ago, which took so long.
pub(super) fn rests(ago: Duration, took: Duration, may_wait: bool) -> bool {
    (may_wait || took > LONG) && ago < took * REST
}

/// Whether what was read of a file is still there, so that only what follows is new.
fn has_grown(file: &File, read: &LastRead, length: u64) -> bool {
    let from = read.offset - read.tail.len() as u64;
    length > read.state.0 && read_at(file, from, read.tail.len()).is_ok_and(|tail| tail == read.tail)
}

/// So many bytes from an offset on; an error if there are fewer.
fn read_at(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}
