//! Free chunks that look as if in use: fastbins and thread caches.

use std::cell::RefCell;
use std::ops::Range;

use super::Unknown;
use super::arena::{Reader, word};
use super::pages::{PAGE, Pages};
use super::walk::FLAGS;
use crate::jvm::Memory;

/// Maximum number of chunks in the fastbins of an arena: 8 MiB of addresses.
const MAX_FAST: usize = 1 << 20;
/// Maximum number of chunks in one list of a thread's cache (`MAX_TCACHE_COUNT`).
const MAX_CACHED: usize = u16::MAX as usize;
/// Pages kept, because neighbours in a list often share one.
const KEPT_PAGES: usize = 64;

/// Encoding of links between free chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Combined with their own address, since 2.32 (`PROTECT_PTR`).
    Mangled,
    /// As they are.
    Plain,
}

impl Links {
    const fn decode(self, address: u64, stored: u64) -> u64 {
        match self {
            Self::Mangled => (address >> 12) ^ stored,
            Self::Plain => stored,
        }
    }
}

/// A few pages of memory, for lists.
pub(super) struct Lists<'a, M, P> {
    reader: Reader<'a, M, P>,
    kept: RefCell<Vec<(u64, Vec<u8>)>>,
}

impl<'a, M: Memory, P: Pages> Lists<'a, M, P> {
    pub(super) fn new(memory: &'a M, pages: &'a P) -> Self {
        let kept = RefCell::new(vec![(u64::MAX, Vec::new()); KEPT_PAGES]);
        Self { reader: Reader { memory, pages }, kept }
    }

    /// The number at an address that is a multiple of 8.
    pub(super) fn word(&self, address: u64) -> Result<u64, Unknown> {
        let page = address & !(PAGE - 1);
        let slot = usize::try_from(page / PAGE).unwrap_or_default() % KEPT_PAGES;
        let mut kept = self.kept.borrow_mut();
        if kept[slot].0 != page {
            kept[slot] = (u64::MAX, Vec::new());
            kept[slot] = (page, self.reader.bytes(page, PAGE)?);
        }
        Ok(word(&kept[slot].1, address - page))
    }

    /// Ranges of the chunks in fastbins; each must be in one of the arena's ranges.
    pub(super) fn fast_chunks(
        &self,
        heads: &[u64],
        ranges: &[Range<u64>],
    ) -> Result<Vec<Range<u64>>, Unknown> {
        let chunks = self.fast(heads, ranges)?;
        chunks.into_iter().map(|chunk| Ok(chunk..chunk + (self.word(chunk + 8)? & !FLAGS))).collect()
    }

    /// Chunks in fastbins, in ascending order; each must be in one of the arena's ranges.
    pub(super) fn fast(&self, heads: &[u64], ranges: &[Range<u64>]) -> Result<Vec<u64>, Unknown> {
        if heads.iter().all(|head| *head == 0) {
            return Ok(Vec::new());
        }
        self.fast_with(Links::Mangled, heads, ranges).or_else(|unknown| match unknown {
            Unknown::Torn => self.fast_with(Links::Plain, heads, ranges),
            other => Err(other),
        })
    }

    fn fast_with(&self, links: Links, heads: &[u64], ranges: &[Range<u64>]) -> Result<Vec<u64>, Unknown> {
        let mut found = Vec::new();
        for (size, head) in (32..).step_by(16).zip(heads) {
            let mut chunk = *head;
            while chunk != 0 {
                if found.len() == MAX_FAST {
                    return Err(Unknown::TooMany);
                }
                let is_in_arena = ranges.iter().any(|range| range.contains(&chunk));
                if !is_in_arena || !chunk.is_multiple_of(16) || self.word(chunk + 8)? & !FLAGS != size {
                    return Err(Unknown::Torn);
                }
                found.push(chunk);
                chunk = links.decode(chunk + 16, self.word(chunk + 16)?);
            }
        }
        found.sort_unstable();
        let all = found.len();
        found.dedup();
        if found.len() == all { Ok(found) } else { Err(Unknown::Torn) }
    }

    /// The free chunks, with their sizes, in what may be a thread's cache. `None` if it is none, empty, or changing.
    pub(super) fn cache(&self, chunk: u64, ranges: &[Range<u64>]) -> Option<Vec<(u64, u64)>> {
        let size = self.word(chunk + 8).ok()? & !FLAGS;
        let shape = Shape::of(size)?;
        let links: &[Links] = match shape.links {
            Some(Links::Mangled) => &[Links::Mangled],
            Some(Links::Plain) => &[Links::Plain],
            None => &[Links::Mangled, Links::Plain],
        };
        let found = links.iter().find_map(|links| self.cache_with(chunk, shape, *links, ranges));
        found.filter(|entries| !entries.is_empty())
    }

