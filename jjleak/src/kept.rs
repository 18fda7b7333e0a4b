//! A folder of files that make things faster and never different: what is in it can be lost at any time, and what another
//! user could have written is as good as lost.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use nix::fcntl::OFlag;
use nix::unistd::Uid;
use tempfile::Builder;

/// The files tell which programs have run, and where they lie: that is nobody else's concern.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The folder.
#[derive(Debug, Clone)]
pub struct KeptFiles {
    folder: PathBuf,
}

impl KeptFiles {
    /// The files in this folder, which is created when there is something to keep.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Opens a file. Fails with [`io::ErrorKind::PermissionDenied`] if another user could have written it.
    pub fn open(&self, name: &str) -> io::Result<File> {
        // Without the flags a link could lead elsewhere, and opening a pipe would wait for its writer.
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

    /// Keeps a file, in the place of the one that has its name. Not synced: what a crash has cut short is told by its
    /// content.
    pub fn keep(&self, name: &str, content: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder)?;
        let permissions = Permissions::from_mode(FILE_MODE);
        let mut file = Builder::new().prefix(".kept-").permissions(permissions).tempfile_in(&self.folder)?;
        file.write_all(content)?;
        file.persist(self.path(name))?;
        Ok(())
    }

    /// Where a file is.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
