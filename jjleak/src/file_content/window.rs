//! Short reads in any order, with a small cache of blocks instead of all that was read.

use std::ops::Range;

use memchr::memchr;

use super::Content;
use super::lazy::LazyFile;
use crate::fast_map::{FastMap, fast_map};

/// Size of a block. Linkers that sort dynamic symbols by their hashes leave the names in another order: with larger blocks, 400,000
/// symbols take minutes.
const BLOCK_BYTES: u64 = 4 << 10;
/// Number of cached blocks: 16 MiB.
const BLOCKS: u64 = 4096;
/// Number of blocks that are read at once until the cache is full: the names of most files fit, and are read in fewer calls.
const AHEAD: u64 = 16;

/// Reads short ranges of a file.
#[derive(Debug)]
pub struct Window<'data> {
    content: Content<'data>,
    /// Number and bytes of a block, by its number modulo [`BLOCKS`].
    blocks: FastMap<u64, (u64, Vec<u8>)>,
    /// Number of blocks read.
    read: u64,
    /// A range that spans blocks.
    joined: Vec<u8>,
}

impl<'data> Window<'data> {
    /// A window on a file.
    #[must_use]
    pub fn new(content: Content<'data>) -> Self {
        Self { content, blocks: fast_map(0), read: 0, joined: Vec::new() }
    }

    /// The bytes of a range, as far as the file has them; `None` if it cannot be read.
    pub fn bytes(&mut self, range: Range<u64>) -> Option<&[u8]> {
        let range = range.start..range.end.min(self.content.length());
        let file = match self.content {
            Content::Memory(_) => return self.content.get(range),
            Content::File(file) => file,
        };
        if range.is_empty() {
            return (range.start == range.end).then_some(&[]);
        }
        let (first, last) = (range.start / BLOCK_BYTES, (range.end - 1) / BLOCK_BYTES);
        let begin = usize::try_from(range.start % BLOCK_BYTES).ok()?;
        let length = usize::try_from(range.end - range.start).ok()?;
        if first == last {
            return self.block(file, first)?.get(begin..begin + length);
        }
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        for number in first..=last {
            let skipped = if number == first { begin } else { 0 };
            let rest = self.block(file, number)?.get(skipped..)?;
            joined.extend_from_slice(&rest[..rest.len().min(length - joined.len())]);
        }
        self.joined = joined;
        Some(&self.joined)
    }

    /// The string that begins at the start of a range and ends before the first NUL in it; `None` without a NUL among the first
    /// `most` bytes.
    pub fn string(&mut self, range: Range<u64>, most: usize) -> Option<&[u8]> {
        let end = range.end.min(range.start.checked_add(most as u64)?);
        let bytes = self.bytes(range.start..end)?;
        bytes.get(..memchr(0, bytes)?)
    }

    fn block(&mut self, file: &LazyFile<'_>, number: u64) -> Option<&[u8]> {
        let slot = number % BLOCKS;
        if self.blocks.get(&slot).is_none_or(|(known, _)| *known != number) {
            let (first, count) =
                if self.read < BLOCKS { (number - number % AHEAD, AHEAD) } else { (number, 1) };
            self.read_blocks(file, first, count)?;
        }
        self.blocks.get(&slot).map(|(_, bytes)| &bytes[..])
    }

    fn read_blocks(&mut self, file: &LazyFile<'_>, first: u64, count: u64) -> Option<()> {
        let start = first * BLOCK_BYTES;
        let length = (count * BLOCK_BYTES).min(file.length() - start);
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        file.fill(start, &mut bytes)?;
        for (number, block) in (first..).zip(bytes.chunks(usize::try_from(BLOCK_BYTES).ok()?)) {
            self.blocks.insert(number % BLOCKS, (number, block.to_vec()));
            self.read += 1;
        }
        Some(())
    }
}