    fn cache_with(
        &self,
        chunk: u64,
        shape: &Shape,
        links: Links,
        ranges: &[Range<u64>],
    ) -> Option<Vec<(u64, u64)>> {
        let memory = chunk + 16;
        let mut found = Vec::new();
        let mut keys = None;
        let mut capacity = None;
        for bin in 0..shape.bins {
            let address = memory + bin * shape.counter_bytes;
            let counters = self.word(address & !7).ok()? >> (8 * (address & 7));
            let counter = counters & ((1 << (8 * shape.counter_bytes)) - 1);
            let entries = memory + shape.bins * shape.counter_bytes;
            let mut entry = self.word(entries + 8 * bin).ok()?;
            let mut length = 0;
            while entry != 0 {
                let is_chunk = ranges.iter().any(|range| range.contains(&entry)) && entry.is_multiple_of(16);
                if !is_chunk || length == MAX_CACHED {
                    return None;
                }
                let size = self.word(entry - 8).ok()? & !FLAGS;
                let key = self.word(entry + 8).ok()?;
                let is_of_bin = shape.bin(size) == Some(bin);
                if !is_of_bin || (shape.has_keys && *keys.get_or_insert(key) != key) {
                    return None;
                }
                found.push((entry - 16, size));
                entry = links.decode(entry, self.word(entry).ok()?);
                length += 1;
            }
            let is_counted = if shape.counts_free_slots {
                let slots = counter + length as u64;
                slots == 0 || *capacity.get_or_insert(slots) == slots
            } else {
                counter == length as u64
            };
            if !is_counted {
                return None;
            }
        }
        Some(found)
    }
}

/// Shape of a thread's cache (`tcache_perthread_struct`): counters, then the first entry of each list.
struct Shape {
    /// Size of its chunk. It is one unit larger if the rest was too small for a chunk.
    size: u64,
    bins: u64,
    counter_bytes: u64,
    /// True if a counter is the number of chunks that fit into the list besides those in it.
    counts_free_slots: bool,
    /// Encoding of links, if all versions with this shape agree.
    links: Option<Links>,
    /// True if all entries have the same key.
    has_keys: bool,
}

/// Number of lists with chunks of one size.
const SMALL_BINS: u64 = 64;
/// Largest size of a chunk in those lists, as a power of two.
const SMALL_POWER: u64 = 10;

/// Of 2.26 to 2.29, 2.30 to 2.41, and since 2.42.
const SHAPES: [Shape; 3] = [
    Shape {
        size: 0x250,
        bins: 64,
        counter_bytes: 1,
        counts_free_slots: false,
        links: Some(Links::Plain),
        has_keys: false,
    },
    Shape { size: 0x290, bins: 64, counter_bytes: 2, counts_free_slots: false, links: None, has_keys: true },
    Shape {
        size: 0x300,
        bins: 76,
        counter_bytes: 2,
        counts_free_slots: true,
        links: Some(Links::Mangled),
        has_keys: true,
    },
];

/// Returns false if a chunk cannot be a thread's cache with chunks in it. `memory` is the chunk's, if it has been read.
pub(super) fn may_be_cache(size: u64, memory: Option<&[u8]>) -> bool {
    let Some(shape) = Shape::of(size) else { return false };
    memory.is_none_or(|memory| {
        let entries = shape.bins * shape.counter_bytes;
        let mut any = false;
        let fits = (0..shape.bins).all(|bin| {
            let entry = word(memory, entries + 8 * bin);
            any |= entry != 0;
            entry.is_multiple_of(16)
        });
        fits && any
    })
}

impl Shape {
    /// Shape with a chunk size.
    fn of(size: u64) -> Option<&'static Self> {
        SHAPES.iter().find(|shape| size == shape.size || size == shape.size + 16)
    }

    /// List of a chunk size.
    fn bin(&self, size: u64) -> Option<u64> {
        let small = size.checked_sub(32)? / 16;
        if !size.is_multiple_of(16) {
            None
        } else if small < SMALL_BINS {
            Some(small)
        } else {
            let bin = SMALL_BINS + u64::from(size.ilog2()) - SMALL_POWER;
            (bin < self.bins).then_some(bin)
        }
    }
}
