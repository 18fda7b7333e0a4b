//! Arena headers (`struct malloc_state`), and the search for the first of them.

use std::ops::Range;

use super::Unknown;
use super::pages::{PAGE, PageState, Pages, Residency};
use crate::jvm::Memory;

/// Pairs of links, one per bin (`NBINS - 1`): a bin without chunks links to itself.
pub(super) const BINS: u64 = 127;
const BINS_BYTES: u64 = BINS * 16;
/// Bytes of the bitmap of bins, which follows them.
const BINMAP_BYTES: u64 = 16;
/// Fields after the bitmap: `next`, `next_free`, `attached_threads`, `system_mem`, `max_system_mem`.
const TAIL_BYTES: u64 = 5 * 8;
/// Number of fastbins (`NFASTBINS`).
const FASTBINS: u64 = 10;
/// Flag of the main arena: `brk` failed, and the arena has other mappings (`NONCONTIGUOUS_BIT`).
const NONCONTIGUOUS: u64 = 2;

/// Maximum size and alignment of a heap of another arena (`HEAP_MAX_SIZE`, without the tunable for huge pages).
pub(super) const HEAP_MAX: u64 = 64 << 20;
/// Sizes of a heap's header (`heap_info`): before 2.35, and since.
const HEAP_HEADERS: [u64; 2] = [0x20, 0x30];
/// Maximum number of arenas. The default limit is 8 per core.
const MAX_ARENAS: usize = 1 << 16;
/// Maximum number of threads of a host (`PID_MAX_LIMIT`).
const MAX_THREADS: u64 = 4 << 20;
/// Maximum number of bytes that are searched for the main arena: `.data` of libc has 6 KiB, that of a large static program
/// some MiB.
const MAX_SEARCHED: u64 = 16 << 20;

/// Offset of the bins in an arena, which tells the versions of the structure apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    bins: u64,
    /// Offset of the fastbins, in versions that have them.
    fastbins: Option<u64>,
}

/// Since 2.27 (with `have_fastchunks`), 2.26, and without fastbins (after 2.42).
const LAYOUTS: [Layout; 3] = [
    Layout { bins: 0x70, fastbins: Some(0x10) },
    Layout { bins: 0x68, fastbins: Some(0x8) },
    Layout { bins: 0x18, fastbins: None },
];

impl Layout {
    const fn size(self) -> u64 {
        self.bins + BINS_BYTES + BINMAP_BYTES + TAIL_BYTES
    }
}

/// The fields of an arena that matter here.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) address: u64,
    pub(super) is_contiguous: bool,
    /// First chunk of each fastbin; links are not decoded.
    pub(super) fastbins: Vec<u64>,
    pub(super) top: u64,
    /// Address of the pointer to the top chunk.
    pub(super) top_at: u64,
    next: u64,
    pub(super) attached_threads: u64,
    pub(super) system_mem: u64,
    pub(super) max_system_mem: u64,
    /// Address behind the structure.
    pub(super) end: u64,
}

/// Reads memory without making a page resident.
pub(super) struct Reader<'a, M, P> {
    pub(super) memory: &'a M,
    pub(super) pages: &'a P,
}

