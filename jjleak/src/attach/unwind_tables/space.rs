//! Free space in the chunks of rows and in their directory. Knows numbers only.

use std::collections::{BTreeMap, BTreeSet};

use jjleak_common::unwind::{CHUNK_SHIFT, CHUNK_WORDS};

/// Words of a chunk, as a number of words.
#[expect(clippy::cast_possible_truncation, reason = "2^18")]
const CHUNK: u32 = CHUNK_WORDS as u32;

/// Free ranges: start and length. No range crosses the end of a chunk.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u32, u32>);

impl Ranges {
    /// Takes the first free range of this length from `from` on, and returns its start.
    pub(super) fn take(&mut self, from: u32, length: u32) -> Option<u32> {
        let (start, free) = self.0.range(from..).find(|(_, free)| **free >= length)?;
        let (start, free) = (*start, *free);
        self.0.remove(&start);
        if free > length {
            self.0.insert(start + length, free - length);
        }
        Some(start)
    }

    /// Frees a range.
    pub(super) fn give(&mut self, start: u32, length: u32) {
        if length == 0 {
            return;
        }
        let (mut start, mut end) = (start, start + length);
        let chunk = start >> CHUNK_SHIFT;
        let is_same_chunk = |other: u32| other >> CHUNK_SHIFT == chunk;
        if let Some((before, free)) = self.0.range(..start).next_back()
            && before + free == start
            && is_same_chunk(*before)
        {
            start = *before;
        }
        if let Some(free) = self.0.get(&end)
            && is_same_chunk(end)
        {
            let behind = end;
            end += free;
            self.0.remove(&behind);
        }
        self.0.insert(start, end - start);
    }

    /// Total length.
    pub(super) fn total(&self) -> u64 {
        self.0.values().map(|free| u64::from(*free)).sum()
    }
}

/// Space in chunks, of which there are as many as are needed.
#[derive(Debug)]
pub(super) struct Space {
    free: Ranges,
    chunks: BTreeSet<u32>,
    /// Maximum number of chunks.
    max_chunks: u32,
}

/// Places for the groups of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// First word of each, counted through all chunks.
    pub(super) at: Vec<u32>,
    /// Chunks that must be created.
    pub(super) new: Vec<u32>,
}

impl Space {
    pub(super) const fn new(max_chunks: u32) -> Self {
        Self { free: Ranges(BTreeMap::new()), chunks: BTreeSet::new(), max_chunks }
    }

    /// Number of chunks.
    #[cfg(test)]
    pub(super) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Number of words that are free, or would be with all chunks.
    pub(super) fn room(&self) -> u64 {
        let missing = u64::from(self.max_chunks).saturating_sub(self.chunks.len() as u64);
        self.free.total() + missing * u64::from(CHUNK)
    }

    /// Finds places for groups of these sizes, none larger than a chunk; `None` if there is not enough space. Takes time linear in
    /// the number of groups and of free ranges: a later group of a file is not in front of an earlier one, except in a new chunk.
    pub(super) fn place(&mut self, sizes: &[u32]) -> Option<Placed> {
        let mut placed = Placed { at: Vec::with_capacity(sizes.len()), new: Vec::new() };
        let mut from = 0;
        for size in sizes {
            let at = self.free.take(from, *size).or_else(|| {
                let chunk = self.add_chunk()?;
                placed.new.push(chunk);
                self.free.take(chunk << CHUNK_SHIFT, *size)
            });
            let Some(at) = at else {
                self.undo(&placed, sizes);
                return None;
            };
            from = at;
            placed.at.push(at);
        }
        Some(placed)
    }

    /// Takes back what [`Self::place`] has done.
    pub(super) fn undo(&mut self, placed: &Placed, sizes: &[u32]) {
        for (at, size) in placed.at.iter().zip(sizes) {
            self.free.give(*at, *size);
        }
        for chunk in &placed.new {
            self.remove_chunk(*chunk);
        }
    }

    /// Frees the place of a group.
    pub(super) fn give(&mut self, at: u32, size: u32) {
        self.free.give(at, size);
    }

