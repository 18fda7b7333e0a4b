//! Files of profiles. They are accessed without holding the history, because that blocks on the disk.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use super::{Entry, Error, Id, state};
use crate::pprof;
use crate::profile::Profile;
use crate::store::PendingFile;

/// Suffix of profiles.
pub(super) const EXTENSION: &str = ".pb.gz";
/// Suffix of their flame graphs.
pub(super) const PICTURE: &str = ".svg";
/// Maximum decompressed size of a profile to read: the service is limited to 512 MiB, and a profile in memory takes several times
/// its size.
pub const MAX_PROFILE: u64 = 32 << 20;
/// Size of a read.
const CHUNK: usize = 64 << 10;

/// Folder of profiles.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn as_path(&self) -> &Path {
        &self.0
    }

    /// Writes a profile and its flame graph, or neither. A daemon killed in between leaves a flame graph alone, which the next
    /// start removes, and never a profile without one.
    pub fn write(&self, sealed: &Sealed<'_>) -> Result<(), Error> {
        // The folder may have been removed while the daemon runs.
        fs::create_dir_all(&self.0).map_err(state("create", &self.0))?;
        let Sealed { entry: Entry { id, .. }, bytes, picture } = sealed;
        let written = write(&self.path(id, PICTURE), picture);
        written.and_then(|()| write(&self.path(id, EXTENSION), bytes)).inspect_err(|_| self.remove(id))
    }

    pub(super) fn remove(&self, id: &Id) {
        // The files may not exist.
        let _ = fs::remove_file(self.path(id, EXTENSION));
        let _ = fs::remove_file(self.path(id, PICTURE));
    }

    pub(super) fn path(&self, id: &Id, extension: &str) -> PathBuf {
        self.0.join(format!("{id}{extension}"))
    }
}

/// An encoded profile with its flame graph and entry.
#[derive(Debug)]
pub struct Sealed<'a> {
    pub(super) entry: Entry,
    bytes: Vec<u8>,
    picture: &'a [u8],
}

impl<'a> Sealed<'a> {
    /// Encodes a profile; writes nothing.
    pub fn of(profile: &Profile, mut entry: Entry, picture: &'a [u8]) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        pprof::write(profile, &mut bytes).map_err(state("encode", Path::new("a profile")))?;
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

/// A stored profile.
#[derive(Debug)]
pub struct Stored {
    pub(super) path: PathBuf,
    pub(super) entry: Entry,
}

impl Stored {
    /// Opens the file and verifies its checksum; returns the file, at its beginning, and its size.
    pub fn open(&self) -> Result<(File, u64), Error> {
        let mut file = File::open(&self.path).map_err(state("open", &self.path))?;
        let sum = checksum(&mut file).map_err(state("read", &self.path))?;
        if !self.entry.is_of(sum) {
            return Err(Error::Damaged(self.entry.id.clone()));
        }
        Ok((file, sum.0))
    }

    /// Reads the file.
    pub fn read(&self) -> Result<Vec<u8>, Error> {
        let (file, bytes) = self.open()?;
        let mut content = Vec::new();
        file.take(bytes).read_to_end(&mut content).map_err(state("read", &self.path))?;
        Ok(content)
    }
}

/// Length and checksum of a file; rewinds it.
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
