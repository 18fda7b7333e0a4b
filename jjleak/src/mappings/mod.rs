//! From system calls that map and unmap memory to the mappings of a process.
//!
//! In: [`Event`]s of the kernel side, in the order in which it told of them. Out: [`MappingBooks`]: which addresses are
//! mapped, in how many ranges, from which stacks. Pure: what a call does is decided here, by its arguments and result.

mod ranges;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use jjleak_common::mapping::{Call, Event, Kinds, MAP_FIXED, flag};

use crate::attach::SizeFilter;
use ranges::{Allocation, Piece, Ranges};

/// A page of x86-64.
const PAGE: u64 = 4096;
/// `MAP_HUGETLB`, the place of the page size's logarithm in the flags, and the page size that stands for 0
/// (include/uapi/asm-generic/hugetlb_encode.h).
const MAP_HUGETLB: u64 = 0x4_0000;
const HUGE_SHIFT: u64 = 26;
const HUGE_MASK: u64 = 63;
const DEFAULT_HUGE_LOG2: u64 = 21;
/// include/uapi/linux/mman.h
const MREMAP_FIXED: u64 = 2;
const MREMAP_DONTUNMAP: u64 = 4;

/// Most ranges kept of an image: the kernel allows 65,530 mappings, each of which can be several neighbouring ranges of
/// ours.
const MAX_RANGES: usize = 1 << 20;

/// Most threads of which the last call is remembered: an unmapping that succeeds does not tell that it has returned, and
/// threads end. Forgotten are then also the few calls that may still fail.
const MAX_THREADS: usize = 1 << 16;

/// The mappings of an image that are followed.
#[derive(Debug, Clone)]
pub struct MappingBooks {
    kinds: Kinds,
    filter: SizeFilter,
    ranges: Ranges,
    /// What threads are about to take away, by their last call that told of its beginning.
    in_flight: HashMap<u32, InFlight>,
    allocated: BTreeMap<u32, Allocated>,
    tally: Tally,
}

/// What a stack has mapped since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Ranges.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A range that is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapped {
    /// Row of its stack.
    pub stack: u32,
    /// Its length.
    pub bytes: u64,
    /// When it was mapped, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
}

/// What is in no book.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Mappings that the size filter left out.
    pub filtered: u64,
    /// Mappings that allocation calls made.
    pub of_allocators: u64,
    /// Mappings for which there was no room.
    pub unbooked: u64,
}

/// A call that has begun.
#[derive(Debug, Clone, Default)]
struct InFlight {
    /// What is in the books of the memory it takes away.
    taken: Vec<Piece>,
    /// What is in the books of the memory in the place of its result.
    replaced: Vec<Piece>,
    /// The break before it.
    break_before: u64,
}

impl MappingBooks {
    /// Empty books, in which mappings of these kinds and sizes are entered.
    #[must_use]
    pub fn new(kinds: Kinds, filter: SizeFilter) -> Self {
        Self {
            kinds,
            filter,
            ranges: Ranges::default(),
            in_flight: HashMap::new(),
            allocated: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// Every range that is mapped.
    pub fn mapped(&self) -> impl Iterator<Item = Mapped> {
        self.ranges.iter().map(|piece| Mapped {
            stack: piece.allocation.stack,
            bytes: piece.range.end - piece.range.start,
            time_ns: piece.allocation.time_ns,
        })
    }

    /// What each stack has mapped since the start.
    pub fn allocated(&self) -> impl Iterator<Item = (u32, Allocated)> {
        self.allocated.iter().map(|(stack, allocated)| (*stack, *allocated))
    }

    /// What is in no book.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }

    /// Enters what a thread does.
    pub fn enter(&mut self, event: &Event) {
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

    /// A call begins. What it takes away leaves the books now, before another thread can be given the place.
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

    /// A call has returned.
    fn settle(&mut self, call: Call, event: &Event, in_flight: Option<InFlight>) {
        // Without one, the call was running when jjleak attached, or its beginning was lost: there is nothing to put back.
        let known = in_flight.is_some();
        let InFlight { taken, replaced, break_before } = in_flight.unwrap_or_default();
        let [_, second, _, fourth, _] = event.arguments;
        match (call, u64::try_from(event.result)) {
            (Call::Map, Ok(address)) => {
                if self.kinds.has(fourth) {
                    self.book(pages(address, second, fourth), event);
                }
            }
            (Call::Remap, Ok(address)) => self.remap(event, taken, address),
            (Call::Break, Ok(now)) if now > break_before && known => self.book(break_before..now, event),
            // The break is where it was: the kernel would not move it down.
            (Call::Break, Ok(now)) if now == break_before => self.ranges.put_back(taken),
            (Call::Unmap | Call::Break, Ok(_)) => {}
            (_, Err(_)) => {
                self.ranges.put_back(taken);
                self.ranges.put_back(replaced);
            }
        }
    }

    /// Memory was moved, resized or both. What of it was in the books is now at `address`, and so is what it has grown by:
    /// a mapping of the caller's, as a block is its last `realloc`'s. Memory that was not in the books, such as a file's if
    /// files are not followed, does not enter them.
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
            self.book(address + kept.start..address + kept.end, event);
        }
    }

    /// Enters a range.
    fn book(&mut self, range: Range<u64>, event: &Event) {
        let bytes = range.end - range.start;
        if bytes == 0 {
            return;
        }
        // Whatever the books have there is gone, or the kernel would not have given the place.
        self.ranges.take(&range);
        if event.flags & flag::NESTED != 0 {
            self.tally.of_allocators += 1;
        } else if bytes < self.filter.min || bytes > self.filter.max {
            self.tally.filtered += 1;
        } else if self.ranges.len() >= MAX_RANGES {
            self.tally.unbooked += 1;
        } else {
            let allocated = self.allocated.entry(event.stack).or_default();
            allocated.objects += 1;
            allocated.bytes += bytes;
            self.ranges.add(range, Allocation { stack: event.stack, time_ns: event.time_ns });
        }
    }
}

/// The whole pages that a call means; empty when there can be none.
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

/// Ranges in ascending order, with neighbours made one.
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
