//! Append-only file of records, one per line, each with a checksum. An interrupted write damages no other record.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Error, PendingFile};

/// Hexadecimal digits of a checksum.
const DIGITS: usize = 8;
/// Size limit of a journal to read: records have a few hundred bytes each.
const MAX_BYTES: u64 = 64 << 20;

/// A journal open for appending.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// End of the last complete line, as far as is known.
    length: u64,
    /// True if the last line may be incomplete.
    is_torn: bool,
}

/// Contents of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Records<T> {
    /// Records in the order of writing.
    pub records: Vec<T>,
    /// Number of torn or damaged lines.
    pub damaged: usize,
}

impl Journal {
    /// Opens or creates a journal. Fails with `FileTooLarge` if it exceeds the maximum size of a journal.
    pub fn open<T: DeserializeOwned>(path: &Path) -> io::Result<(Self, Records<T>)> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).append(true).create(true).mode(0o640).open(path)?;
        let length = file.metadata()?.len();
        if length > MAX_BYTES {
            return Err(too_large(length));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let is_torn = bytes.last().is_some_and(|last| *last != b'\n');
        let journal = Self { path: path.to_owned(), file, length, is_torn };
        Ok((journal, parse(&bytes)))
    }

    /// Maximum size in bytes; [`Self::append`] fails beyond it.
    pub const MAX_BYTES: u64 = MAX_BYTES;

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.length
    }

    /// Appends records and syncs once. On failure, such as a full disk, the journal is as before.
    pub fn append(&mut self, records: &[impl Serialize]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut lines = String::new();
        if self.is_torn {
            lines.push('\n');
        }
        for record in records {
            lines.push_str(&line(record)?);
        }
        if self.length + lines.len() as u64 > MAX_BYTES {
            return Err(too_large(self.length + lines.len() as u64));
        }
        let written = self.file.write_all(lines.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.is_torn = false;
                self.length += lines.len() as u64;
            }
            // Truncating needs no space. If it fails nevertheless, the next record begins on a new line.
            Err(_) => self.is_torn |= self.file.set_len(self.length).is_err(),
        }
        written
    }

    /// Replaces all records atomically.
    pub fn rewrite<'a, T: Serialize + 'a>(
        &mut self,
        records: impl Iterator<Item = &'a T>,
    ) -> Result<(), Error> {
        let failed = |source| Error::Write { path: self.path.clone(), source };
        let mut pending = PendingFile::create(&self.path)?;
        for record in records {
            pending.write(line(record).map_err(failed)?.as_bytes())?;
        }
        pending.finish()?;
        let file = OpenOptions::new().read(true).append(true).open(&self.path).map_err(failed)?;
        self.length = file.metadata().map_err(failed)?.len();
        (self.file, self.is_torn) = (file, false);
        Ok(())
    }
}

fn too_large(bytes: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("{bytes} bytes are too many for an index"))
}

/// Size of a record in bytes.
pub fn line_bytes(record: &impl Serialize) -> io::Result<u64> {
    Ok(line(record)?.len() as u64)
}

/// Formats a record as `CHECKSUM JSON\n`. JSON contains no line breaks.
fn line(record: &impl Serialize) -> io::Result<String> {
    let json = serde_json::to_string(record)?;
    Ok(format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Records<T> {
    let mut found = Records { records: Vec::new(), damaged: 0 };
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match record(line) {
            Some(record) => found.records.push(record),
            None => found.damaged += 1,
        }
    }
    found
}

fn record<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let (checksum, json) = (line.get(..DIGITS)?, line.get(DIGITS + 1..)?);
    let checksum = u32::from_str_radix(str::from_utf8(checksum).ok()?, 16).ok()?;
    if line[DIGITS] != b' ' || crc32fast::hash(json) != checksum {
        return None;
    }
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn written(records: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let (mut journal, found) = Journal::open::<String>(&path).unwrap();
        assert_eq!(found, Records::default());
        journal.append(records).unwrap();
        (folder, path)
    }

    fn read(path: &Path) -> Records<String> {
        Journal::open(path).unwrap().1
    }

    #[test]
    fn records_are_read_back_even_after_a_rewrite() {
        let (_folder, path) = written(&["one", "two\nlines", "é"]);
        assert_eq!(read(&path).records, ["one", "two\nlines", "é"]);
        let (mut journal, _) = Journal::open::<String>(&path).unwrap();
        journal.rewrite(["two"].iter()).unwrap();
        journal.append(&["three"]).unwrap();
        assert_eq!(read(&path), Records { records: vec!["two".to_owned(), "three".to_owned()], damaged: 0 });
    }

    #[test]
    fn a_truncated_journal_keeps_all_earlier_records_and_can_be_appended_to() {
        let (_folder, path) = written(&["one", "two", "three"]);
        let whole = fs::read(&path).unwrap();
        let ends: Vec<_> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let (mut journal, found) = Journal::open::<String>(&path).unwrap();
            // A record is complete even without its line break.
            let expected = ends.iter().filter(|end| **end <= length).count();
            assert_eq!(found.records, ["one", "two", "three"][..expected], "{length}");
            journal.append(&["four"]).unwrap();
            let records = read(&path).records;
            assert_eq!((records.len(), records.last().unwrap().as_str()), (expected + 1, "four"), "{length}");
        }
    }

    #[test]
    fn a_journal_does_not_grow_beyond_what_can_be_opened() {
        let (_folder, path) = written(&["one"]);
        let (mut journal, _) = Journal::open::<String>(&path).unwrap();
        let large = "x".repeat(usize::try_from(MAX_BYTES / 2).unwrap());
        journal.append(&[&large]).unwrap();
        assert_eq!(journal.append(&[&large]).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        journal.append(&["two"]).unwrap();
        assert_eq!(read(&path).records, ["one", &large, "two"]);
    }

    #[test]
    fn a_damaged_byte_loses_only_the_records_it_affects() {
        let (_folder, path) = written(&["one", "two", "three"]);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            for damage in [0, b'\n', whole[at] ^ 1] {
                let mut bytes = whole.clone();
                bytes[at] = damage;
                fs::write(&path, &bytes).unwrap();
                let found = read(&path);
                // A damaged line break affects two records.
                let spared = if whole[at] == b'\n' { 1 } else { 2 };
                assert!(found.records.len() >= spared, "{at}: {found:?}");
                let known = |record: &String| ["one", "two", "three"].contains(&record.as_str());
                assert!(found.records.iter().all(known), "{at}: {found:?}");
            }
        }
    }
}
