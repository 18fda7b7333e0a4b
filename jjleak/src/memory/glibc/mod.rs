//! Arenas of glibc's malloc, read from outside.
//!
//! In: a process's memory, its mappings and the state of its pages. Out: what the bytes of each arena are used for, and the address
//! ranges that belong to malloc. Facts are those of `malloc/malloc.c` and `malloc/arena.c` of glibc 2.26 to 2.43, on x86-64.
//!
//! No symbols are needed: the structures are recognized by their invariants, and all of them are checked. Memory changes while it is
//! read, so that what is inconsistent is read again; if it stays so, the result is [`Unknown`]. Only resident pages are read: a scan
//! makes nothing resident.

mod arena;
mod bins;
mod lists;
mod mapped;
mod pages;
#[cfg(test)]
mod tests;
mod usage;
mod walk;
mod window;

use std::collections::HashSet;
use std::ops::Range;

pub use mapped::Mapped;
pub use pages::{PageState, Pages, ProcessPages};
pub use usage::{Chunks, Free, Usage};

use crate::jvm::Memory;
use crate::processes::Mapping;
use arena::{HEAP_MAX, Header, Layout, Reader};
use lists::Lists;
use pages::{PAGE, Residency};
use walk::{End, Segment, Top, Walk};

/// Maximum number of attempts to read an arena that changes meanwhile. Each part of a walk has its own.
const TRIES: u32 = 16;
/// Maximum number of attempts to read caches of threads, which change with each allocation.
const CACHE_TRIES: u32 = 10;
/// Maximum size of an arena: the states of its pages take 32 MiB.
const MAX_ARENA_BYTES: u64 = 128 << 30;

/// Size of all arenas from which on chunks in use are not counted one by one: that takes 0.37 s for a GiB.
const MAX_WALKED_BYTES: u64 = 256 << 20;

/// Reason why nothing can be said of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// No main arena was found: another allocator, another version of glibc, or no allocation yet.
    #[error("no arena of glibc 2.26 to 2.43 was found")]
    NoArena,
    /// A structure or the header of a chunk is in swap.
    #[error("a part of the heap is in swap, and reading it would bring it back")]
    Swapped,
    /// Another user of the program break has memory between malloc's.
    #[error("the program break has another user beside malloc")]
    ForeignBreak,
    /// The main arena is not contiguous: `brk` failed.
    #[error("the main arena has memory apart from the program break")]
    NotContiguous,
    /// Structures contradict each other, in each attempt.
    #[error("the heap changed while it was read, or is damaged")]
    Torn,
    /// The fastbins have too many chunks.
    #[error("there are too many free chunks in fastbins")]
    TooMany,
    /// The arena is too large.
    #[error("the arena is larger than 128 GiB")]
    TooLarge,
    /// The kernel denies access.
    #[error("the process's memory cannot be read")]
    Unreadable,
}

/// One arena.
#[derive(Debug, Clone)]
pub struct Arena {
    /// Address of its structure.
    pub address: u64,
    /// True for the main arena, which uses the program break.
    pub is_main: bool,
    /// Address ranges of its heaps, as far as they are known.
    pub ranges: Vec<Range<u64>>,
    /// Bytes that the arena has from the system.
    pub system_bytes: u64,
    /// Maximum of `system_bytes` since the start.
    pub max_system_bytes: u64,
    /// Number of threads that allocate from it.
    pub attached_threads: u64,
    /// Use of its bytes.
    pub usage: Result<Usage, Unknown>,
}

/// The arenas of a process.
#[derive(Debug, Clone)]
pub struct Arenas {
    /// All arenas, the main one first.
    pub arenas: Vec<Arena>,
    /// Number of thread caches that were found with chunks in them. What is in others is counted as live.
    pub thread_caches: usize,
    /// Chunks with a mapping of their own; `None` if their number is not certain.
    pub mapped: Option<Mapped>,
}

impl Arenas {
    /// Sum over the arenas; the first reason if one of them is unknown.
    pub fn total(&self) -> Result<Usage, Unknown> {
        self.arenas.iter().try_fold(Usage::default(), |mut sum, arena| {
            sum += arena.usage?;
            Ok(sum)
        })
    }

