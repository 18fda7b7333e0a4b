//! Addresses of stacks.

use crate::fast_map::FastMap;

/// The distinct addresses of stacks, by number: many stacks of a program have the same few.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Addresses {
    by_number: Vec<u64>,
    numbers: FastMap<u64, u32>,
}

impl Addresses {
    /// Memory of an address while a file is read, with what the allocator adds.
    pub(super) const BYTES: usize = 36;

    /// The address with a number.
    #[must_use]
    pub fn get(&self, number: u32) -> u64 {
        self.by_number[number as usize]
    }

    /// All addresses.
    #[must_use]
    pub const fn all(&self) -> &[u64] {
        self.by_number.as_slice()
    }

    pub(super) fn number(&mut self, address: u64) -> u32 {
        let Self { by_number, numbers } = self;
        *numbers.entry(address).or_insert_with(|| {
            by_number.push(address);
            // There is memory for fewer than 2^32.
            u32::try_from(by_number.len() - 1).unwrap_or(u32::MAX)
        })
    }

    /// Frees the memory that is needed to add others.
    pub(super) fn finish(&mut self) {
        self.numbers = FastMap::default();
        self.by_number.shrink_to_fit();
    }
}
