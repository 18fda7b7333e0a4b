//! Resolves paths below a root, step by step. `openat2` would do it in one call, but systemd's `RestrictSUIDSGID=`, which jjleak's unit has,
//! and seccomp filters of containers deny that call.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

/// Symbolic links that are followed for a path, as in Linux.
const MAX_LINKS: usize = 40;

/// Treatment of a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LastLink {
    Follow,
    Keep,
}

/// Finds the file at a path below a root, without opening it (`O_PATH`). Neither links nor `..` lead out of the root.
pub(super) fn find(root: BorrowedFd<'_>, path: &Path, last: LastLink) -> io::Result<File> {
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut current = root.try_clone_to_owned()?;
    let mut rest = Vec::new();
    let mut links = 0;
    push(&mut rest, path.as_os_str());
    while let Some(name) = rest.pop() {
        if name == ".." {
            current = above.pop().unwrap_or(current);
            continue;
        }
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let next = File::from(openat(&current, &*name, flags, Mode::empty())?);
        if !next.metadata()?.is_symlink() || (rest.is_empty() && last == LastLink::Keep) {
            above.push(mem::replace(&mut current, next.into()));
            continue;
        }
        links += 1;
        // Links of procfs lead to files of jjleak, or out of the root.
        if links > MAX_LINKS || fstatfs(&next)?.filesystem_type() == PROC_SUPER_MAGIC {
            return Err(Errno::ELOOP.into());
        }
        let target = readlinkat(&next, "")?;
        if target.as_bytes().first() == Some(&b'/') {
            above.clear();
            current = root.try_clone_to_owned()?;
        }
        push(&mut rest, &target);
    }
    Ok(File::from(current))
}

/// Pushes the names of a path, the first one last.
fn push(rest: &mut Vec<OsString>, path: &OsStr) {
    let names = path.as_bytes().split(|byte| *byte == b'/').rev();
    rest.extend(
        names.filter(|name| !name.is_empty() && *name != b".").map(|name| OsStr::from_bytes(name).to_owned()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    /// A folder with `root/lib/file`, and a file outside of the root.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let within = |name: &str| folder.path().join(name);
        fs::create_dir_all(within("root/lib")).unwrap();
        fs::write(within("root/lib/file"), "inside").unwrap();
        fs::write(within("file"), "outside").unwrap();
        for (target, link) in [
            ("/lib", "absolute"),
            ("lib", "relative"),
            ("../../../lib", "lib/above"),
            ("/absolute/../relative/file", "chain"),
            ("loop", "loop"),
            ("../file", "escape"),
            ("/missing", "dangling"),
        ] {
            symlink(target, within("root").join(link)).unwrap();
        }
        folder
    }

    fn content(folder: &Path, path: &str) -> io::Result<String> {
        let root = File::open(folder.join("root")).unwrap();
        let found = find(root.as_fd(), Path::new(path), LastLink::Follow)?;
        let mut content = String::new();
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
        File::open(link)?.read_to_string(&mut content)?;
        Ok(content)
    }

    #[test]
    fn links_are_followed_within_the_root() {
        let folder = folder();
        for path in [
            "/lib/file",
            "lib//./file",
            "/lib/../../../lib/file",
            "/absolute/file",
            "/relative/file",
            "/lib/above/file",
            "/chain",
        ] {
            assert_eq!(content(folder.path(), path).unwrap(), "inside", "{path}");
        }
    }

    #[test]
    fn nothing_outside_of_the_root_is_found() {
        let folder = folder();
        for path in ["/escape", "/../file", "../file", "/lib/../../file", "/dangling", "/lib/file/file"] {
            let error = content(folder.path(), path).unwrap_err();
            assert!(
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
                "{path}: {error}"
            );
        }
        let error = content(folder.path(), "/loop").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ELOOP as i32));
    }

    #[test]
    fn a_link_at_the_end_is_kept() {
        let folder = folder();
        let root = File::open(folder.path().join("root")).unwrap();
        let found =
            |path: &str| find(root.as_fd(), Path::new(path), LastLink::Keep).unwrap().metadata().unwrap();
        assert!(found("/relative/above").is_symlink());
        assert!(found("/lib/file").is_file());
        assert!(found("/").is_dir());
    }
}