    /// Removes chunks that hold nothing, and returns them.
    pub(super) fn take_empty(&mut self) -> Vec<u32> {
        let is_empty = |chunk: &u32| self.free.0.get(&(*chunk << CHUNK_SHIFT)) == Some(&CHUNK);
        let empty: Vec<_> = self.chunks.iter().copied().filter(is_empty).collect();
        for chunk in &empty {
            self.remove_chunk(*chunk);
        }
        empty
    }

    /// Adds the chunk with the lowest unused number. Number 0 is not used.
    fn add_chunk(&mut self) -> Option<u32> {
        let chunk = (1..=self.max_chunks).find(|chunk| !self.chunks.contains(chunk))?;
        self.chunks.insert(chunk);
        self.free.give(chunk << CHUNK_SHIFT, CHUNK);
        Some(chunk)
    }

    fn remove_chunk(&mut self, chunk: u32) {
        self.chunks.remove(&chunk);
        self.free.0.remove(&(chunk << CHUNK_SHIFT));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn files_fill_a_chunk_before_another_is_created() {
        let mut space = Space::new(3);
        let first = space.place(&[CHUNK / 2, 10]).unwrap();
        assert_eq!(first, Placed { at: vec![CHUNK, CHUNK + CHUNK / 2], new: vec![1] });
        // Its large group needs a new chunk, and the small one fits behind it.
        let second = space.place(&[CHUNK - 100, 50]).unwrap();
        assert_eq!(second, Placed { at: vec![2 * CHUNK, 3 * CHUNK - 100], new: vec![2] });
        assert_eq!(space.place(&[60]).unwrap(), Placed { at: vec![CHUNK + CHUNK / 2 + 10], new: vec![] });
    }

    #[test]
    fn a_file_that_does_not_fit_leaves_nothing_behind() {
        let mut space = Space::new(2);
        space.place(&[100]).unwrap();
        let room = space.room();
        assert_eq!(space.place(&[CHUNK, CHUNK]), None);
        assert_eq!((space.room(), space.chunks()), (room, 1));
        assert!(space.place(&[CHUNK]).is_some());
    }

    #[test]
    fn a_chunk_that_holds_nothing_is_removed_and_its_number_used_again() {
        let mut space = Space::new(4);
        let sizes = [CHUNK, CHUNK, 7];
        let placed = space.place(&sizes).unwrap();
        space.give(placed.at[1], CHUNK);
        assert_eq!(space.take_empty(), [2]);
        assert_eq!(space.take_empty(), [] as [u32; 0]);
        assert_eq!(space.place(&[CHUNK]).unwrap(), Placed { at: vec![2 * CHUNK], new: vec![2] });
    }

    proptest! {
        #[test]
        fn places_are_in_one_chunk_and_apart(
            files in proptest::collection::vec((proptest::collection::vec(1..CHUNK / 3, 1..12), any::<bool>()), 1..30),
        ) {
            let mut space = Space::new(8);
            let mut held: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
            for (sizes, is_freed) in files {
                let before = space.room();
                if let Some(placed) = space.place(&sizes) {
                    held.push((placed.at, sizes));
                } else {
                    prop_assert_eq!(space.room(), before);
                }
                if is_freed && !held.is_empty() {
                    let (at, sizes) = held.remove(0);
                    at.iter().zip(&sizes).for_each(|(at, size)| space.give(*at, *size));
                    space.take_empty();
                }
                let ranges = held.iter().flat_map(|(at, sizes)| at.iter().copied().zip(sizes.iter().copied()));
                let mut ranges: Vec<_> = ranges.collect();
                ranges.sort_unstable();
                for (at, size) in &ranges {
                    prop_assert!(*at >= CHUNK && at >> CHUNK_SHIFT == (at + size - 1) >> CHUNK_SHIFT);
                }
                prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                let used: u64 = ranges.iter().map(|(_, size)| u64::from(*size)).sum();
                prop_assert_eq!(space.room() + used, 8 * u64::from(CHUNK));
            }
            for (at, sizes) in held.drain(..) {
                at.iter().zip(&sizes).for_each(|(at, size)| space.give(*at, *size));
            }
            space.take_empty();
            prop_assert_eq!(space.chunks(), 0);
        }
    }
}
