//! Chunks with a mapping of their own: large allocations.

use std::ops::Range;

use super::Chunks;
use super::arena::{Reader, word};
use super::pages::{PAGE, PageState, Pages, Residency};
use super::walk::FLAGS;
use crate::jvm::Memory;
use crate::processes::Mapping;

/// Flag of a size: the chunk has a mapping of its own (`IS_MMAPPED`).
const IS_MAPPED: u64 = 2;
/// Distance of the first `int` in front of `sbrk_base` in malloc's parameters (`struct malloc_par`), since 2.35 and before. Four of them
/// (`n_mmaps`, `n_mmaps_max`, `max_n_mmaps`, `no_dyn_threshold`) precede `mmapped_mem` and `max_mmapped_mem`.
const COUNTS: [u64; 2] = [36, 32];
const MAX_COUNTS: u64 = 36;
/// Bytes of a chunk's header.
const HEADER: usize = 16;
/// Maximum number of pages, and of those that are resident, among which chunks are looked for between other memory.
const MAX_PAGES: u64 = 1 << 20;
const MAX_HEADERS: u64 = 1 << 16;
/// Maximum number of chunks that are looked for, one by one; `vm.max_map_count` is 65,530 unless it was raised.
const MAX_CHUNKS: u64 = 1 << 16;

/// Chunks with a mapping of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Number and bytes, as malloc counts them.
    pub chunks: Chunks,
    /// Address ranges; empty unless their sum is that of `chunks`.
    pub ranges: Vec<Range<u64>>,
}

/// Reads malloc's own counters, which stand in front of the start of the program break, and looks for the chunks.
pub(super) fn read<M: Memory, P: Pages>(
    reader: &Reader<'_, M, P>,
    maps: &[Mapping],
    data: &[Range<u64>],
    base: u64,
) -> Option<Mapped> {
    let chunks = data.iter().find_map(|range| counters(reader, range, base))?;
    let are_all = |ranges: &Vec<Range<u64>>| {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        ranges.len() as u64 == chunks.count && bytes == chunks.bytes
    };
    let is_sought = (1..=MAX_CHUNKS).contains(&chunks.count);
    let first = || Some(first_in_mappings(reader, maps, chunks.count)).filter(are_all);
    let anywhere = || Some(anywhere(reader, maps, chunks.count)).filter(are_all);
    let ranges = is_sought.then(|| first().or_else(anywhere)).flatten().unwrap_or_default();
    Some(Mapped { chunks, ranges })
}

/// The counters in a range of libc's data; `None` unless exactly one place fits.
fn counters<M: Memory, P: Pages>(reader: &Reader<'_, M, P>, range: &Range<u64>, base: u64) -> Option<Chunks> {
    let residency = Residency::of(reader.pages, range.clone()).ok()?;
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let length = residency.readable(at, range.end - at);
        if length == 0 {
            at += PAGE;
            continue;
        }
        let bytes = reader.memory.bytes(at, usize::try_from(length).ok()?)?;
        let places = (MAX_COUNTS.next_multiple_of(8)..length.saturating_sub(7)).step_by(8);
        for place in places.filter(|place| word(&bytes, *place) == base) {
            found.extend(COUNTS.iter().filter_map(|distance| fields(&bytes, place, *distance)));
        }
        at += length;
    }
    match found.as_slice() {
        [only] => Some(*only),
        _ => None,
    }
}

/// The counters in front of a place, if they are plausible.
fn fields(bytes: &[u8], place: u64, distance: u64) -> Option<Chunks> {
    let int = |index: u64| word(bytes, place - distance + 4 * index) & u64::from(u32::MAX);
    let [count, max_allowed, max_count, no_threshold] = [0, 1, 2, 3].map(int);
    let (mapped, max_mapped) = (word(bytes, place - 16), word(bytes, place - 8));
    let is_plausible = count <= max_count
        && max_count <= max_allowed.max(count)
        && no_threshold <= 1
        && mapped <= max_mapped
        && mapped.is_multiple_of(PAGE)
        && count * PAGE <= mapped
        && (count > 0 || mapped == 0);
    is_plausible.then_some(Chunks { count, bytes: mapped })
}

/// Mappings without a file.
fn anonymous(maps: &[Mapping]) -> impl DoubleEndedIterator<Item = &Range<u64>> {
    let anonymous =
        maps.iter().filter(|mapping| mapping.file.is_none() && mapping.path.as_os_str().is_empty());
    anonymous.map(|mapping| &mapping.addresses)
}

/// Chunks at the beginning of mappings, one behind the other: the kernel merges neighbours.
fn first_in_mappings<M: Memory, P: Pages>(
    reader: &Reader<'_, M, P>,
    maps: &[Mapping],
    most: u64,
) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for mapping in anonymous(maps) {
        let mut at = mapping.start;
        while at < mapping.end && (found.len() as u64) < most {
            let header = reader.bytes(at, HEADER as u64).ok();
            let Some(chunk) = header.and_then(|header| chunk(&header, at, mapping.end)) else { break };
            at = chunk.end;
            found.push(chunk);
        }
    }
    found
}

/// Chunks between other memory: the kernel merges them with mappings of others, such as the arenas of Python's objects. They begin at
/// a page. Mappings near the libraries, where the C library's are, come first.
fn anywhere<M: Memory, P: Pages>(reader: &Reader<'_, M, P>, maps: &[Mapping], most: u64) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let (mut pages, mut headers) = (MAX_PAGES, MAX_HEADERS);
    for mapping in anonymous(maps).rev() {
        let Some(left) = pages.checked_sub((mapping.end - mapping.start) / PAGE) else { continue };
        pages = left;
        let Ok(residency) = Residency::of(reader.pages, mapping.clone()) else { continue };
        let mut at = mapping.start;
        while at < mapping.end && (found.len() as u64) < most {
            let mut header = [0; HEADER];
            let is_read = headers > 0 && residency.at(at) == PageState::Resident && {
                headers -= 1;
                reader.memory.read(at, &mut header) == header.len()
            };
            match is_read.then(|| chunk(&header, at, mapping.end)).flatten() {
                Some(chunk) => {
                    at = chunk.end;
                    found.push(chunk);
                }
                None => at += PAGE,
            }
        }
    }
    found
}

/// The chunk with a header, in a mapping that ends there.
fn chunk(header: &[u8], at: u64, end: u64) -> Option<Range<u64>> {
    let (before, size) = (word(header, 0), word(header, 8));
    // Versions differ in whether the size includes what is behind the last byte that can be used.
    let length = (size & !FLAGS).checked_next_multiple_of(PAGE)?;
    let is_chunk = size & FLAGS == IS_MAPPED
        && before == 0
        && length > 0
        && length - (size & !FLAGS) <= 16
        && length <= end - at;
    is_chunk.then(|| at..at + length)
}
