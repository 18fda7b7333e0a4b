//! Tracks a process's mappings by its system calls.
//!
//! In: [`Event`]s of the kernel side, in order. Out: [`TrackedMappings`]: the mapped addresses, as ranges with
//! their stacks. Pure: it derives the effect of a call from its arguments and result.

mod ranges;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use jjleak_common::mapping::{Call, Event, MAP_FIXED, MappingKinds, flag};
use jjleak_common::settings::SizeFilter;

use ranges::{Allocation, Piece, Ranges};

/// Page size of x86-64.
const PAGE: u64 = 4096;
/// `MAP_HUGETLB`, the position and mask of the page size's logarithm in the flags, and the size that 0 stands
/// for (include/uapi/asm-generic/hugetlb_encode.h).
const MAP_HUGETLB: u64 = 0x4_0000;
const HUGE_SHIFT: u64 = 26;
const HUGE_MASK: u64 = 63;
const DEFAULT_HUGE_LOG2: u64 = 21;
/// include/uapi/linux/mman.h
const MREMAP_FIXED: u64 = 2;
const MREMAP_DONTUNMAP: u64 = 4;

/// Maximum number of ranges per image: the kernel allows 65,530 mappings, each of which can be several
/// adjacent ranges here.
const MAX_RANGES: usize = 1 << 20;

/// Maximum number of threads with a remembered call: a successful unmapping reports no return, and threads
/// end. Beyond it, all are dropped, including the few calls that may still fail.
const MAX_THREADS: usize = 1 << 16;

/// The tracked mappings of an image.
#[derive(Debug, Clone)]
pub struct TrackedMappings {
    kinds: MappingKinds,
    filter: SizeFilter,
    ranges: Ranges,
    /// Memory that calls in progress are about to unmap, by thread.
    in_flight: HashMap<u32, InFlight>,
    allocated: BTreeMap<u32, Allocated>,
    tally: Tally,
}

/// Cumulative mappings of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Number of ranges.
    pub objects: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// A mapped range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// Row of its stack.
    pub stack: u32,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of the mapping, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
}

/// Counts of untracked mappings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Mappings excluded by the size filter.
    pub filtered: u64,
    /// Mappings made by allocation functions.
    pub by_allocators: u64,
    /// Mappings lost because of the limit.
    pub lost: u64,
}

/// A call in progress.
#[derive(Debug, Clone, Default)]
struct InFlight {
    /// Tracked memory that the call unmaps.
    taken: Vec<Piece>,
    /// Tracked memory that its result replaces.
    replaced: Vec<Piece>,
    /// The program break before the call.
    break_before: u64,
}

