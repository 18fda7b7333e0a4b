//! The rows of a module, and the index with which the kernel searches them.

use jjleak_common::unwind::{GoSwitch, PAGE_BYTES, PAGE_SHIFT, Row, RowKind, SavedFp};

use super::{MAX_ROWS, Statistics};

/// The kinds of rows in modules: all except those of generated code.
const MODULES: [u64; 12] = [
    RowKind::None as u64,
    RowKind::Sp as u64,
    RowKind::Fp as u64,
    RowKind::Plt as u64,
    RowKind::Signal as u64,
    RowKind::End as u64,
    RowKind::Deref as u64,
    RowKind::Unsupported as u64,
    RowKind::FramePointer as u64,
    RowKind::Base as u64,
    RowKind::FarSp as u64,
    RowKind::Go as u64,
];

/// Unwind rows for the instructions of a module.
///
/// Addresses of rows are relative to [`text_start`](Self::text_start). Rows are sorted by address, each is valid up to the
/// address of the next, and the first is at 0. Gaps between functions have rows of [`RowKind::None`].
///
/// The index has one entry per [`PAGE_BYTES`] of text, up to the page of the last row, and one more: `pages[p]` is the index of
/// the last row whose address is not above `p * PAGE_BYTES`. The row for an address of page `p` is therefore the last one not
/// above it in `rows[pages[p]..=pages[p + 1]]`. Addresses beyond the last page have no rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleRows {
    text_start: u64,
    rows: Vec<Row>,
    pages: Vec<u32>,
    statistics: Statistics,
}

/// The part of a module that rows of one kind cover.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Number of rows.
    pub rows: u32,
    /// Bytes of text.
    pub bytes: u64,
}

impl ModuleRows {
    /// Validates the rows; `None` if they break an invariant of the type.
    pub(super) fn new(text_start: u64, rows: Vec<Row>, statistics: Statistics) -> Option<Self> {
        let ascending = rows.windows(2).all(|pair| pair[0].address() < pair[1].address());
        let is_known = |row: &Row| {
            let saved = if row.kind() == RowKind::Go as u64 {
                GoSwitch::ToRunning as u64
            } else {
                SavedFp::AtFp as u64
            };
            MODULES.contains(&row.kind()) && row.saved() <= saved
        };
        let first_at_0 = rows.first().is_some_and(|row| row.address() == 0);
        let valid = ascending
            && rows.iter().all(is_known)
            && first_at_0
            && rows.len() <= MAX_ROWS
            && text_start.is_multiple_of(PAGE_BYTES)
            && text_start.checked_add(rows.last().map_or(0, |last| u64::from(last.address()))).is_some();
        valid.then(|| Self { text_start, pages: index(&rows), rows, statistics })
    }

    /// Rows for tests of other stages.
    #[cfg(test)]
    pub(crate) fn of_rows(rows: Vec<Row>) -> Option<Self> {
        Self::new(0, rows, Statistics::default())
    }

    /// Base of the rows' addresses, a multiple of [`PAGE_BYTES`]: a virtual address before relocation of the module.
    #[must_use]
    pub fn text_start(&self) -> u64 {
        self.text_start
    }

    /// The rows, sorted by address.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The index, one entry longer than the text has pages.
    #[must_use]
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Statistics of the source of the rows.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The row for a virtual address before relocation, with the kernel's search algorithm.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Row> {
        let relative = u32::try_from(address.checked_sub(self.text_start)?).ok()?;
        let page = (relative >> PAGE_SHIFT) as usize;
        let (low, high) = (*self.pages.get(page)?, *self.pages.get(page + 1)?);
        let candidates = self.rows.get(low as usize..=high as usize)?;
        let above = candidates.partition_point(|row| row.address() <= relative);
        candidates.get(above.checked_sub(1)?).copied()
    }

    /// The part of the text that rows of a kind cover. The last row covers nothing.
    #[must_use]
    pub fn coverage(&self, kind: RowKind) -> Coverage {
        let mut coverage = Coverage::default();
        for (index, row) in self.rows.iter().enumerate().filter(|(_, row)| row.kind() == kind as u64) {
            let end = self.rows.get(index + 1).map_or(row.address(), |next| next.address());
            coverage.rows += 1;
            coverage.bytes += u64::from(end - row.address());
        }
        coverage
    }
}

fn index(rows: &[Row]) -> Vec<u32> {
    let pages = rows.last().map_or(0, |last| last.address() >> PAGE_SHIFT) + 1;
    let mut row = 0;
    (0..=u64::from(pages))
        .map(|page| {
            let start = page << PAGE_SHIFT;
            while rows.get(row as usize + 1).is_some_and(|next| u64::from(next.address()) <= start) {
                row += 1;
            }
            row
        })
        .collect()
}