impl<M: Memory, P: Pages> Reader<'_, M, P> {
    pub(super) fn bytes(&self, address: u64, length: u64) -> Result<Vec<u8>, Unknown> {
        let end = address.checked_add(length).ok_or(Unknown::Torn)?;
        let mut states = Vec::new();
        self.pages.states(address & !(PAGE - 1)..end, &mut states).map_err(|_| Unknown::Unreadable)?;
        if states.contains(&PageState::Swapped) {
            return Err(Unknown::Swapped);
        }
        if states.contains(&PageState::Absent) {
            return Err(Unknown::Torn);
        }
        let length = usize::try_from(length).map_err(|_| Unknown::Torn)?;
        self.memory.bytes(address, length).ok_or(Unknown::Torn)
    }

    pub(super) fn word(&self, address: u64) -> Result<u64, Unknown> {
        self.bytes(address, 8).map(|bytes| word(&bytes, 0))
    }

    /// Reads an arena.
    pub(super) fn header(&self, address: u64, layout: Layout) -> Result<Header, Unknown> {
        let bytes = self.bytes(address, layout.size())?;
        let at = |offset: u64| word(&bytes, offset);
        let tail = layout.bins + BINS_BYTES + BINMAP_BYTES;
        let header = Header {
            address,
            is_contiguous: (at(0) >> 32) & NONCONTIGUOUS == 0,
            fastbins: layout
                .fastbins
                .map_or_else(Vec::new, |first| (0..FASTBINS).map(|index| at(first + 8 * index)).collect()),
            top: at(layout.bins - 16),
            top_at: address + layout.bins - 16,
            next: at(tail),
            attached_threads: at(tail + 16),
            system_mem: at(tail + 24),
            max_system_mem: at(tail + 32),
            end: address + layout.size(),
        };
        let is_plausible = header.system_mem <= header.max_system_mem
            && header.top.is_multiple_of(16)
            && header.system_mem.is_multiple_of(16)
            && header.attached_threads <= MAX_THREADS
            && header.max_system_mem < 1 << 47;
        if is_plausible { Ok(header) } else { Err(Unknown::Torn) }
    }

    /// Reads a heap of an arena other than the main one: its predecessor and its size.
    pub(super) fn heap(&self, heap: u64, arena: u64) -> Result<(u64, u64), Unknown> {
        let bytes = self.bytes(heap, 24)?;
        let (owner, previous, size) = (word(&bytes, 0), word(&bytes, 8), word(&bytes, 16));
        if owner == arena && size.is_multiple_of(PAGE) && size <= HEAP_MAX && size > 0 {
            Ok((previous, size))
        } else {
            Err(Unknown::Torn)
        }
    }

    /// Finds the main arena in the data of libc or of a static program, and the arenas that it links to. It is recognized without
    /// symbols: by 127 bins that are empty or link to chunks, and by a ring of arenas that leads back to it.
    pub(super) fn arenas(&self, data: &[Range<u64>]) -> Result<(Layout, Vec<u64>), Unknown> {
        let mut searched = 0;
        let mut reason = Unknown::NoArena;
        for range in data {
            searched += range.end - range.start;
            if searched > MAX_SEARCHED {
                break;
            }
            for bins in self.bins(range)? {
                for layout in LAYOUTS {
                    match self.ring(bins.saturating_sub(layout.bins), layout) {
                        Ok(ring) => return Ok((layout, ring)),
                        Err(Unknown::Swapped) => reason = Unknown::Swapped,
                        Err(_) => {}
                    }
                }
            }
        }
        Err(reason)
    }

    /// Addresses in a range that could be those of an arena's bins.
    fn bins(&self, range: &Range<u64>) -> Result<Vec<u64>, Unknown> {
        let residency = Residency::of(self.pages, range.clone()).map_err(|_| Unknown::Unreadable)?;
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let length = residency.readable(at, range.end - at);
            if length == 0 {
                at += PAGE;
                continue;
            }
            let bytes = self
                .memory
                .bytes(at, usize::try_from(length).map_err(|_| Unknown::Torn)?)
                .ok_or(Unknown::Torn)?;
            let words: Vec<u64> =
                bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
            let windows = words.windows(2 * usize::try_from(BINS).unwrap_or(usize::MAX));
            found.extend(
                (at..).step_by(8).zip(windows).filter(|(at, words)| are_bins(*at, words)).map(|(at, _)| at),
            );
            at += length;
        }
        Ok(found)
    }

    /// Follows the ring of arenas from the main one; fails unless each is at the start of a heap that belongs to it.
    fn ring(&self, main: u64, layout: Layout) -> Result<Vec<u64>, Unknown> {
        let mut ring = vec![main];
        let mut next = self.header(main, layout)?.next;
        while next != main {
            let heap = next & !(HEAP_MAX - 1);
            if ring.len() == MAX_ARENAS || !HEAP_HEADERS.contains(&(next - heap)) {
                return Err(Unknown::Torn);
            }
            self.heap(heap, next)?;
            ring.push(next);
            next = self.header(next, layout)?.next;
        }
        Ok(ring)
    }
}

/// Returns true if words can be the bins at an address.
fn are_bins(address: u64, words: &[u64]) -> bool {
    let mut empty = false;
    let fits = (address.wrapping_sub(16)..).step_by(16).zip(words.as_chunks::<2>().0).all(
        |(itself, [first, last])| {
            let is_empty = *first == itself && *last == itself;
            empty |= is_empty;
            let is_chunk = |link: u64| link != 0 && link != itself && link.is_multiple_of(16);
            is_empty || (is_chunk(*first) && is_chunk(*last))
        },
    );
    fits && empty
}

/// The number at an offset; zero outside of the bytes.
pub(super) fn word(bytes: &[u8], offset: u64) -> u64 {
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let bytes = bytes.get(offset..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
