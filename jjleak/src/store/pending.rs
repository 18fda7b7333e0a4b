//! Files that appear atomically once they are complete.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag};
use nix::unistd::linkat;
use tempfile::{Builder, NamedTempFile};

use super::temporary::Registered;

/// A file could not be written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be created: missing folder, no permission, or read-only file system.
    #[error("cannot write to folder {folder}")]
    Create {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The destination is a folder.
    #[error("{path} is a folder, not a file")]
    IsFolder {
        /// The destination.
        path: PathBuf,
    },
    /// The destination is not something that can be written to.
    #[error("{path} is neither a file nor a device or pipe that can be written to")]
    NotAFile {
        /// The destination.
        path: PathBuf,
    },
    /// The destination exists, or is a link, and cannot be opened.
    #[error("cannot write to {path}")]
    Open {
        /// The destination.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Writing failed; the disk may be full.
    #[error("cannot write {path}")]
    Write {
        /// The destination.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Profiles contain no secrets besides code names, and are read by users other than root.
const READABLE_BY_ALL: u32 = 0o644;
/// Prefix of temporary file names.
pub(super) const PREFIX: &str = ".jjleak-";

/// A file that gets its name when it is complete. If dropped earlier, it leaves nothing behind.
#[derive(Debug)]
pub struct PendingFile {
    destination: PathBuf,
    content: Content,
}

/// Location of the content until the file gets its name.
#[derive(Debug)]
enum Content {
    /// A file without a name (`O_TMPFILE`, open(2)), which disappears even if jjleak is killed.
    Unnamed(File),
    /// A file with a temporary name, on file systems without `O_TMPFILE`.
    Named { file: NamedTempFile<File>, _registered: Registered },
    /// The destination itself: a device or pipe cannot be replaced atomically.
    Stream(File),
}

impl PendingFile {
    /// Creates a file whose name jjleak chooses, in the folder of `destination`, so that an unwritable folder is found early. A
    /// symbolic link of that name is replaced, never followed: any user who can write to the folder could have created it, to
    /// have another file overwritten.
    pub fn create(destination: &Path) -> Result<Self, Error> {
        let path = || destination.to_owned();
        match destination.symlink_metadata() {
            Ok(there) if there.is_dir() => return Err(Error::IsFolder { path: path() }),
            Ok(there) if !there.is_file() && !there.is_symlink() => {
                return Err(Error::NotAFile { path: path() });
            }
            _ => {}
        }
        let folder = folder_of(destination);
        let content =
            content_in(folder).map_err(|source| Error::Create { folder: folder.to_owned(), source })?;
        Ok(Self { destination: path(), content })
    }

    /// Creates a file whose name the user has chosen. Symbolic links are followed; devices and pipes, such as `/dev/stdout`, are
    /// written to directly. Blocks until a named pipe has a reader.
    pub fn named(destination: &Path) -> Result<Self, Error> {
        let path = || destination.to_owned();
        let open = |source| Error::Open { path: path(), source };
        let metadata = match destination.metadata() {
            Err(source) if destination.is_symlink() => return Err(open(source)),
            // No such file, or the folder is the problem, which `create` reports best.
            Err(_) => return Self::create(destination),
            Ok(metadata) => metadata,
        };
        if is_stream_type(metadata.file_type()) {
            let file = OpenOptions::new().write(true).open(destination).map_err(open)?;
            return Ok(Self { destination: path(), content: Content::Stream(file) });
        }
        if metadata.is_file() {
            return Self::create(&destination.canonicalize().map_err(open)?);
        }
        Self::create(destination)
    }

    /// Path of the finished file.
    #[must_use]
    pub fn destination(&self) -> &Path {
        &self.destination
    }

    /// Appends to the file.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut file = match &self.content {
            Content::Unnamed(file) | Content::Stream(file) => file,
            Content::Named { file, .. } => file.as_file(),
        };
        file.write_all(bytes).map_err(|source| failed(&self.destination, source))
    }

    /// Syncs the content and gives the file its name.
    pub fn finish(self) -> Result<PathBuf, Error> {
        let Self { destination, content } = self;
        let named = match content {
            Content::Unnamed(file) => file.sync_all().and_then(|()| name(&file, &destination)),
            Content::Named { file, .. } => {
                file.as_file().sync_all().and_then(|()| fs::rename(file.path(), &destination))
            }
            Content::Stream(_) => return Ok(destination),
        };
        match named {
            Ok(()) => {
                // Sync the folder to make the name durable. A user may be able to write to a folder, but not to open it.
                if let Ok(folder) = File::open(folder_of(&destination)) {
                    let _ = folder.sync_all();
                }
                Ok(destination)
            }
            Err(source) => Err(failed(&destination, source)),
        }
    }
}

/// Returns true if a path is a device or a pipe, whose content goes elsewhere.
#[must_use]
pub fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| is_stream_type(metadata.file_type()))
}

fn is_stream_type(kind: FileType) -> bool {
    kind.is_char_device() || kind.is_fifo()
}

/// Creates a folder with those that contain it, unless it exists.
pub fn make_folder(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::Create { folder: folder.to_owned(), source })
}

fn failed(destination: &Path, source: io::Error) -> Error {
    Error::Write { path: destination.to_owned(), source }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn content_in(folder: &Path) -> io::Result<Content> {
    let mut options = OpenOptions::new();
    options.write(true).mode(READABLE_BY_ALL);
    let unnamed = options.clone().custom_flags(OFlag::O_TMPFILE.bits()).open(folder);
    match unnamed.as_ref().map_err(|error| error.raw_os_error().map(Errno::from_raw)) {
        // Some file systems have no `O_TMPFILE` (open(2)).
        Err(Some(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL)) => {}
        _ => return unnamed.map(Content::Unnamed),
    }
    let file = Builder::new().prefix(PREFIX).make_in(folder, |path| options.create_new(true).open(path))?;
    let registered = Registered::new(file.path());
    Ok(Content::Named { file, _registered: registered })
}

/// Gives an unnamed file a name. `linkat` cannot replace a file, so a link is created beside it and renamed.
fn name(file: &File, destination: &Path) -> io::Result<()> {
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link =
        |path: &Path| Ok(linkat(AT_FDCWD, itself.as_str(), AT_FDCWD, path, AtFlags::AT_SYMLINK_FOLLOW)?);
    let linked = Builder::new().prefix(PREFIX).make_in(folder_of(destination), link)?;
    linked.persist(destination).map(drop).map_err(|failure| failure.error)
}

#[cfg(test)]
mod tests;
