//! What the child is asked for.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;

use super::resolve::{self, LastLink};

/// Size of the part that is read at once: a page, with the headers of an ELF file.
const BEGINNING: usize = 4096;

/// A request for a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Request<'a> {
    /// The regular file at a path of this host.
    Path(&'a Path),
    /// The regular file at a path below a root; no link leads outside.
    InRoot(BorrowedFd<'a>, &'a Path),
    /// The file at a path below a root, without opening it (`O_PATH`); a symbolic link is not followed.
    Find(BorrowedFd<'a>, &'a Path),
    /// The file behind such a descriptor, open.
    Found(BorrowedFd<'a>),
}

impl<'a> Request<'a> {
    /// Kind and path, as they are sent.
    pub(super) fn parts(&self) -> (u8, &'a [u8], Option<BorrowedFd<'a>>) {
        match *self {
            Self::Path(path) => (0, path.as_os_str().as_bytes(), None),
            Self::InRoot(root, path) => (1, path.as_os_str().as_bytes(), Some(root)),
            Self::Find(root, path) => (2, path.as_os_str().as_bytes(), Some(root)),
            Self::Found(file) => (3, &[], Some(file)),
        }
    }

    /// The request with these parts; `None` if there is none.
    pub(super) fn from_parts(kind: u8, path: &'a [u8], descriptor: Option<&'a OwnedFd>) -> Option<Self> {
        let path = Path::new(OsStr::from_bytes(path));
        match (kind, descriptor.map(AsFd::as_fd)) {
            (0, None) => Some(Self::Path(path)),
            (1, Some(root)) => Some(Self::InRoot(root, path)),
            (2, Some(root)) => Some(Self::Find(root, path)),
            (3, Some(file)) => Some(Self::Found(file)),
            _ => None,
        }
    }

    /// Opens the file in this process, and reads its beginning.
    pub(crate) fn open(&self) -> io::Result<File> {
        let file = match *self {
            Self::Path(path) => open_regular(path)?,
            Self::InRoot(root, path) => {
                let found = resolve::find(root, path, LastLink::Follow)?;
                open_regular(Path::new(&format!("/proc/self/fd/{}", found.as_raw_fd())))?
            }
            Self::Find(root, path) => {
                return resolve::find(root, path, LastLink::Keep);
            }
            Self::Found(file) => open_regular(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))?,
        };
        // Whoever needs more of the file than there is finds out.
        let _ = file.read_at(&mut [0; BEGINNING], 0);
        Ok(file)
    }
}

/// Opens a file that has an end and on which open(2) has no side effects.
fn open_regular(path: &Path) -> io::Result<File> {
    check(&fs::metadata(path)?)?;
    // The path may have changed since: opening a pipe would block until it has a writer.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() { Ok(()) } else { Err(io::Error::other("it is not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_received_as_it_was_sent() {
        let root = OwnedFd::from(File::open("/").unwrap());
        let requests = [
            Request::Path(Path::new("/etc/hostname")),
            Request::InRoot(root.as_fd(), Path::new("/etc/hostname")),
            Request::Find(root.as_fd(), Path::new("etc")),
            Request::Found(root.as_fd()),
        ];
        for request in requests {
            let (kind, path, descriptor) = request.parts();
            let received = Request::from_parts(kind, path, descriptor.map(|_| &root)).unwrap();
            assert_eq!(format!("{received:?}"), format!("{request:?}"));
        }
        assert!(Request::from_parts(1, b"/etc", None).is_none(), "without a root");
        assert!(Request::from_parts(4, b"", None).is_none(), "no such kind");
    }

    #[test]
    fn only_regular_files_are_opened() {
        assert!(Request::Path(Path::new("/proc/self/exe")).open().is_ok());
        let error = Request::Path(Path::new("/dev/null")).open().unwrap_err();
        assert_eq!(error.to_string(), "it is not a regular file");
    }
}
