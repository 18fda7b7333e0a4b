//! Size of the stack table.

use std::ptr::{read_volatile, write_volatile};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use jjleak_common::names;
use jjleak_common::stack::{FIRST_ROW, StackRow, first_rows_log2};

use crate::attach::{Attachment, Error, Mapped};

/// Rows of the stack table that the kernel side uses.
pub(super) struct StackTable {
    rows: Mapped<StackRow>,
    size: Arc<TableSize>,
}

impl StackTable {
    pub(super) fn new(attachment: &Attachment) -> Result<Self, Error> {
        let rows = Mapped::writable(attachment.map(names::STACKS)?)?;
        // Without those that stand for no stack, their number is a power of two.
        let most_log2 = rows.len().saturating_sub(FIRST_ROW as usize).max(1).ilog2();
        let size = TableSize {
            doublings: Mapped::writable(attachment.map(names::STACK_DOUBLINGS)?)?,
            most_log2,
            wanted_log2: AtomicU32::new(first_rows_log2(most_log2)),
        };
        Ok(Self { rows, size: Arc::new(size) })
    }

    pub(super) fn size(&self) -> Arc<TableSize> {
        Arc::clone(&self.size)
    }

    /// Row with this index, valid for reads and writes; `None` if it is not used.
    pub(super) fn get(&self, index: u32) -> Option<*mut StackRow> {
        if index < self.len() { self.rows.get(index as usize) } else { None }
    }

    /// Number of used rows, including those that stand for no stack.
    pub(super) fn len(&self) -> u32 {
        FIRST_ROW + (1 << self.size.rows_log2())
    }

    /// Number of rows to which eviction holds the table. It may have twice as many for a burst of new stacks.
    pub(super) fn wanted_rows(&self) -> u32 {
        1 << self.size.wanted_log2.load(Ordering::Relaxed)
    }

    /// Doubles [`Self::wanted_rows`]. Returns false if the table cannot have more.
    pub(super) fn want_more(&self) -> bool {
        let wanted_log2 = self.size.wanted_log2.load(Ordering::Relaxed);
        let is_possible = wanted_log2 < self.size.most_log2;
        if is_possible {
            self.size.wanted_log2.store(wanted_log2 + 1, Ordering::Relaxed);
        }
        is_possible
    }
}

/// How many rows the kernel side uses, and may use.
pub(super) struct TableSize {
    doublings: Mapped<u32>,
    /// log2 of the number of all rows for stacks.
    most_log2: u32,
    /// log2 of [`StackTable::wanted_rows`].
    wanted_log2: AtomicU32,
}

impl TableSize {
    /// Doubles the number of used rows if stacks take more than three eighths of them, before one process has half. Only one thread
    /// at a time may call this.
    pub(super) fn widen(&self, stacks: u64) {
        let rows_log2 = self.rows_log2();
        let limit_log2 = self.most_log2.min(self.wanted_log2.load(Ordering::Relaxed) + 1);
        if let (true, Some(place)) = (stacks > (3 << rows_log2) / 8, self.doublings.get(0))
            && rows_log2 < limit_log2
        {
            // SAFETY: mapped for writing; no other thread writes it.
            unsafe { write_volatile(place, self.doublings() + 1) };
        }
    }

    fn rows_log2(&self) -> u32 {
        first_rows_log2(self.most_log2) + self.doublings()
    }

    fn doublings(&self) -> u32 {
        // SAFETY: `place` is valid for reads (`Mapped::get`).
        self.doublings.get(0).map_or(0, |place| unsafe { read_volatile(place) })
    }
}
