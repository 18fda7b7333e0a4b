//! Files as a process sees them. What is at a path is its choice: nothing is opened that acts on being opened, and no link
//! leads out.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

use super::Pid;

/// The root of a process's files.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// That of a process.
    pub fn of(pid: Pid) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(open(&pid.proc_file("root"), flags, Mode::empty())?))
    }

    /// Opens the regular file that a path leads to.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let file = self.resolve(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
    }

    /// Finds what is at a path without opening it; a link there is found itself.
    pub fn find(&self, path: &Path) -> io::Result<File> {
        self.resolve(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)
    }

    /// Links on the way lead to places in this root.
    fn resolve(&self, path: &Path, flags: OFlag) -> io::Result<File> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(File::from(openat2(&self.0, path, how)?))
    }
}

/// The number of the mount namespace that a process's files are in; `None` when it has ended, or may not be looked at.
#[must_use]
pub fn mount_namespace(pid: Pid) -> Option<u64> {
    Some(fs::metadata(pid.proc_file("ns/mnt")).ok()?.ino())
}
