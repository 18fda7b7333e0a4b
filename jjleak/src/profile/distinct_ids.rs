//! IDs of stacks that are read from files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;

use fastrand::Rng;

use super::StackProfile;
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

    /// Gives stacks another ID that have that of a stack before them. Takes less memory than to remember all while stacks are read.
    pub fn make_distinct(stacks: &mut [StackProfile]) {
        let mut all: Vec<_> = stacks.iter().map(|stack| stack.id).collect();
        all.sort_unstable();
        let repeated = all.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| (pair[0], false));
        // True once the first stack with the ID was seen.
        let mut repeated: FastMap<u64, bool> = repeated.collect();
        let mut new = Self::default();
        for stack in stacks {
            if repeated.get_mut(&stack.id).is_some_and(|is_seen| mem::replace(is_seen, true)) {
                let mut id = new.others.u64(..);
                while all.binary_search(&id).is_ok() {
                    id = new.others.u64(..);
                }
                stack.id = new.distinct(id);
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
    use crate::render::sample;

    #[test]
    fn an_id_is_that_of_the_stack_and_of_no_other_of_the_profile() {
        let ids = |stacks: [&[u64]; 3]| {
            let mut ids = DistinctIds::default();
            stacks.map(|stack| ids.of(stack))
        };
        let ([a, b, again], [b_first, a_later, _]) = (ids([&[1, 2], &[3], &[3]]), ids([&[3], &[1, 2], &[4]]));
        assert_eq!((a, b), (a_later, b_first));
        assert!(again != b && again != a);

        let stack =
            |addresses: &[u64]| StackProfile { id: DistinctIds::hash(addresses), ..sample::empty_stack() };
        let mut stacks = [stack(&[1, 2]), stack(&[3]), stack(&[3])];
        DistinctIds::make_distinct(&mut stacks);
        let [first, second, third] = stacks.map(|stack| stack.id);
        assert!((first, second) == (a, b) && third != a && third != b);
    }
}
