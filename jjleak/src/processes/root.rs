//! Files as a process sees them. The process controls what is at a path: nothing is opened on which open(2) has side effects, and
//! no link leads outside.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

use super::Pid;

/// The root folder of a process.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens the root of a process.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Self::at(&pid.proc_file("root"))
    }

    /// Opens the root of jjleak.
    pub(super) fn own() -> io::Result<Self> {
        Self::at(Path::new("/"))
    }

    fn at(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(open(path, flags, Mode::empty())?))
    }

    /// Opens the regular file at a path.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let found = self.resolve(path, OFlag::O_PATH)?;
        if !found.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
    }

    /// Finds the file at a path without opening it; a symbolic link is not followed.
    pub fn find(&self, path: &Path) -> io::Result<File> {
        self.resolve(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)
    }

    /// Resolves a path; symbolic links are resolved within this root.
    fn resolve(&self, path: &Path, flags: OFlag) -> io::Result<File> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(File::from(openat2(&self.0, path, how)?))
    }
}

/// Number of the mount namespace of a process; `None` if the process has ended or access is denied.
#[must_use]
pub fn mount_namespace(pid: Pid) -> Option<u64> {
    Some(fs::metadata(pid.proc_file("ns/mnt")).ok()?.ino())
}
