//! Opens the files that a process maps. What is behind a mapping, and behind its path, is the process's choice.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use memmap2::MmapOptions;
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

/// Opens a file that nobody may have mapped yet.
pub(super) fn open_path(path: &Path) -> io::Result<(FileId, File)> {
    let file = open_regular(path)?;
    Ok((identify(&file)?, file))
}

/// By which numbers the mappings of a file will be known. Where those are not the ones of stat(2), the file is mapped to see.
pub(super) fn identify(file: &File) -> io::Result<FileId> {
    let metadata = file.metadata()?;
    if !has_own_numbers(file)? {
        return Ok(FileId { device: device(&metadata), inode: metadata.ino() });
    }
    let own = Pid::new(std::process::id()).ok_or_else(|| io::Error::other("PID 0"))?;
    // SAFETY: nobody reads from the mapping, so that a file that is cut short meanwhile is no danger.
    let mapped = unsafe { MmapOptions::new().len(1).map(file) }?;
    let place = mapped.as_ptr().addr() as u64;
    let mappings = Mapping::all(own).map_err(io::Error::other)?;
    let of_file = mappings.into_iter().find(|mapping| mapping.addresses.contains(&place));
    of_file.and_then(|mapping| mapping.file).ok_or_else(|| io::Error::other("its mapping has no file"))
}

/// Whether stat(2) tells other device numbers of a file than its mappings have: overlayfs and btrfs.
fn has_own_numbers(file: &File) -> io::Result<bool> {
    let kind = fstatfs(file)?.filesystem_type();
    Ok([OVERLAYFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC].contains(&kind))
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
    Ok(device(&metadata) == id.device || has_own_numbers(file)?)
}

/// Major and minor number of the device that holds a file. Linux's fit 32 bits each (`MKDEV` of the kernel).
pub(super) fn device(metadata: &Metadata) -> (u32, u32) {
    let number = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
    (number(major(metadata.dev())), number(minor(metadata.dev())))
}
