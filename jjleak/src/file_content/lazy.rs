//! A file that is read block by block.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memmap2::{MmapOptions, MmapRaw};

use super::cost::{Meter, TooCostly};

/// Size of a block.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;

/// A file with the blocks that have been read. It takes memory for these only.
#[derive(Debug)]
pub struct LazyFile<'file> {
    file: &'file File,
    length: u64,
    /// Address space for the whole file.
    memory: MmapRaw,
    /// True for each block that has been read.
    read: RefCell<Vec<bool>>,
    meter: Meter,
    /// Number of bytes read by [`Self::fill`].
    #[cfg(test)]
    pub(super) filled: std::cell::Cell<u64>,
}

impl<'file> LazyFile<'file> {
    /// The content of a file in its current length.
    pub fn new(file: &'file File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let size = usize::try_from(length).map_err(io::Error::other)?.max(1);
        let memory = MmapOptions::new().len(size).no_reserve_swap().map_anon()?.into();
        let blocks = usize::try_from(length.div_ceil(BLOCK_BYTES)).map_err(io::Error::other)?;
        Ok(Self {
            file,
            length,
            memory,
            read: RefCell::new(vec![false; blocks]),
            meter: Meter::start(),
            #[cfg(test)]
            filled: std::cell::Cell::default(),
        })
    }

    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn exceeded(&self) -> Option<TooCostly> {
        self.meter.exceeded()
    }

    /// The bytes of a range, which stay in memory; `None` if the file does not have them, cannot be read, or costs too much.
    pub(super) fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.length || self.exceeded().is_some() {
            return None;
        }
        self.meter.work(range.end - range.start)?;
        for block in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
            self.read_block(block)?;
        }
        let (start, length) =
            (usize::try_from(range.start).ok()?, usize::try_from(range.end - range.start).ok()?);
        // SAFETY: the range is in bounds of the memory, which lives as long as `self`. Its blocks have been read, and blocks that
        // have been read are not written again.
        Some(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(start), length) })
    }

    fn read_block(&self, block: u64) -> Option<()> {
        let index = usize::try_from(block).ok()?;
        if *self.read.borrow().get(index)? {
            return Some(());
        }
        let start = block * BLOCK_BYTES;
        let length = BLOCK_BYTES.min(self.length - start);
        self.meter.hold(length)?;
        let (offset, length) = (usize::try_from(start).ok()?, usize::try_from(length).ok()?);
        // SAFETY: the block is in bounds of the memory. Nothing refers to it, because it has not been read.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(offset), length) };
        self.file.read_exact_at(bytes, start).ok()?;
        self.read.borrow_mut()[index] = true;
        Some(())
    }

    /// Fills a buffer without keeping the bytes; `None` if the file does not have them, cannot be read, or costs too much.
    pub(super) fn fill(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.meter.check()?;
        #[cfg(test)]
        self.filled.set(self.filled.get() + buffer.len() as u64);
        self.file.read_exact_at(buffer, offset).ok()
    }

    /// Number of blocks in memory.
    #[cfg(test)]
    pub(crate) fn held(&self) -> Vec<bool> {
        self.read.borrow().clone()
    }
}
