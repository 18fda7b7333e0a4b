//! Access to a process's memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::processes::Pid;

/// Maximum length of a string. Java names may have up to 65,535 bytes; none that anybody reads is longer than
/// this.
pub(super) const MAX_TEXT: usize = 1024;
/// Length of the first read of a string; few names of classes and methods are longer.
pub(super) const SHORT_TEXT: usize = 96;

/// Readable memory.
pub trait Memory {
    /// Reads bytes from an address on, and returns how many could be read.
    fn read(&self, address: u64, into: &mut [u8]) -> usize;

    /// The bytes at an address; `None` if one of them cannot be read.
    fn bytes(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        (self.read(address, &mut bytes) == length).then_some(bytes)
    }

    /// The unsigned number of `width` bytes at an address.
    fn number(&self, address: u64, width: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let into = bytes.get_mut(..width)?;
        (self.read(address, into) == width).then(|| u64::from_le_bytes(bytes))
    }

    /// The pointer at an address.
    fn pointer(&self, address: u64) -> Option<u64> {
        self.number(address, 8)
    }

    /// The NUL-terminated string at an address.
    fn text(&self, address: u64) -> Option<String> {
        let mut bytes = [0; MAX_TEXT];
        // Nearly all strings are short, and longer reads cost more.
        [SHORT_TEXT, MAX_TEXT].into_iter().find_map(|length| {
            let read = self.read(address, &mut bytes[..length]);
            let text = bytes.get(..read)?;
            let end = text.iter().position(|byte| *byte == 0)?;
            Some(String::from_utf8_lossy(&text[..end]).into_owned())
        })
    }
}

/// Page cache for memory that does not change and is read in small pieces.
pub(crate) struct Paged<'a, M> {
    memory: &'a M,
    pages: RefCell<HashMap<u64, Vec<u8>>>,
}

const PAGE: usize = 4096;
/// Maximum number of cached pages; structure descriptions and their names take 40.
const MAX_PAGES: usize = 4096;

impl<'a, M> Paged<'a, M> {
    pub(crate) fn new(memory: &'a M) -> Self {
        Self { memory, pages: RefCell::new(HashMap::new()) }
    }
}

impl<M: Memory> Memory for Paged<'_, M> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut pages = self.pages.borrow_mut();
        let mut read = 0;
        while read < into.len() {
            let Some(at) = address.checked_add(read as u64) else { break };
            let start = at & !(PAGE as u64 - 1);
            if pages.len() == MAX_PAGES {
                pages.clear();
            }
            let page = pages.entry(start).or_insert_with(|| {
                let mut page = vec![0; PAGE];
                let length = self.memory.read(start, &mut page);
                page.truncate(length);
                page
            });
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let rest = page.get(from..).unwrap_or_default();
            let length = rest.len().min(into.len() - read);
            if length == 0 {
                break;
            }
            into[read..read + length].copy_from_slice(&rest[..length]);
            read += length;
        }
        read
    }
}

/// Memory of a running process. It stays with the program that it was opened for, also after `exec`.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens the memory of a thread's process.
    pub fn open(thread: Pid) -> io::Result<Self> {
        File::open(format!("/proc/{thread}/mem")).map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut read = 0;
        while let Some(rest) = into.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, address.wrapping_add(read as u64)) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        read
    }
}
