//! Pages of the files that this process reads symbols from: resident memory until they are given back.
//!
//! blazesym maps files whole, and keeps them mapped. Their pages stay in the page cache when they are given back, and the next
//! access maps them again.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::libc::{MADV_DONTNEED, madvise};

/// Resident bytes of files from which on their pages are given back.
const MOST_BYTES: u64 = 24 << 20;
const PAGE_BYTES: u64 = 4096;
/// Maximum length of the list of mappings: this process has some hundred.
const MAX_LIST_BYTES: usize = 256 << 10;

/// The list of this process's mappings, and its memory. They are opened before the process gives up its files.
#[derive(Debug)]
pub(super) struct MappedPages {
    mappings: File,
    memory: File,
    /// First addresses of the program's own mappings, which relocation has written to.
    own: BTreeSet<u64>,
}

impl MappedPages {
    /// Call this before any file is mapped to be read.
    pub(super) fn open() -> io::Result<Self> {
        let mut this = Self {
            mappings: File::open("/proc/self/maps")?,
            memory: File::open("/proc/self/statm")?,
            own: BTreeSet::new(),
        };
        this.own = this.all()?.lines().filter_map(of_file).map(|range| range.start).collect();
        Ok(this)
    }

    /// Gives pages back if they are many.
    pub(super) fn limit(&self) {
        if self.resident_bytes().is_some_and(|bytes| bytes > MOST_BYTES)
            && let Ok(list) = self.all()
        {
            let read = list.lines().filter_map(of_file).filter(|range| !self.own.contains(&range.start));
            read.for_each(|range| give_back(&range));
        }
    }

    /// Resident memory of files (`shared` of `proc_pid_statm(5)`).
    fn resident_bytes(&self) -> Option<u64> {
        let mut text = [0; 128];
        let length = self.memory.read_at(&mut text, 0).ok()?;
        let pages = str::from_utf8(&text[..length]).ok()?.split(' ').nth(2)?;
        pages.parse::<u64>().ok()?.checked_mul(PAGE_BYTES)
    }

    fn all(&self) -> io::Result<String> {
        let mut list = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let length = self.mappings.read_at(&mut chunk, list.len() as u64)?;
            list.extend_from_slice(&chunk[..length]);
            if length == 0 || list.len() > MAX_LIST_BYTES {
                return Ok(String::from_utf8_lossy(&list).into_owned());
            }
        }
    }
}

/// Addresses of a file that is mapped to be read, by a line of `/proc/self/maps`.
fn of_file(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_read_only = words.next()?.starts_with("r--");
    let inode = words.nth(2)?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    (is_read_only && inode != "0").then_some(address(start)?..address(end)?)
}

fn give_back(Range { start, end }: &Range<u64>) {
    let (Ok(address), Ok(length)) = (usize::try_from(*start), usize::try_from(end - start)) else { return };
    let address = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: nothing has written to these pages, so that the next access finds what is there now. If it fails, they stay resident.
    unsafe { madvise(address, length, MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use memmap2::Mmap;

    use super::*;

    #[test]
    fn pages_of_files_that_are_read_are_given_back_and_read_again() {
        let mut file = tempfile::tempfile().unwrap();
        let length = usize::try_from(MOST_BYTES).unwrap() + (1 << 20);
        let content: Vec<u8> = (0..=250).cycle().take(length).collect();
        file.write_all(&content).unwrap();
        let pages = MappedPages::open().unwrap();
        // SAFETY: nothing changes the file.
        let mapped = unsafe { Mmap::map(&file) }.unwrap();
        assert!(mapped[..] == content[..]);
        let before = pages.resident_bytes().unwrap();
        pages.limit();
        let after = pages.resident_bytes().unwrap();
        assert!(before > MOST_BYTES && before - after >= MOST_BYTES, "{before} {after}");
        assert!(mapped[..] == content[..]);
    }

    #[test]
    fn lines_of_other_mappings_are_left_out() {
        assert_eq!(of_file("1000-3000 r--p 00000000 fd:01 7   /descriptors/5"), Some(0x1000..0x3000));
        for line in [
            "1000-2000 r-xp 0 fd:01 7 /a",
            "1000-2000 rw-p 0 fd:01 7 /a",
            "1000-2000 r--p 0 00:00 0",
            "1000",
            "",
        ] {
            assert_eq!(of_file(line), None, "{line}");
        }
    }
}
