//! Address ranges with their allocations. An allocation can have several ranges if a part of it was removed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Origin of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allocation {
    /// Row of its stack.
    pub(super) stack: u32,
    /// Time of the allocation.
    pub(super) time_ns: u64,
}

/// A range and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    pub(super) allocation: Allocation,
    /// ID of the insertion: adjacent pieces of one insertion merge again.
    entry: u64,
}

/// Disjoint ranges.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranges {
    /// By start address.
    pieces: BTreeMap<u64, Piece>,
    entries: u64,
}

impl Ranges {
    /// Number of ranges.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// All ranges, in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.values()
    }

    /// Returns whether an address is in a range.
    pub(super) fn holds(&self, address: u64) -> bool {
        self.pieces.range(..=address).next_back().is_some_and(|(_, piece)| address < piece.range.end)
    }

    /// Adds a range that overlaps no other.
    pub(super) fn add(&mut self, range: Range<u64>, allocation: Allocation) {
        self.entries += 1;
        self.pieces.insert(range.start, Piece { range, allocation, entry: self.entries });
    }

    /// Removes and returns what is in `range`, in ascending order. Pieces that extend beyond it are split.
    pub(super) fn take(&mut self, range: &Range<u64>) -> Vec<Piece> {
        if range.is_empty() {
            return Vec::new();
        }
        let before = self.pieces.range(..range.start).next_back();
        let first = before.filter(|(_, piece)| piece.range.end > range.start).map(|(start, _)| *start);
        let starts: Vec<u64> =
            first.into_iter().chain(self.pieces.range(range.clone()).map(|(start, _)| *start)).collect();
        starts.into_iter().filter_map(|start| self.cut(start, range)).collect()
    }

    /// Cuts `range` out of the overlapping piece at `start`.
    fn cut(&mut self, start: u64, range: &Range<u64>) -> Option<Piece> {
        let piece = self.pieces.remove(&start)?;
        let Range { start, end } = piece.range;
        if start < range.start {
            self.insert(Piece { range: start..range.start, ..piece });
        }
        if range.end < end {
            self.insert(Piece { range: range.end..end, ..piece });
        }
        Some(Piece { range: start.max(range.start)..end.min(range.end), ..piece })
    }

    /// Puts removed pieces back and merges them with the rest of their allocation.
    pub(super) fn put_back(&mut self, taken: Vec<Piece>) {
        for mut piece in taken {
            self.take(&piece.range);
            let before = self.pieces.range(..piece.range.start).next_back().map(|(_, before)| before.clone());
            if let Some(before) = before
                && before.entry == piece.entry
                && before.range.end == piece.range.start
            {
                self.pieces.remove(&before.range.start);
                piece.range.start = before.range.start;
            }
            if self.pieces.get(&piece.range.end).is_some_and(|after| after.entry == piece.entry)
                && let Some(after) = self.pieces.remove(&piece.range.end)
            {
                piece.range.end = after.range.end;
            }
            self.insert(piece);
        }
    }

    fn insert(&mut self, piece: Piece) {
        self.pieces.insert(piece.range.start, piece);
    }
}
