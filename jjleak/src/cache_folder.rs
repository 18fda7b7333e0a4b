//! Folder for cache files. Losing an entry affects speed only, so entries that another user could have written are
//! ignored.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use nix::fcntl::OFlag;
use nix::unistd::Uid;
use tempfile::Builder;

/// Cache files reveal which programs have run and where they are: private to their owner.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A folder of cache files.
#[derive(Debug, Clone)]
pub struct CacheFolder {
    folder: PathBuf,
}

impl CacheFolder {
    /// Uses this folder, which the first write creates.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Opens an entry. Fails with [`io::ErrorKind::PermissionDenied`] if another user could have written it.
    pub fn open(&self, name: &str) -> io::Result<File> {
        // Do not follow a symbolic link, and do not block on a named pipe that has no writer.
        let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(self.path(name))?;
        let metadata = file.metadata()?;
        let is_ours = metadata.uid() == Uid::effective().as_raw() || metadata.uid() == 0;
        if metadata.is_file() && is_ours && metadata.mode() & WRITABLE_BY_OTHERS == 0 {
            Ok(file)
        } else {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user could have written it"))
        }
    }

    /// Writes an entry, replacing an older one of that name. Not synced: readers detect from the content what a crash cut
    /// short.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder)?;
        let permissions = Permissions::from_mode(FILE_MODE);
        let mut file = Builder::new().prefix(".kept-").permissions(permissions).tempfile_in(&self.folder)?;
        file.write_all(content)?;
        file.persist(self.path(name))?;
        Ok(())
    }

    /// Path of an entry.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
