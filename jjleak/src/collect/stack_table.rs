//! Used part of the stack table, which grows.

use std::ptr::{read_volatile, write_volatile};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use aya::maps::Map;
use jjleak_common::names;
use jjleak_common::stack::{FIRST_ROW, StackRow, first_rows_log2, rows_log2};

use crate::attach::{Attachment, Error, Mapped};

/// Rows of the stack table that the kernel side uses. The rest is not mapped: mapped rows count as resident memory.
pub(super) struct StackTable {
    /// The rows that are used at first.
    first: Mapped<StackRow>,
    /// The rows that each doubling has added.
    added: Vec<OnceLock<Mapped<StackRow>>>,
    doublings: Mapped<u32>,
    /// log2 of the number of rows for stacks that are used at first.
    first_log2: u32,
    /// log2 of [`Self::wanted_rows`].
    wanted_log2: AtomicU32,
}

impl StackTable {
    pub(super) fn new(attachment: &Attachment) -> Result<Self, Error> {
        let Map::Array(map) = attachment.map(names::STACKS)? else {
            return Err(Error::ObjectLacks { what: "mappable array", name: names::STACKS });
        };
        let stacks = attachment.settings().capacity.stacks;
        let first_log2 = first_rows_log2(stacks);
        Ok(Self {
            first: Mapped::part(map, 0, (FIRST_ROW + (1 << first_log2)) as usize)?,
            added: (first_log2..rows_log2(stacks)).map(|_| OnceLock::new()).collect(),
            doublings: Mapped::writable(attachment.map(names::STACK_DOUBLINGS)?)?,
            first_log2,
            wanted_log2: AtomicU32::new(first_log2),
        })
    }

    /// Row with this index, valid for reads and writes; `None` if it is not used.
    pub(super) fn get(&self, index: u32) -> Option<*mut StackRow> {
        if let Some(row) = self.first.get(index as usize) {
            return Some(row);
        }
        let doubling = index.checked_sub(FIRST_ROW)?.checked_shr(self.first_log2)?.checked_ilog2()?;
        let added = self.added.get(doubling as usize)?.get()?;
        added.get((index - self.end_of(doubling)) as usize)
    }

    /// Number of used rows, including those that stand for no stack.
    pub(super) fn len(&self) -> u32 {
        self.end_of(self.doublings())
    }

    /// Number of rows to which eviction holds the table. It may have more for a burst of new stacks.
    pub(super) fn wanted_rows(&self) -> u32 {
        1 << self.wanted_log2.load(Ordering::Relaxed)
    }

    /// Doubles [`Self::wanted_rows`]. Returns false if the table cannot have more.
    pub(super) fn want_more(&self) -> bool {
        let wanted_log2 = self.wanted_log2.load(Ordering::Relaxed);
        let is_possible = wanted_log2 < self.most_log2();
        if is_possible {
            self.wanted_log2.store(wanted_log2 + 1, Ordering::Relaxed);
        }
        is_possible
    }

    /// Doubles the number of used rows if so many stacks take more than three eighths of them, before one process has half. Only one
    /// thread at a time may call this.
    pub(super) fn widen(&self, stacks: u64) {
        let doublings = self.doublings();
        let used_log2 = self.first_log2 + doublings;
        if stacks > (3 << used_log2) / 8 && used_log2 < self.most_log2() {
            self.double(doublings);
        }
    }

    /// Maps as many rows as there are, and lets the kernel side use them.
    fn double(&self, doublings: u32) {
        let (begin, len) = (self.end_of(doublings) as usize, 1 << (self.first_log2 + doublings));
        let (Some(added), Some(place)) = (self.added.get(doublings as usize), self.doublings.get(0)) else {
            return;
        };
        match self.first.other_part(begin, len) {
            Ok(part) => {
                added.get_or_init(|| part);
                fence(Ordering::Release);
                // SAFETY: mapped for writing; no other thread writes it.
                unsafe { write_volatile(place, doublings + 1) };
            }
            Err(error) => tracing::warn!(%error, "the table of stacks cannot grow"),
        }
    }

    /// Index of the first row that is not used before this doubling.
    const fn end_of(&self, doubling: u32) -> u32 {
        FIRST_ROW + (1 << (self.first_log2 + doubling))
    }

    fn most_log2(&self) -> u32 {
        self.first_log2 + u32::try_from(self.added.len()).unwrap_or(0)
    }

    fn doublings(&self) -> u32 {
        // SAFETY: `place` is valid for reads (`Mapped::get`).
        self.doublings.get(0).map_or(0, |place| unsafe { read_volatile(place) })
    }
}
