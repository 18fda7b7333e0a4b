//! Finds out which stack made each resident page resident.
//!
//! In: page faults and moved pages of the kernel side, in order, and the state of a process's pages. Out: the resident pages that were not resident when
//! this began, each with its stack. Pure: it reads no process.

#[cfg(test)]
mod tests;
mod touched;

use std::collections::BTreeMap;
use std::ops::Range;

use jjleak_common::fault::{Event, Fault, Move};

use crate::memory::PageState;
use touched::{Block, PAGE, PAGES_OF_BLOCK, Touch};

/// Pages that the kernel maps together at a fault on a mapped file: an aligned window of this many (`fault_around_bytes` in
/// `mm/memory.c`, 64 KiB unless the administrator changes it).
const FAULT_AROUND: usize = 16;

/// Maximum number of blocks with touched pages, 4 KiB each: 64 GiB of pages that are all touched, or 128 MiB of jjleak's memory.
const MAX_BLOCKS: usize = 1 << 15;

/// Maximum number of blocks with pages that were resident before, 64 bytes each: 2 TiB.
const MAX_BLOCKS_BEFORE: usize = 1 << 20;

/// A part of a process's memory with one use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Addresses; whole pages.
    pub range: Range<u64>,
    /// Rules by which the kernel fills its pages.
    pub filled: Filled,
}

/// Rules by which the kernel fills pages at faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Neighbours are mapped, too, because they are of a file.
    pub around: bool,
    /// Some of the pages are huge.
    pub huge: bool,
    /// Pages that were only read are the shared page of zeros, which does not count as resident.
    pub by_zeros: bool,
}

/// Owner of a resident page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The stack in this row touched it, at this time in nanoseconds of `CLOCK_MONOTONIC`.
    Stack(u32, u64),
    /// No fault was seen: the kernel filled it by itself, as for `MAP_POPULATE`, or the fault was lost.
    Nobody,
}

/// The pages of an image that were touched since this began.
#[derive(Debug, Default)]
pub struct TouchedPages {
    touched: BTreeMap<u64, Block>,
    /// Pages that were resident when this began, as bits.
    before: BTreeMap<u64, [u64; PAGES_OF_BLOCK / 64]>,
    /// Faults of each stack.
    faults: BTreeMap<u32, u64>,
    lost: u64,
}

impl TouchedPages {
    /// Records an event.
    pub fn record(&mut self, event: Event) {
        match event {
            Event::Fault(fault) => self.record_fault(&fault),
            Event::Move(moved) => self.record_move(moved),
        }
    }

    fn record_fault(&mut self, fault: &Fault) {
        let (block, place) = touched::place_of(fault.page);
        let earlier = self.touched.get(&block).and_then(|block| block.get(place));
        if fault.was_present && earlier.is_some_and(|touch| !touch.is_read()) {
            return;
        }
        *self.faults.entry(fault.stack).or_default() += 1;
        self.set(fault.page, Touch::of(fault));
    }

    /// Moves what is known of pages to their new addresses.
    fn record_move(&mut self, Move { from, to, pages }: Move) {
        let range = from..from.saturating_add(u64::from(pages) * PAGE);
        let blocks = touched::place_of(range.start).0..=touched::place_of(range.end).0;
        let moved = |page: u64| range.contains(&page).then(|| to.wrapping_add(page - from));
        let mut touches = Vec::new();
        for (number, block) in self.touched.range_mut(blocks.clone()) {
            for place in 0..PAGES_OF_BLOCK {
                let Some(page) = moved(touched::page_at(*number, place)) else { continue };
                touches.extend(block.get(place).map(|touch| (page, touch)));
                block.clear(place);
            }
        }
        let mut before = Vec::new();
        for (number, bits) in self.before.range_mut(blocks) {
            for place in 0..PAGES_OF_BLOCK {
                let Some(page) = moved(touched::page_at(*number, place)) else { continue };
                before.extend((bits[place / 64] >> (place % 64) & 1 != 0).then_some(page));
                bits[place / 64] &= !(1 << (place % 64));
            }
        }
        for (page, touch) in touches {
            self.set(page, touch);
        }
        for page in before {
            self.set_before(page);
        }
    }

    fn set(&mut self, page: u64, touch: Touch) {
        let (block, place) = touched::place_of(page);
        if self.touched.len() >= MAX_BLOCKS && !self.touched.contains_key(&block) {
            self.lost += 1;
            return;
        }
        self.touched.entry(block).or_default().set(place, touch);
    }

