//! Files as a process sees them. The process controls what is at a path: nothing is opened on which open(2) has side effects, and
//! no link leads outside.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::Pid;
use super::opener::{self, Request, Source};

/// The root folder of a process.
#[derive(Debug)]
pub struct Root {
    folder: OwnedFd,
    /// `None` for the root of jjleak.
    process: Option<Pid>,
}

impl Root {
    /// Opens the root of a process.
    pub fn of(pid: Pid) -> io::Result<Self> {
        Self::at(&pid.proc_file("root"), Some(pid))
    }

    /// Opens the root of jjleak.
    pub(super) fn own() -> io::Result<Self> {
        Self::at(Path::new("/"), None)
    }

    /// Opens a folder with the root file system of another host.
    pub(super) fn folder(path: &Path) -> io::Result<Self> {
        Self::at(path, None)
    }

    fn at(path: &Path, process: Option<Pid>) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { folder: open(path, flags, Mode::empty())?, process })
    }

    /// Opens the regular file at a path.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        self.ask(&Request::InRoot(self.folder.as_fd(), path))
    }

    /// Finds the file at a path without opening it; a symbolic link is not followed.
    pub fn find(&self, path: &Path) -> io::Result<File> {
        self.ask(&Request::Find(self.folder.as_fd(), path))
    }

    /// Opens a regular file that was found.
    pub fn open_found(&self, found: &File) -> io::Result<File> {
        self.ask(&Request::Found(found.as_fd()))
    }

    fn ask(&self, request: &Request<'_>) -> io::Result<File> {
        match self.process {
            Some(pid) => opener::open(&[Source::Process(pid)], request),
            None => opener::open(&[], request),
        }
    }
}

/// Number of the mount namespace of a process; `None` if the process has ended or access is denied.
#[must_use]
pub fn mount_namespace(pid: Pid) -> Option<u64> {
    Some(fs::metadata(pid.proc_file("ns/mnt")).ok()?.ino())
}
