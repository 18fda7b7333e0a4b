//! Finds the kernel's type information (BTF): in sysfs, or in a file if sysfs is hidden, as in a container.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memmap2::Mmap;
use nix::sys::utsname::uname;
use object::{Object, ObjectSection};

/// The running kernel's own.
const IN_SYSFS: &str = "/sys/kernel/btf/vmlinux";
/// Paths at which distributions install a kernel image with type information; `{}` is the kernel's release. libbpf searches the
/// same ones.
const PLACES: [&str; 7] = [
    "/boot/vmlinux-{}",
    "/lib/modules/{}/vmlinux-{}",
    "/lib/modules/{}/build/vmlinux",
    "/usr/lib/modules/{}/kernel/vmlinux",
    "/usr/lib/debug/boot/vmlinux-{}",
    "/usr/lib/debug/boot/vmlinux-{}.debug",
    "/usr/lib/debug/lib/modules/{}/vmlinux",
];
/// Section of a kernel image.
const SECTION: &str = ".BTF";
const ELF_MAGIC: &[u8] = b"\x7fELF";
/// Beginning of BTF, little-endian.
const BTF_MAGIC: &[u8] = &[0x9f, 0xeb];

/// The file that the user has named.
static NAMED: OnceLock<PathBuf> = OnceLock::new();

/// Uses this file, of exactly the running kernel: BTF, or an ELF image that has it. Fails if it is neither. Only the first call
/// has an effect.
pub fn use_file(path: &Path) -> io::Result<()> {
    if !from(path)?.starts_with(BTF_MAGIC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is neither BTF nor an ELF file with it"));
    }
    let _ = NAMED.set(path.to_owned());
    Ok(())
}

/// Returns true if there is a file with the kernel's types.
pub(super) fn is_there(sysfs: &Path) -> bool {
    NAMED.get().is_some_and(|path| path.exists())
        || sysfs.exists()
        || places().iter().any(|path| path.exists())
}

/// Reads the running kernel's BTF.
pub(super) fn read() -> io::Result<Vec<u8>> {
    if let Some(path) = NAMED.get() {
        return from(path);
    }
    let own = fs::read(IN_SYSFS);
    let missing = own.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let other = || places().iter().find_map(|path| from(path).ok());
    match missing.then(other).flatten() {
        Some(found) => Ok(found),
        None => own,
    }
}

fn places() -> Vec<PathBuf> {
    let Ok(name) = uname() else { return Vec::new() };
    let release = name.release().to_string_lossy();
    PLACES.iter().map(|place| place.replace("{}", &release).into()).collect()
}

/// BTF in a file of its own, or in a section of an ELF file.
fn from(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    // SAFETY: the file is root's, as is jjleak; nobody shortens a kernel image that is in use.
    let content = unsafe { Mmap::map(&file) }?;
    if !content.starts_with(ELF_MAGIC) {
        return Ok(content.to_vec());
    }
    let missing =
        || io::Error::new(io::ErrorKind::InvalidData, format!("{} has no {SECTION}", path.display()));
    let image = object::File::parse(&*content).map_err(io::Error::other)?;
    let section = image.section_by_name(SECTION).ok_or_else(missing)?;
    Ok(section.data().map_err(io::Error::other)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_types_are_refused() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(from(&own).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlinux.btf");
        fs::write(&path, b"\x9f\xeb").unwrap();
        assert_eq!(from(&path).unwrap(), b"\x9f\xeb");
        fs::write(&path, b"vmlinux").unwrap();
        assert_eq!(use_file(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn places_have_the_release_of_this_kernel() {
        let release = uname().unwrap().release().to_string_lossy().into_owned();
        assert!(places().iter().all(|path| path.to_string_lossy().contains(&release)));
    }
}