    /// All ranges of addresses that belong to malloc.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mapped = self.mapped.iter().flat_map(|mapped| &mapped.ranges);
        self.arenas.iter().flat_map(|arena| &arena.ranges).chain(mapped).cloned()
    }
}

/// Reads the arenas of a process.
pub fn read(memory: &impl Memory, pages: &impl Pages, maps: &[Mapping]) -> Result<Arenas, Unknown> {
    let scan = Scan { reader: Reader { memory, pages }, maps };
    let data = data(maps);
    let (layout, ring) = repeat(|| scan.reader.arenas(&data))?;
    let mut candidates = Vec::new();
    let mut arenas: Vec<Arena> = Vec::new();
    let sizes =
        ring.iter().map(|address| scan.reader.header(*address, layout).map_or(0, |header| header.system_mem));
    let is_large = sizes.fold(0_u64, u64::saturating_add) > MAX_WALKED_BYTES;
    for address in &ring {
        let is_main = *address == ring[0];
        arenas.push(scan.arena(*address, is_main, is_large, layout, &mut candidates)?);
    }
    let thread_caches = scan.caches(&mut arenas, &candidates);
    let base = arenas.first().and_then(|main| main.ranges.first()).map(|range| range.start);
    let mapped = base.and_then(|base| mapped::read(&scan.reader, maps, &data, base));
    Ok(Arenas { arenas, thread_caches, mapped })
}

/// Ranges of addresses that belong to malloc, without a look at its chunks. Those of an arena that changes meanwhile can be missing.
pub fn ranges(
    memory: &impl Memory,
    pages: &impl Pages,
    maps: &[Mapping],
) -> Result<Vec<Range<u64>>, Unknown> {
    let scan = Scan { reader: Reader { memory, pages }, maps };
    let data = data(maps);
    let (layout, ring) = repeat(|| scan.reader.arenas(&data))?;
    let mut ranges = Vec::new();
    for address in &ring {
        let segments = repeat(|| scan.segments(&scan.reader.header(*address, layout)?, *address == ring[0]));
        ranges.extend(segments.iter().flatten().map(|segment| segment.range.clone()));
    }
    let mapped = ranges.first().and_then(|main| mapped::read(&scan.reader, maps, &data, main.start));
    ranges.extend(mapped.into_iter().flat_map(|mapped| mapped.ranges));
    Ok(ranges)
}

/// Ranges that can hold the main arena: the data of libc, or of the program if it is static.
fn data(maps: &[Mapping]) -> Vec<Range<u64>> {
    let is_libc = |mapping: &&Mapping| {
        let name = mapping.path.file_name().unwrap_or_default().as_encoded_bytes();
        name == b"libc.so.6" || (name.starts_with(b"libc-2.") && name.ends_with(b".so"))
    };
    let program = maps.iter().find(|mapping| mapping.file.is_some()).and_then(|mapping| mapping.file);
    let is_data = |mapping: &&Mapping| !mapping.executable && mapping.file.is_some();
    let libc: Vec<_> =
        maps.iter().filter(is_data).filter(is_libc).map(|mapping| mapping.addresses.clone()).collect();
    if !libc.is_empty() {
        // `.data` is in the last of them.
        return libc.into_iter().rev().collect();
    }
    let of_program = maps.iter().filter(is_data).filter(|mapping| mapping.file == program);
    of_program.map(|mapping| mapping.addresses.clone()).rev().collect()
}

fn repeat<T>(mut attempt: impl FnMut() -> Result<T, Unknown>) -> Result<T, Unknown> {
    let mut result = attempt();
    for _ in 1..TRIES {
        if !matches!(result, Err(Unknown::Torn)) {
            break;
        }
        result = attempt();
    }
    result
}

struct Scan<'a, M, P> {
    reader: Reader<'a, M, P>,
    maps: &'a [Mapping],
}

