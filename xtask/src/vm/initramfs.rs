//! An archive of files in the format that the kernel unpacks as its first root ("newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::{fs, io, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result};

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;

/// An archive under construction.
#[derive(Default)]
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Initramfs {
    /// Adds folders, outer ones first.
    pub(super) fn add_folders(&mut self, path: &Path) {
        let mut folders: Vec<_> = path.ancestors().filter(|it| !it.as_os_str().is_empty()).collect();
        folders.reverse();
        for folder in folders {
            self.add(folder, FOLDER, &[]);
        }
    }

    /// Adds a copy of a file, and its parent folders.
    pub(super) fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let read = || io::Result::Ok((fs::read(from)?, fs::metadata(from)?.permissions().mode()));
        let (content, mode) = read().with_context(|| format!("cannot read {}", from.display()))?;
        self.write(to, mode, &content);
        Ok(())
    }

    /// Adds a file, and its parent folders.
    pub(super) fn write(&mut self, to: &Path, permissions: u32, content: &[u8]) {
        if let Some(folder) = to.parent() {
            self.add_folders(folder);
        }
        self.add(to, FILE | permissions & 0o777, content);
    }

    /// Returns the finished archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.add(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }

    fn add(&mut self, path: &Path, mode: u32, content: &[u8]) {
        self.entries += 1;
        let name = path.to_string_lossy();
        let size = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        self.bytes.extend(b"070701");
        let fields =
            [self.entries, mode, 0, 0, 1, 0, size(content.len()), 0, 0, 0, 0, size(name.len() + 1), 0];
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stand_in_their_folders_and_everything_is_aligned() {
        let mut archive = Initramfs::default();
        archive.write(Path::new("a/b"), 0o755, b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let at = |needle: &[u8]| bytes.windows(needle.len()).position(|window| window == needle).unwrap();
        assert!(
            at(b"a\0") < at(b"a/b\0") && at(b"a/b\0") < at(b"hello") && at(b"hello") < at(b"TRAILER!!!\0")
        );
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(at(b"hello") % 4, 0);
    }
}
