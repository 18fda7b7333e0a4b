//! A file being written.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::{Builder, NamedTempFile};

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be created: no such folder, no permission, read-only.
    #[error("cannot write to folder {folder}")]
    Create {
        /// The folder.
        folder: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The destination is a folder.
    #[error("{path} is a folder, not a file")]
    IsFolder {
        /// The destination.
        path: PathBuf,
    },
    /// Writing failed; the disk may be full.
    #[error("writing {path} failed")]
    Write {
        /// The destination.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Profiles hold no secrets beyond names of code, and are looked at by others than root.
const READABLE_BY_ALL: u32 = 0o644;

/// Temporary files that exist now, for [`discard_all`].
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that gets its name when it is whole. Dropped before that, it leaves nothing behind.
#[derive(Debug)]
pub struct PendingFile {
    destination: PathBuf,
    file: NamedTempFile,
}

impl PendingFile {
    /// Creates the temporary file beside `destination`, which shows early whether the folder can be written to.
    pub fn create(destination: &Path) -> Result<Self, Error> {
        if destination.is_dir() {
            return Err(Error::IsFolder { path: destination.to_owned() });
        }
        let folder = match destination.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let file = Builder::new()
            .prefix(".jjleak-")
            .permissions(Permissions::from_mode(READABLE_BY_ALL))
            .tempfile_in(folder)
            .map_err(|source| Error::Create { folder: folder.to_owned(), source })?;
        lock().push(file.path().to_owned());
        Ok(Self { destination: destination.to_owned(), file })
    }

    /// Where the file will be.
    #[must_use]
    pub fn destination(&self) -> &Path {
        &self.destination
    }

    /// Appends to the file.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.as_file_mut().write_all(bytes).map_err(|source| self.failed(source))
    }

    /// Gives the file its name, once its content is on disk.
    pub fn finish(self) -> Result<PathBuf, Error> {
        self.file.as_file().sync_all().map_err(|source| self.failed(source))?;
        fs::rename(self.file.path(), &self.destination).map_err(|source| self.failed(source))?;
        Ok(self.destination.clone())
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Write { path: self.destination.clone(), source }
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        lock().retain(|path| path != self.file.path());
    }
}

/// Removes every temporary file. For leaving at once.
pub fn discard_all() {
    for path in lock().drain(..) {
        // Nothing can be done about a file that cannot be removed.
        let _ = fs::remove_file(path);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_finished_file_has_its_name_and_content() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = PendingFile::create(&folder.path().join("a.svg")).unwrap();
        file.write(b"<svg/>").unwrap();
        let path = file.finish().unwrap();
        assert_eq!(fs::read(path).unwrap(), b"<svg/>");
        assert_eq!(names(folder.path()), ["a.svg"]);
    }

    #[test]
    fn a_dropped_file_leaves_nothing_and_keeps_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("a.svg");
        fs::write(&destination, b"old").unwrap();
        let mut file = PendingFile::create(&destination).unwrap();
        file.write(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read(&destination).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["a.svg"]);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = PendingFile::create(Path::new("/nonexistent/a.svg")).unwrap_err();
        assert!(matches!(error, Error::Create { ref folder, .. } if folder == Path::new("/nonexistent")));
    }

    #[test]
    fn a_full_disk_is_an_error_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let destination = folder.path().join("a.svg");
        let mut file = PendingFile::create(&destination).unwrap();
        // /dev/full stands for the full disk.
        *file.file.as_file_mut() = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!(matches!(file.write(b"x"), Err(Error::Write { ref path, .. }) if *path == destination));
        drop(file);
        assert!(names(folder.path()).is_empty());
    }
}
