//! Blocks of 2 MiB of touched pages: a huge page, or the pages of one page table.

use jjleak_common::fault::Fault;

/// Size of a page on x86-64.
pub(super) const PAGE: u64 = 4096;
/// Pages of a block.
pub(super) const PAGES_OF_BLOCK: usize = 512;
/// Size of a block.
const BLOCK: u64 = PAGE * PAGES_OF_BLOCK as u64;

/// Number of a page's block, and the place of the page in it.
pub(super) const fn place_of(page: u64) -> (u64, usize) {
    (page / BLOCK, (page % BLOCK / PAGE) as usize)
}

/// Address of the page at a place of a block.
pub(super) const fn page_at(block: u64, place: usize) -> u64 {
    address_of(block) + place as u64 * PAGE
}

/// Address of a block.
pub(super) const fn address_of(block: u64) -> u64 {
    block * BLOCK
}

/// The last fault on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Touch {
    stack: u32,
    /// Time in units of 2^[`TIME_SHIFT`] ns, above a bit that is 1 if the page was only read.
    time: u32,
}

/// 34 ms, for two years in 31 bits.
const TIME_SHIFT: u32 = 25;
/// No stack has this row.
const NO_STACK: u32 = u32::MAX;

impl Touch {
    const NONE: Self = Self { stack: NO_STACK, time: 0 };

    #[expect(
        clippy::cast_possible_truncation,
        reason = "two years of uptime fit; then times are too small by that"
    )]
    pub(super) const fn of(fault: &Fault) -> Self {
        Self { stack: fault.stack, time: (fault.time_ns >> TIME_SHIFT << 1) as u32 | !fault.is_write as u32 }
    }

    /// Row of the stack.
    pub(super) const fn stack(self) -> u32 {
        self.stack
    }

    /// Time, in nanoseconds of `CLOCK_MONOTONIC`; at most 34 ms too early.
    pub(super) const fn time_ns(self) -> u64 {
        ((self.time >> 1) as u64) << TIME_SHIFT
    }

    /// Returns true if the page was only read.
    pub(super) const fn is_read(self) -> bool {
        self.time & 1 != 0
    }

    const fn is_some(self) -> bool {
        self.stack != NO_STACK
    }
}

/// Touched pages of a block.
#[derive(Debug, Clone)]
pub(super) struct Block {
    touches: Box<[Touch; PAGES_OF_BLOCK]>,
    count: u16,
}

impl Default for Block {
    fn default() -> Self {
        Self { touches: Box::new([Touch::NONE; PAGES_OF_BLOCK]), count: 0 }
    }
}

impl Block {
    pub(super) fn set(&mut self, place: usize, touch: Touch) {
        self.count += u16::from(!self.touches[place].is_some());
        self.touches[place] = touch;
    }

    pub(super) fn clear(&mut self, place: usize) {
        self.count -= u16::from(self.touches[place].is_some());
        self.touches[place] = Touch::NONE;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn get(&self, place: usize) -> Option<Touch> {
        Some(self.touches[place]).filter(|touch| touch.is_some())
    }

    /// The fault within the window that is nearest before a place, or else the first one after it.
    pub(super) fn beside(&self, place: usize, window: std::ops::Range<usize>) -> Option<Touch> {
        let before = (window.start..place).rev().find_map(|place| self.get(place));
        before.or_else(|| (place..window.end).find_map(|place| self.get(place)))
    }
}
