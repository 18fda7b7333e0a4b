//! Which places of a table are taken. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// The places of a table that are free. Those beside each other are one range.
#[derive(Debug)]
pub(super) struct Space {
    /// Ranges by where they begin: where they end.
    free: BTreeMap<usize, usize>,
    capacity: usize,
}

impl Space {
    /// All of a table with so many places.
    pub(super) fn new(capacity: usize) -> Self {
        Self { free: BTreeMap::from([(0, capacity)]), capacity }
    }

    /// How many places are free, here and there.
    pub(super) fn free(&self) -> usize {
        self.free.iter().map(|(begin, end)| end - begin).sum()
    }

    pub(super) fn taken(&self) -> usize {
        self.capacity - self.free()
    }

    /// Takes so many places beside each other, from the smallest free range that has them: large ones are left for those that
    /// need them. `None` when no range is large enough.
    pub(super) fn take(&mut self, length: usize) -> Option<Range<usize>> {
        let fitting = self.free.iter().filter(|(begin, end)| *end - *begin >= length);
        let (begin, end) =
            fitting.min_by_key(|(begin, end)| *end - *begin).map(|(begin, end)| (*begin, *end))?;
        self.free.remove(&begin);
        if begin + length < end {
            self.free.insert(begin + length, end);
        }
        Some(begin..begin + length)
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, Range { mut start, mut end }: Range<usize>) {
        if start == end {
            return;
        }
        if let Some((&begin, &before)) = self.free.range(..start).next_back()
            && before == start
        {
            self.free.remove(&begin);
            start = begin;
        }
        if let Some(after) = self.free.remove(&end) {
            end = after;
        }
        self.free.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_as_one_with_what_is_beside_it() {
        let mut space = Space::new(100);
        let taken: Vec<_> = (0..10).map(|_| space.take(10).unwrap()).collect();
        assert_eq!((space.take(1), space.free()), (None, 0));
        for index in [3, 5, 4] {
            space.give_back(taken[index].clone());
        }
        space.give_back(taken[8].clone());
        // The small one first, though the other one comes before it.
        assert_eq!(space.take(7), Some(80..87));
        assert_eq!(space.take(30), Some(30..60));
        assert_eq!((space.take(4), space.taken()), (None, 97));
        assert_eq!(space.take(0), Some(87..87));
    }

    proptest! {
        #[test]
        fn nothing_is_taken_twice_and_everything_comes_back(
            steps in prop::collection::vec((any::<bool>(), 1..40_usize), 0..200)
        ) {
            let mut space = Space::new(256);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (takes, number) in steps {
                if takes {
                    let Some(range) = space.take(number) else { continue };
                    prop_assert!(range.len() == number && range.end <= 256);
                    prop_assert!(taken.iter().all(|other| other.end <= range.start || range.end <= other.start));
                    taken.push(range);
                } else if !taken.is_empty() {
                    space.give_back(taken.swap_remove(number % taken.len()));
                }
                prop_assert_eq!(space.taken(), taken.iter().map(Range::len).sum::<usize>());
            }
            for range in taken {
                space.give_back(range);
            }
            prop_assert_eq!(space.take(256), Some(0..256));
        }
    }
}