impl<M: Memory, P: Pages> Scan<'_, M, P> {
    /// Reads one arena; chunks that may be a thread's cache are added to `candidates`.
    fn arena(
        &self,
        address: u64,
        is_main: bool,
        is_large: bool,
        layout: Layout,
        candidates: &mut Vec<u64>,
    ) -> Result<Arena, Unknown> {
        let header = repeat(|| self.reader.header(address, layout))?;
        let mut arena = Arena {
            address,
            is_main,
            ranges: Vec::new(),
            system_bytes: header.system_mem,
            max_system_bytes: header.max_system_mem,
            attached_threads: header.attached_threads,
            usage: Err(Unknown::Torn),
        };
        let known = candidates.len();
        arena.usage = repeat(|| {
            candidates.truncate(known);
            let header = self.reader.header(address, layout)?;
            if header.system_mem > MAX_ARENA_BYTES {
                return Err(Unknown::TooLarge);
            }
            let segments = self.segments(&header, is_main)?;
            arena.ranges = segments.iter().map(|segment| segment.range.clone()).collect();
            arena.system_bytes = header.system_mem;
            let listed = is_large.then(|| self.listed(&header, &segments, &arena.ranges).ok()?);
            let usage = match listed.flatten() {
                Some(usage) => usage,
                None => self.walk(&header, &segments, &arena.ranges, candidates)?,
            };
            if usage.bytes() == header.system_mem { Ok(usage) } else { Err(Unknown::Torn) }
        });
        Ok(arena)
    }

    /// Use by the lists of free chunks; `None` if there are too many of them.
    fn listed(
        &self,
        header: &Header,
        segments: &[Segment],
        ranges: &[Range<u64>],
    ) -> Result<Option<Usage>, Unknown> {
        let Some(free) = bins::chunks(&self.reader, header, ranges)? else { return Ok(None) };
        let lists = Lists::new(self.reader.memory, self.reader.pages);
        let fast = lists.fast_chunks(&header.fastbins, ranges)?;
        let residency = |range: &Range<u64>| {
            Residency::of(self.reader.pages, range.clone()).map_err(|_| Unknown::Unreadable)
        };
        let mut usage = Usage { is_by_lists: true, ..Usage::default() };
        for chunk in &free {
            let size = chunk.end - chunk.start;
            usage.binned.add(size);
            if size <= PAGE {
                // The words at its ends were just read from its pages. A trim gives back whole pages only.
                usage.free.pinned += size;
            } else {
                usage.free.add(&residency(chunk)?, chunk.clone(), walk::returned(chunk));
            }
        }
        for chunk in &fast {
            usage.fast.add(chunk.end - chunk.start);
            usage.free.add(&residency(chunk)?, chunk.clone(), chunk.end..chunk.end);
        }
        for segment in segments {
            let end = segment.chunks.end;
            usage.overhead += segment.chunks.start - segment.range.start;
            match segment.end {
                End::Break(top) => {
                    let top = top.chunk..end;
                    usage.top += end - top.start;
                    usage.free.add(&residency(&top)?, top.clone(), walk::returned_at_top(&top));
                }
                End::Top(top) => {
                    let top = top.chunk..end;
                    usage.top += end - top.start;
                    usage.free.add_kept(&residency(&top)?, top);
                }
                // The last header, and a fencepost before it.
                End::Fence => usage.overhead += 2 * walk::HEADER,
            }
        }
        let known = usage.bytes();
        usage.live.bytes = header.system_mem.checked_sub(known).ok_or(Unknown::Torn)?;
        Ok(Some(usage))
    }

    fn walk(
        &self,
        header: &Header,
        segments: &[Segment],
        ranges: &[Range<u64>],
        candidates: &mut Vec<u64>,
    ) -> Result<Usage, Unknown> {
        let lists = Lists::new(self.reader.memory, self.reader.pages);
        let fast = lists.fast(&header.fastbins, ranges)?;
        let mut usage = Usage::default();
        for segment in segments {
            let residency = Residency::of(self.reader.pages, segment.range.clone());
            let residency = residency.map_err(|_| Unknown::Unreadable)?;
            let walk = Walk::new(self.reader.memory, &residency, segment, &fast);
            usage += walk.run(candidates)?;
            usage.overhead += segment.chunks.start - segment.range.start;
        }
        Ok(usage)
    }

    fn segments(&self, header: &Header, is_main: bool) -> Result<Vec<Segment>, Unknown> {
        if is_main { self.main_segments(header) } else { self.heaps(header) }
    }

    /// The main arena's part of the program break, which ends with its top.
    fn main_segments(&self, header: &Header) -> Result<Vec<Segment>, Unknown> {
        if header.system_mem == 0 {
            // Another allocator serves the program.
            return Ok(Vec::new());
        }
        if !header.is_contiguous {
            return Err(Unknown::NotContiguous);
        }
        let size = self.reader.word(header.top + 8)? & !walk::FLAGS;
        if self.reader.word(header.top_at)? != header.top {
            // The program has allocated from it in between: the size may be that of a chunk in use.
            return Err(Unknown::Torn);
        }
        let end = header.top.checked_add(size).ok_or(Unknown::Torn)?;
        let start = end.checked_sub(header.system_mem).ok_or(Unknown::Torn)?;
        let first = start.next_multiple_of(16);
        if !self.is_mapped(start..end) || header.top < first || start >= end {
            return Err(Unknown::Torn);
        }
        let top = Top { chunk: header.top, pointer: header.top_at };
        Ok(vec![Segment { range: start..end, chunks: first..end, end: End::Break(top) }])
    }

    /// The heaps of another arena, from the one with its top back to the first.
    fn heaps(&self, header: &Header) -> Result<Vec<Segment>, Unknown> {
        let header_bytes = header.address & (HEAP_MAX - 1);
        let mut segments = Vec::new();
        let mut bytes = 0;
        let mut heap = header.top & !(HEAP_MAX - 1);
        let mut end = End::Top(Top { chunk: header.top, pointer: header.top_at });
        while heap != 0 {
            let (previous, size) = self.reader.heap(heap, header.address)?;
            let is_first = heap == header.address & !(HEAP_MAX - 1);
            let first = if is_first { header.end.next_multiple_of(16) } else { heap + header_bytes };
            let range = heap..heap + size;
            bytes += size;
            let is_torn = bytes > header.system_mem || is_first != (previous == 0) || first >= range.end;
            if is_torn {
                return Err(Unknown::Torn);
            }
            segments.push(Segment { chunks: first..range.end, range, end });
            (heap, end) = (previous, End::Fence);
        }
        if segments.is_empty() {
            return Err(Unknown::Torn);
        }
        Ok(segments)
    }

    /// Returns true if a range lies in anonymous mappings without a gap.
    fn is_mapped(&self, range: Range<u64>) -> bool {
        let mut at = range.start;
        for mapping in self.maps.iter().filter(|mapping| mapping.file.is_none()) {
            if mapping.addresses.contains(&at) {
                at = mapping.addresses.end;
            }
        }
        // The break has grown since the mappings were read.
        at >= range.end || (at > range.start && range.end - at < HEAP_MAX && at.is_multiple_of(PAGE))
    }

    /// Moves what is in thread caches from live chunks to cached ones. Returns the number of caches.
    fn caches(&self, arenas: &mut [Arena], candidates: &[u64]) -> usize {
        let mut owners: Vec<(Range<u64>, usize)> = Vec::new();
        for (index, arena) in arenas.iter().enumerate() {
            owners.extend(arena.ranges.iter().map(|range| (range.clone(), index)));
        }
        let ranges: Vec<_> = owners.iter().map(|(range, _)| range.clone()).collect();
        let threads = arenas.iter().map(|arena| arena.attached_threads).sum::<u64>();
        let mut rest = candidates.to_vec();
        let mut seen = HashSet::new();
        let mut caches = 0;
        for _ in 0..CACHE_TRIES {
            let lists = Lists::new(self.reader.memory, self.reader.pages);
            rest.retain(|chunk| {
                let Some(entries) = lists.cache(*chunk, &ranges) else { return true };
                caches += 1;
                let new = entries.into_iter().filter(|(entry, _)| seen.insert(*entry));
                new.for_each(|(entry, size)| move_to_cached(arenas, &owners, entry, size));
                false
            });
            if rest.is_empty() || caches as u64 >= threads {
                break;
            }
        }
        caches
    }
}

/// Counts one live chunk as cached.
fn move_to_cached(arenas: &mut [Arena], owners: &[(Range<u64>, usize)], chunk: u64, size: u64) {
    let Some((_, index)) = owners.iter().find(|(range, _)| range.contains(&chunk)) else { return };
    if let Ok(usage) = &mut arenas[*index].usage
        && usage.live.count > 0
        && usage.live.bytes >= size
    {
        let chunk = Chunks { count: 1, bytes: size };
        usage.live -= chunk;
        usage.cached += chunk;
    }
}
