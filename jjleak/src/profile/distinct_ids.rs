//! IDs of stacks that are read from files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;

use fastrand::Rng;

use crate::fast_map::{FastMap, FastSet};

/// IDs of the stacks of a profile so far.
#[derive(Debug)]
pub struct DistinctIds {
    taken: FastSet<u64>,
    others: Rng,
}

impl Default for DistinctIds {
    fn default() -> Self {
        Self { taken: FastSet::default(), others: Rng::with_seed(0) }
    }
}

impl DistinctIds {
    /// The ID of a stack by its addresses or frames: the same in the next profile of the process, wherever the stack stands in it.
    pub fn of(&mut self, stack: &(impl Hash + ?Sized)) -> u64 {
        self.distinct(Self::hash(stack))
    }

    /// The same, but two stacks can have it until [`Self::make_distinct`].
    pub fn hash(stack: &(impl Hash + ?Sized)) -> u64 {
        let mut hasher = DefaultHasher::new();
        stack.hash(&mut hasher);
        hasher.finish()
    }

    /// Replaces IDs that repeat one before them. `all` are all IDs. Takes less memory than to remember all while stacks are read.
    pub fn make_distinct<'a>(mut all: Vec<u64>, ids: impl Iterator<Item = &'a mut u64>) {
        all.sort_unstable();
        let repeated = all.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| (pair[0], false));
        // True once the first stack with the ID was seen.
        let mut repeated: FastMap<u64, bool> = repeated.collect();
        let mut new = Self::default();
        for id in ids {
            if repeated.get_mut(id).is_some_and(|is_seen| mem::replace(is_seen, true)) {
                let mut other = new.others.u64(..);
                while all.binary_search(&other).is_ok() {
                    other = new.others.u64(..);
                }
                *id = new.distinct(other);
            }
        }
    }

    /// The ID, or another one if a stack of the profile has it.
    pub fn distinct(&mut self, mut id: u64) -> u64 {
        // Not the next: a file can have a million stacks with one ID.
        while !self.taken.insert(id) {
            id = self.others.u64(..);
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_that_of_the_stack_and_of_no_other_of_the_profile() {
        let ids = |stacks: [&[u64]; 3]| {
            let mut ids = DistinctIds::default();
            stacks.map(|stack| ids.of(stack))
        };
        let ([a, b, again], [b_first, a_later, _]) = (ids([&[1, 2], &[3], &[3]]), ids([&[3], &[1, 2], &[4]]));
        assert_eq!((a, b), (a_later, b_first));
        assert!(again != b && again != a);

        let mut ids = [&[1, 2][..], &[3], &[3]].map(|stack: &[u64]| DistinctIds::hash(stack));
        DistinctIds::make_distinct(ids.to_vec(), ids.iter_mut());
        let [first, second, third] = ids;
        assert!((first, second) == (a, b) && third != a && third != b);
    }
}
