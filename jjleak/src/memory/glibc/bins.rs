//! Free chunks by the arena's lists: far fewer than all chunks in a large heap.
//!
//! Each bin is a ring of chunks with links in both directions. A free chunk's size is repeated behind it.

use std::ops::Range;

use super::Unknown;
use super::arena::{BINS, Header, Reader};
use super::lists::Lists;
use super::pages::Pages;
use super::walk::FLAGS;
use crate::jvm::Memory;

/// Maximum number of free chunks that are followed: each takes up to two reads of a page, some 2 µs. With more of them, a walk over all
/// chunks takes less time.
const MAX_CHUNKS: usize = 20_000;
/// Attempts to read a bin that changes meanwhile.
const TRIES: usize = 8;

/// Free chunks in the bins of an arena; `None` if there are too many. Each must be in one of the arena's ranges.
pub(super) fn chunks<M: Memory, P: Pages>(
    reader: &Reader<'_, M, P>,
    header: &Header,
    ranges: &[Range<u64>],
) -> Result<Option<Vec<Range<u64>>>, Unknown> {
    let mut found = Vec::new();
    for bin in 0..BINS {
        // A ring's first link is where that of a chunk would be.
        let ring = header.top_at + 16 * bin;
        let known = found.len();
        let mut read = Err(Unknown::Torn);
        for _ in 0..TRIES {
            found.truncate(known);
            let lists = Lists::new(reader.memory, reader.pages);
            read = follow(&lists, ring, ranges, &mut found);
            if !matches!(read, Err(Unknown::Torn)) {
                break;
            }
        }
        if !read? {
            return Ok(None);
        }
    }
    Ok(Some(found))
}

/// Adds the chunks of a ring. Returns false if there are too many.
fn follow<M: Memory, P: Pages>(
    lists: &Lists<'_, M, P>,
    ring: u64,
    ranges: &[Range<u64>],
    found: &mut Vec<Range<u64>>,
) -> Result<bool, Unknown> {
    let (mut before, mut chunk) = (ring, lists.word(ring + 16)?);
    while chunk != ring {
        if found.len() == MAX_CHUNKS {
            return Ok(false);
        }
        let range = ranges.iter().find(|range| range.contains(&chunk)).ok_or(Unknown::Torn)?;
        if !chunk.is_multiple_of(16) || lists.word(chunk + 24)? != before {
            return Err(Unknown::Torn);
        }
        let size = lists.word(chunk + 8)? & !FLAGS;
        let end =
            chunk.checked_add(size).filter(|end| size >= 32 && *end < range.end).ok_or(Unknown::Torn)?;
        if !size.is_multiple_of(16) || lists.word(end)? != size {
            return Err(Unknown::Torn);
        }
        found.push(chunk..end);
        (before, chunk) = (chunk, lists.word(chunk + 16)?);
    }
    if lists.word(ring + 24)? == before { Ok(true) } else { Err(Unknown::Torn) }
}
