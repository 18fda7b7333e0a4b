//! The files of profiles: written and opened without the history, because both wait for the disk.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use super::{Entry, Error, Id, state};
use crate::pprof;
use crate::profile::Profile;
use crate::store::PendingFile;

/// How names of profiles end.
pub(super) const EXTENSION: &str = ".pb.gz";
/// And those of the flame graphs that go with them.
pub(super) const PICTURE: &str = ".svg";
/// Bytes of a decompressed profile that the daemon reads: the unit has 512 MiB, and what is read takes several times as much.
pub const MAX_PROFILE: u64 = 32 << 20;
/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// The folder of profiles.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn as_path(&self) -> &Path {
        &self.0
    }

    /// Writes a profile and its flame graph. Both, or neither: who is killed in between leaves a flame graph alone, which the next
    /// start removes, and never a profile without one.
    pub fn write(&self, sealed: &Sealed<'_>) -> Result<(), Error> {
        // A moment ago there may have been no folder: whoever removed it has not asked.
        fs::create_dir_all(&self.0).map_err(state("creating", &self.0))?;
        let Sealed { entry: Entry { id, .. }, bytes, picture } = sealed;
        let written = write(&self.path(id, PICTURE), picture);
        written.and_then(|()| write(&self.path(id, EXTENSION), bytes)).inspect_err(|_| self.remove(id))
    }

    pub(super) fn remove(&self, id: &Id) {
        // What is not there need not be removed.
        let _ = fs::remove_file(self.path(id, EXTENSION));
        let _ = fs::remove_file(self.path(id, PICTURE));
    }

    pub(super) fn path(&self, id: &Id, extension: &str) -> PathBuf {
        self.0.join(format!("{id}{extension}"))
    }
}

/// A profile and its flame graph as they will be in files, and the entry that names them.
#[derive(Debug)]
pub struct Sealed<'a> {
    pub(super) entry: Entry,
    bytes: Vec<u8>,
    picture: &'a [u8],
}

impl<'a> Sealed<'a> {
    /// Nothing of it is written yet.
    pub fn of(profile: &Profile, mut entry: Entry, picture: &'a [u8]) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        pprof::write(profile, &mut bytes).map_err(state("writing", Path::new("a profile")))?;
        entry.seal(&bytes, picture);
        Ok(Self { entry, bytes, picture })
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = PendingFile::create(path)?;
    file.write(bytes)?;
    file.finish()?;
    Ok(())
}

/// A profile that is kept.
#[derive(Debug)]
pub struct Kept {
    pub(super) path: PathBuf,
    pub(super) entry: Entry,
}

impl Kept {
    /// Opens its file, at the beginning, once it is known to be what was written; and its bytes.
    pub fn open(&self) -> Result<(File, u64), Error> {
        let mut file = File::open(&self.path).map_err(state("opening", &self.path))?;
        let sum = checksum(&mut file).map_err(state("reading", &self.path))?;
        if !self.entry.is_of(sum) {
            return Err(Error::Damaged(self.entry.id.clone()));
        }
        Ok((file, sum.0))
    }

    /// The bytes of its file.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        let (file, bytes) = self.open()?;
        let mut content = Vec::new();
        file.take(bytes).read_to_end(&mut content).map_err(state("reading", &self.path))?;
        Ok(content)
    }
}

/// Length and checksum of a file, which is at its beginning again.
fn checksum(file: &mut File) -> io::Result<(u64, u32)> {
    let (mut hasher, mut length, mut chunk) = (crc32fast::Hasher::new(), 0, vec![0; CHUNK]);
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            file.rewind()?;
            return Ok((length, hasher.finalize()));
        }
        hasher.update(&chunk[..read]);
        length += read as u64;
    }
}