impl TrackedMappings {
    /// No mappings yet, to track those of these kinds and sizes.
    #[must_use]
    pub fn new(kinds: MappingKinds, filter: SizeFilter) -> Self {
        Self {
            kinds,
            filter,
            ranges: Ranges::default(),
            in_flight: HashMap::new(),
            allocated: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// All mapped ranges.
    pub fn mapped(&self) -> impl Iterator<Item = Mapped> {
        self.ranges.iter().map(|piece| Mapped {
            stack: piece.allocation.stack,
            bytes: piece.range.end - piece.range.start,
            time_ns: piece.allocation.time_ns,
        })
    }

    /// Cumulative mappings of each stack.
    pub fn allocated(&self) -> impl Iterator<Item = (u32, Allocated)> {
        self.allocated.iter().map(|(stack, allocated)| (*stack, *allocated))
    }

    /// Counts of untracked mappings.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// Records an event of a thread.
    pub fn record(&mut self, event: &Event) {
        let Some(call) = Call::from_number(event.call) else { return };
        if event.flags & flag::LEFT == 0 {
            let in_flight = self.take(call, event.arguments);
            if self.in_flight.len() >= MAX_THREADS {
                self.in_flight.clear();
            }
            self.in_flight.insert(event.thread, in_flight);
        } else {
            let in_flight = self.in_flight.remove(&event.thread);
            self.settle(call, event, in_flight);
        }
    }

    /// Begins a call. Memory that it unmaps leaves the table now, before another thread can be given its
    /// address.
    fn take(&mut self, call: Call, [first, second, third, fourth, fifth]: [u64; 5]) -> InFlight {
        let mut in_flight = InFlight::default();
        match call {
            Call::Map if fourth & MAP_FIXED != 0 => {
                in_flight.replaced = self.ranges.take(&pages(first, second, fourth));
            }
            Call::Map => {}
            Call::Unmap => in_flight.taken = self.ranges.take(&pages(first, second, 0)),
            Call::Remap => {
                in_flight.taken = self.ranges.take(&pages(first, second, 0));
                if fourth & MREMAP_FIXED != 0 {
                    in_flight.replaced = self.ranges.take(&pages(fifth, third, 0));
                }
            }
            Call::Break => {
                in_flight.break_before = second;
                in_flight.taken = self.ranges.take(&(first..second));
            }
        }
        in_flight
    }

    /// Completes a call.
    fn settle(&mut self, call: Call, event: &Event, in_flight: Option<InFlight>) {
        // Without a beginning, the call was running when jjleak attached, or the event was lost: there is
        // nothing to put back.
        let known = in_flight.is_some();
        let InFlight { taken, replaced, break_before } = in_flight.unwrap_or_default();
        let [_, second, _, fourth, _] = event.arguments;
        match (call, u64::try_from(event.result)) {
            (Call::Map, Ok(address)) => {
                if self.kinds.has(fourth) {
                    self.add(pages(address, second, fourth), event);
                }
            }
            (Call::Remap, Ok(address)) => self.remap(event, taken, address),
            (Call::Break, Ok(now)) if now > break_before && known => self.add(break_before..now, event),
            // The break is unchanged: the kernel refused to lower it.
            (Call::Break, Ok(now)) if now == break_before => self.ranges.put_back(taken),
            (Call::Unmap | Call::Break, Ok(_)) => {}
            (_, Err(_)) => {
                self.ranges.put_back(taken);
                self.ranges.put_back(replaced);
            }
        }
    }

    /// Moves or resizes tracked memory to `address`. The mapping then belongs to the caller, including its
    /// growth, as a block belongs to its last `realloc`. Untracked memory, such as a file's if files are not
    /// followed, stays untracked.
    fn remap(&mut self, event: &Event, taken: Vec<Piece>, address: u64) {
        let [old, old_length, new_length, flags, _] = event.arguments;
        let (old, new) = (pages(old, old_length, 0), pages(address, new_length, 0));
        let (old_length, new_length) = (old.end - old.start, new.end - new.start);
        let mut kept: Vec<Range<u64>> = taken
            .iter()
            .map(|piece| piece.range.start - old.start..(piece.range.end - old.start).min(new_length))
            .filter(|kept| kept.start < kept.end)
            .collect();
        // With a length of 0, shared memory is mapped a second time (mremap(2)).
        let duplicated = old_length == 0 && self.ranges.holds(old.start);
        if (!taken.is_empty() || duplicated) && new_length > old_length {
            kept.push(old_length..new_length);
        }
        if flags & MREMAP_DONTUNMAP != 0 {
            self.ranges.put_back(taken);
        }
        for kept in joined(kept) {
            self.add(address + kept.start..address + kept.end, event);
        }
    }

    /// Adds a range.
    fn add(&mut self, range: Range<u64>, event: &Event) {
        let bytes = range.end - range.start;
        if bytes == 0 {
            return;
        }
        // Overlapping ranges are stale, or the kernel would not have returned the address.
        self.ranges.take(&range);
        if event.flags & flag::NESTED != 0 {
            self.tally.by_allocators += 1;
        } else if bytes < self.filter.min || bytes > self.filter.max {
            self.tally.filtered += 1;
        } else if self.ranges.len() >= MAX_RANGES {
            self.tally.lost += 1;
        } else {
            let allocated = self.allocated.entry(event.stack).or_default();
            allocated.objects += 1;
            allocated.bytes += bytes;
            self.ranges.add(range, Allocation { stack: event.stack, time_ns: event.time_ns });
        }
    }
}

/// The whole pages of a range; empty if it overflows.
fn pages(start: u64, length: u64, map_flags: u64) -> Range<u64> {
    let page = if map_flags & MAP_HUGETLB == 0 {
        PAGE
    } else {
        match map_flags >> HUGE_SHIFT & HUGE_MASK {
            0 => 1 << DEFAULT_HUGE_LOG2,
            log2 => 1 << log2,
        }
    };
    let end = length.checked_next_multiple_of(page).and_then(|length| start.checked_add(length));
    start..end.unwrap_or(start)
}

/// Ranges in ascending order, with adjacent ones merged.
fn joined(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}
