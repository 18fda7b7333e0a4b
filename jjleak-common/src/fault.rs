//! Pages of profiled processes: the stack that is about to make one resident, and where the kernel moves them.

use crate::process::ImageId;

/// Event of a profiled process's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A page is touched.
    Fault(Fault),
    /// Pages get other addresses.
    Move(Move),
}

/// A fault of a thread at an address of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Address of the page.
    pub page: u64,
    /// The page is written to. Reading untouched anonymous memory maps a page of zeros that all processes share.
    pub is_write: bool,
    /// A page was there, and is to be replaced by a copy: one that is shared since a fork, or the page of zeros.
    pub was_present: bool,
    /// Row of the stack in the stack table.
    pub stack: u32,
}

/// Pages that `mremap` has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Address of the first page before.
    pub from: u64,
    /// Its address now.
    pub to: u64,
    /// Number of pages; more are cut off at 16 TiB.
    pub pages: u32,
}

/// An event as the kernel side reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// The time, or where the pages are now.
    time_or_to: u64,
    /// The page that is touched, or that is moved first, with [`WRITE`] and [`PRESENT`], or [`MOVED`].
    place: u64,
    /// The process's image.
    pub image: ImageId,
    /// The stack, or the number of pages.
    stack_or_pages: u32,
}

const WRITE: u64 = 1;
const MOVED: u64 = 2;
const PRESENT: u64 = 4;

/// Bits of an address within its page.
const WITHIN_PAGE: u64 = 4095;

impl Record {
    /// A fault.
    #[inline(always)]
    #[must_use]
    pub const fn of_fault(image: ImageId, fault: Fault) -> Self {
        let flags = (fault.is_write as u64 * WRITE) | (fault.was_present as u64 * PRESENT);
        let place = (fault.page & !WITHIN_PAGE) | flags;
        Self { time_or_to: fault.time_ns, place, image, stack_or_pages: fault.stack }
    }

    /// Moved pages.
    #[inline(always)]
    #[must_use]
    pub const fn of_move(image: ImageId, moved: Move) -> Self {
        let place = (moved.from & !WITHIN_PAGE) | MOVED;
        Self { time_or_to: moved.to, place, image, stack_or_pages: moved.pages }
    }

    /// The reported event.
    #[must_use]
    pub const fn event(&self) -> Event {
        let page = self.place & !WITHIN_PAGE;
        if self.place & MOVED != 0 {
            return Event::Move(Move { from: page, to: self.time_or_to, pages: self.stack_or_pages });
        }
        let is_write = self.place & WRITE != 0;
        let was_present = self.place & PRESENT != 0;
        Event::Fault(Fault {
            time_ns: self.time_or_to,
            page,
            is_write,
            was_present,
            stack: self.stack_or_pages,
        })
    }
}

// SAFETY: integers only, no padding (asserted below), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Record {}

const _: () = assert!(size_of::<Record>() == 24 && align_of::<Record>() == 8);

/// Size of the ring buffer in bytes while faults are followed, a power of two: 262,144 faults, or 1 GiB of pages. A thread that does
/// nothing else touches a million pages per second, so that the buffer lasts for a quarter of a second.
pub const RING_BYTES: u32 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_what_was_reported() {
        let fault =
            Fault { time_ns: 7, page: 0x7f00_0000_1000, is_write: true, was_present: false, stack: 5 };
        for fault in [fault, Fault { is_write: false, ..fault }, Fault { was_present: true, ..fault }] {
            assert_eq!(Record::of_fault(ImageId(1), fault).event(), Event::Fault(fault));
        }
        let moved = Move { from: 0x7f00_0000_1000, to: 0x7f11_0000_2000, pages: 3 };
        assert_eq!(Record::of_move(ImageId(1), moved).event(), Event::Move(moved));
    }
}
