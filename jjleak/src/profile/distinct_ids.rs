//! IDs of stacks that are read from files.

use std::hash::{DefaultHasher, Hash, Hasher};

use fastrand::Rng;

use crate::fast_map::FastSet;

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
        let mut hasher = DefaultHasher::new();
        stack.hash(&mut hasher);
        self.distinct(hasher.finish())
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
    }
}
