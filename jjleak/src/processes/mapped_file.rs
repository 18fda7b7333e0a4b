//! Opens mapped files. The process controls what a mapping and its path refer to.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memmap2::MmapOptions;
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, fstatfs};

use super::opener::{self, Request, Source};
use super::{FileId, Mapping, Pid};

/// Opens the mapped file itself. Where that is not permitted, opens the file at its path in the process's root, if it is the same
/// file.
pub(super) fn open(pid: Pid, id: FileId, mapping: &Mapping) -> io::Result<File> {
    open_mapped(pid, id, mapping).or_else(|mapped| {
        if mapped.kind() == io::ErrorKind::TimedOut {
            return Err(mapped);
        }
        let named = |error| {
            io::Error::new(mapped.kind(), format!("{mapped} (as it is mapped); {error} (by its path)"))
        };
        open_by_path(pid, id, mapping).map_err(named)
    })
}

/// Opens the file behind a mapping. A block device answers; other file systems may not.
fn open_mapped(pid: Pid, id: FileId, mapping: &Mapping) -> io::Result<File> {
    const NO_BLOCK_DEVICE: u32 = 0;
    let path = mapping.map_file(pid);
    let request = Request::Path(&path);
    let (major, minor) = id.device;
    if major == NO_BLOCK_DEVICE {
        return opener::open(&[Source::Device(major, minor), Source::Process(pid)], &request);
    }
    request.open()
}

fn open_by_path(pid: Pid, id: FileId, mapping: &Mapping) -> io::Result<File> {
    let mut path = pid.proc_file("root").into_os_string();
    path.push(&mapping.path);
    let file = opener::open(&[Source::Process(pid)], &Request::Path(Path::new(&path)))?;
    if is(id, &file)? { Ok(file) } else { Err(io::Error::other("its path now names another file")) }
}

/// Opens a file that may not be mapped yet, for a process.
pub(super) fn open_path(pid: Pid, path: &Path) -> io::Result<(FileId, File)> {
    let file = opener::open(&[Source::Process(pid)], &Request::Path(path))?;
    Ok((identify(&file)?, file))
}

/// Device and inode numbers that mappings of a file will show. If they differ from those of stat(2), the file is mapped to read
/// them.
pub(super) fn identify(file: &File) -> io::Result<FileId> {
    let metadata = file.metadata()?;
    if !has_own_numbers(file)? {
        return Ok(FileId { device: device(&metadata), inode: metadata.ino() });
    }
    let own = Pid::new(std::process::id()).ok_or_else(|| io::Error::other("PID 0"))?;
    // SAFETY: nothing reads from the mapping, so truncation of the file cannot cause a fault.
    let mapped = unsafe { MmapOptions::new().len(1).map(file) }?;
    let place = mapped.as_ptr().addr() as u64;
    let mappings = Mapping::all(own).map_err(io::Error::other)?;
    let of_file = mappings.into_iter().find(|mapping| mapping.addresses.contains(&place));
    of_file.and_then(|mapping| mapping.file).ok_or_else(|| io::Error::other("its mapping has no file"))
}

/// Returns true if stat(2) reports other device numbers than mappings show: overlayfs and btrfs.
fn has_own_numbers(file: &File) -> io::Result<bool> {
    let kind = fstatfs(file)?.filesystem_type();
    Ok([OVERLAYFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC].contains(&kind))
}

/// Returns true if this is the file. On overlayfs and btrfs, stat(2) and mappings show different device numbers, so the inode
/// decides. A false match costs probes in, and symbols of, another file.
fn is(id: FileId, file: &File) -> io::Result<bool> {
    let metadata = file.metadata()?;
    if metadata.ino() != id.inode {
        return Ok(false);
    }
    Ok(device(&metadata) == id.device || has_own_numbers(file)?)
}

/// Major and minor number of the device that holds a file. Linux's fit 32 bits each (`MKDEV` in the kernel).
pub(super) fn device(metadata: &Metadata) -> (u32, u32) {
    let number = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
    (number(major(metadata.dev())), number(minor(metadata.dev())))
}
