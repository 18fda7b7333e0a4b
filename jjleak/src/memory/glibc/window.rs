//! Chunk headers of one range, read in bulk.

use super::Unknown;
use super::arena::word;
use super::pages::{PageState, Residency};
use crate::jvm::Memory;

/// First read after a jump over a large chunk.
const MIN_WINDOW: u64 = 4 << 10;
/// Distance up to which bytes that nobody needs are read: a call costs as much as reading them.
const NEAR: u64 = 16 << 10;
/// Largest read: fits in the second-level cache, and costs some 30 us.
const MAX_WINDOW: u64 = 256 << 10;

/// A window on memory that moves forward. Only resident pages are read.
pub(super) struct Window<'a, M> {
    memory: &'a M,
    residency: &'a Residency,
    start: u64,
    bytes: Vec<u8>,
    /// Number of valid bytes.
    length: usize,
    next_length: u64,
    end: u64,
}

impl<'a, M: Memory> Window<'a, M> {
    pub(super) fn new(memory: &'a M, residency: &'a Residency, end: u64) -> Self {
        let bytes = vec![0; usize::try_from(MAX_WINDOW).unwrap_or_default()];
        Self { memory, residency, start: 0, bytes, length: 0, next_length: MIN_WINDOW, end }
    }

    /// Returns true if the header of a chunk has been read.
    pub(super) fn has(&self, chunk: u64) -> bool {
        let offset = chunk.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok());
        offset.and_then(|offset| offset.checked_add(16)).is_some_and(|end| end <= self.length)
    }

    /// Forgets what was read, because it has changed, and reads less at a time: smaller reads are more consistent.
    pub(super) const fn forget(&mut self) {
        (self.start, self.length, self.next_length) = (0, 0, MIN_WINDOW);
    }

    /// Reads memory from a chunk on.
    pub(super) fn load(&mut self, chunk: u64) -> Result<(), Unknown> {
        let is_near = self.length > 0 && chunk.saturating_sub(self.start + self.length as u64) < NEAR;
        self.next_length = if is_near { (self.next_length * 2).min(MAX_WINDOW) } else { MIN_WINDOW };
        let wanted = self.next_length.min(self.end.saturating_sub(chunk));
        let readable = self.residency.readable(chunk, wanted);
        self.length = 0;
        if readable < 16 {
            return Err(match self.residency.at(chunk) {
                PageState::Swapped => Unknown::Swapped,
                PageState::Absent | PageState::Resident => Unknown::Torn,
            });
        }
        let length = usize::try_from(readable).unwrap_or_default();
        let read = self.memory.read(chunk, &mut self.bytes[..length]);
        (self.start, self.length) = (chunk, read);
        if read < 16 { Err(Unknown::Torn) } else { Ok(()) }
    }

    /// The memory of a chunk, if all of it has been read.
    pub(super) fn chunk(&self, chunk: u64, size: u64) -> Option<&[u8]> {
        let start = usize::try_from(chunk.checked_sub(self.start)?).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        self.bytes[..self.length].get(start + 16..end)
    }

    /// The size of the free chunk in front of a chunk, and the chunk's own size with its flags. The header must have been read.
    pub(super) fn header(&self, chunk: u64) -> (u64, u64) {
        let offset = chunk - self.start;
        let bytes = &self.bytes[..self.length];
        (word(bytes, offset), word(bytes, offset + 8))
    }
}
