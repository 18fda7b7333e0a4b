//! Opens the files that a process maps. What is behind a mapping, and behind its path, is the process's choice.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, fstatfs};

use super::{FileId, Mapping, Pid};

/// Opens the mapped file itself; where that is not allowed, the file that its path leads to in the process's root, if
/// it is the same one.
pub(super) fn open(pid: Pid, id: FileId, mapping: &Mapping) -> io::Result<File> {
    open_regular(&mapping.map_file(pid)).or_else(|mapped| {
        let named = |error| {
            io::Error::new(mapped.kind(), format!("{mapped} (as it is mapped); {error} (by its path)"))
        };
        open_by_path(pid, id, mapping).map_err(named)
    })
}

fn open_by_path(pid: Pid, id: FileId, mapping: &Mapping) -> io::Result<File> {
    let mut path = pid.proc_file("root").into_os_string();
    path.push(&mapping.path);
    let file = open_regular(Path::new(&path))?;
    if is(id, &file)? { Ok(file) } else { Err(io::Error::other("its path leads to another file now")) }
}

/// Opens a file that nobody may have mapped yet. On overlayfs and btrfs it is not known by the number that its mappings
/// will have.
pub(super) fn open_path(path: &Path) -> io::Result<(FileId, File)> {
    let file = open_regular(path)?;
    let metadata = file.metadata()?;
    Ok((FileId { device: device(&metadata), inode: metadata.ino() }, file))
}

/// Opens a file that has an end and does not act on being opened.
fn open_regular(path: &Path) -> io::Result<File> {
    check(&fs::metadata(path)?)?;
    // The path may lead elsewhere by now: a pipe would wait for its writer.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() { Ok(()) } else { Err(io::Error::other("it is no regular file")) }
}

/// Whether this is the file. Overlayfs and btrfs have device numbers of their own for stat(2), which are not those of
/// their mappings; there the inode decides. What a wrong guess would cost: another file's probes and names.
fn is(id: FileId, file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    if metadata.ino() != id.inode {
        return Ok(false);
    }
    let has_own_numbers = || {
        let kind = fstatfs(file)?.filesystem_type();
        io::Result::Ok([OVERLAYFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC].contains(&kind))
    };
    Ok(device(&metadata) == id.device || has_own_numbers()?)
}

/// Major and minor number of the device that holds a file. Linux's fit 32 bits each (`MKDEV` of the kernel).
pub(super) fn device(metadata: &Metadata) -> (u32, u32) {
    let number = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
    (number(major(metadata.dev())), number(minor(metadata.dev())))
}
