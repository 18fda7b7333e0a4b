//! Opens a process's perf map safely. Anything may be at its path: the directory is writable for everybody in
//! the process's namespace.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::processes::{Credentials, Pid, Process, Root};

/// Maximum size of a perf map. Half a million methods with names of a hundred bytes take less.
pub const MAX_BYTES: u64 = 64 << 20;

/// Reason why a perf map is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A symbolic link leads elsewhere.
    #[error("it is a symbolic link")]
    Link,
    /// Reading it could block or have side effects.
    #[error("it is {0}, not a file")]
    NotAFile(&'static str),
    /// Its other names may be somebody else's.
    #[error("it is a hard link to a file that has other names")]
    HardLink,
    /// The process cannot have written it.
    #[error("it belongs to user {owner}, and the process runs as user {user}")]
    ForeignOwner {
        /// Owner of the file.
        owner: u32,
        /// User of the process.
        user: u32,
    },
    /// Exceeds [`MAX_BYTES`].
    #[error("it has {0} bytes, and jjleak reads perf maps of up to {mib} MiB", mib = MAX_BYTES >> 20)]
    TooLarge(u64),
    /// A system error.
    #[error("{0}")]
    System(String),
}

impl Refusal {
    fn system(error: &io::Error) -> Self {
        Self::System(error.to_string())
    }
}

/// Path of the perf map in the process's own view, with the PID of its own PID namespace.
pub(super) fn path(process: &Process) -> PathBuf {
    let own_pid = process.container_pid.unwrap_or(process.pid);
    PathBuf::from(format!("/tmp/perf-{own_pid}.map"))
}

/// Location of a process's perf map. The file outlives the process.
#[derive(Debug)]
pub(super) struct Place {
    pid: Pid,
    root: Root,
    path: PathBuf,
    user: u32,
}

impl Place {
    /// Location for a running process.
    pub(super) fn of(process: &Process) -> Result<Self, Refusal> {
        let user = Credentials::of(process.pid).map_err(|error| Refusal::System(error.to_string()))?.user;
        let root = Root::of(process.pid).map_err(|error| Refusal::system(&error))?;
        Ok(Self { pid: process.pid, root, path: path(process), user })
    }

    /// Opens the file; `None` if there is none.
    pub(super) fn open(&self) -> Result<Option<(File, Metadata)>, Refusal> {
        // The process may have changed its user since.
        let user = Credentials::of(self.pid).map_or(self.user, |credentials| credentials.user);
        open_as(&self.root, &self.path, user)
    }
}

/// Opens a file if it is a regular one that belongs to `user` or root.
pub(super) fn open_as(root: &Root, path: &Path, user: u32) -> Result<Option<(File, Metadata)>, Refusal> {
    let found = match root.find(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Refusal::system(&error)),
    };
    check(&found.metadata().map_err(|error| Refusal::system(&error))?, user)?;
    // Opened through the descriptor that was checked, so it is the same file.
    let file = root.open_found(&found).map_err(|error| Refusal::system(&error))?;
    let metadata = file.metadata().map_err(|error| Refusal::system(&error))?;
    check(&metadata, user)?;
    Ok(Some((file, metadata)))
}

fn check(metadata: &Metadata, user: u32) -> Result<(), Refusal> {
    let kind = metadata.file_type();
    let owner = metadata.uid();
    if kind.is_symlink() {
        Err(Refusal::Link)
    } else if kind.is_fifo() {
        Err(Refusal::NotAFile("a pipe"))
    } else if kind.is_dir() {
        Err(Refusal::NotAFile("a folder"))
    } else if kind.is_socket() {
        Err(Refusal::NotAFile("a socket"))
    } else if !kind.is_file() {
        Err(Refusal::NotAFile("a device"))
    } else if owner != user && owner != 0 {
        Err(Refusal::ForeignOwner { owner, user })
    } else if metadata.nlink() > 1 {
        Err(Refusal::HardLink)
    } else if metadata.len() > MAX_BYTES {
        Err(Refusal::TooLarge(metadata.len()))
    } else {
        Ok(())
    }
}