    /// Adds pages that were resident when this began. They do not count before [`Self::forget_absent`] has found that they were given
    /// back: a write to memory that is shared since a fork is a fault, too.
    pub fn add_resident(&mut self, first: u64, states: &[PageState]) {
        for (page, _) in numbered(first, states).filter(|(_, state)| **state == PageState::Resident) {
            self.set_before(page);
        }
    }

    fn set_before(&mut self, page: u64) {
        let (block, place) = touched::place_of(page);
        if self.before.len() >= MAX_BLOCKS_BEFORE && !self.before.contains_key(&block) {
            self.lost += 1;
            return;
        }
        self.before.entry(block).or_default()[place / 64] |= 1 << (place % 64);
    }

    /// Calls `each` with the owner of each page of a part that is resident now and was made so since this began. Returns the number of
    /// pages that were resident before, and are not any more.
    pub fn attribute(&self, part: &Part, states: &[PageState], mut each: impl FnMut(Owner)) -> u64 {
        let mut released = 0;
        for (page, state) in numbered(part.range.start, states) {
            let (block, place) = touched::place_of(page);
            let was_resident =
                self.before.get(&block).is_some_and(|before| before[place / 64] >> (place % 64) & 1 != 0);
            if *state != PageState::Resident {
                released += u64::from(was_resident);
                continue;
            }
            let touched = self.touched.get(&block);
            if was_resident {
                continue;
            }
            let own = touched.and_then(|touched| touched.get(place));
            match own.or_else(|| touched?.beside(place, window(part, block, place))) {
                Some(touch) if touch.is_read() && part.filled.by_zeros => {}
                Some(touch) => each(Owner::Stack(touch.stack(), touch.time_ns())),
                None => each(Owner::Nobody),
            }
        }
        released
    }

    /// Forgets pages that are not resident: their next use is another fault. A page is resident a moment after its fault, so that faults
    /// since `until_ns` stay.
    pub fn forget_absent(&mut self, first: u64, states: &[PageState], until_ns: u64) {
        for (page, _) in numbered(first, states).filter(|(_, state)| **state == PageState::Absent) {
            let (block, place) = touched::place_of(page);
            if let Some(before) = self.before.get_mut(&block) {
                before[place / 64] &= !(1 << (place % 64));
            }
            if let Some(touched) = self.touched.get_mut(&block)
                && touched.get(place).is_some_and(|touch| touch.time_ns() < until_ns)
            {
                touched.clear(place);
                if touched.is_empty() {
                    self.touched.remove(&block);
                }
            }
        }
    }

    /// Parts of a range of addresses that have touched pages.
    #[must_use]
    pub fn ranges_in(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let blocks = touched::place_of(range.start).0..=touched::place_of(range.end.saturating_sub(1)).0;
        let clipped = |(block, _): (&u64, &Block)| {
            let begin = touched::page_at(*block, 0).max(range.start);
            begin..touched::page_at(*block + 1, 0).min(range.end)
        };
        self.touched.range(blocks).map(clipped).collect()
    }

    /// Number of faults of each stack.
    pub fn faults(&self) -> impl Iterator<Item = (u32, u64)> {
        self.faults.iter().map(|(stack, faults)| (*stack, *faults))
    }

    /// Number of pages that were not recorded for lack of room.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

/// Places in a block of the pages that the kernel may have filled at the same fault as this one.
fn window(part: &Part, block: u64, place: usize) -> Range<usize> {
    let window = match part.filled {
        Filled { huge: true, .. } => 0..PAGES_OF_BLOCK,
        Filled { around: true, .. } => {
            let first = place / FAULT_AROUND * FAULT_AROUND;
            first..first + FAULT_AROUND
        }
        Filled { .. } => return place..place,
    };
    // Only within the mapping.
    let at = |address: u64| usize::try_from(address.saturating_sub(touched::address_of(block)) / PAGE);
    let begin = at(part.range.start).unwrap_or(0);
    let end = at(part.range.end).unwrap_or(PAGES_OF_BLOCK);
    window.start.max(begin)..window.end.min(end)
}

/// Addresses of pages in a row.
fn numbered(first: u64, states: &[PageState]) -> impl Iterator<Item = (u64, &PageState)> {
    (0..).map(move |number: u64| first + number * PAGE).zip(states)
}
