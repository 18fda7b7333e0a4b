//! Hashes of the words that a stack walk depends on. Two walks with the same hash count as the same, so it must tell words apart that
//! differ in few bits, and in the same ones: addresses of the same code and of the same stack.

/// Multipliers of the lanes. Each is another one: a difference that two lanes have in common must not cancel itself out.
const MULTIPLIERS: [u64; LANES] =
    [0xff51_afd7_ed55_8ccd, 0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0xc4ce_b9fe_1a85_ec53];

/// Bits of an address.
const ADDRESS_BITS: u32 = 48;

/// Number of words that are hashed at a time: their multiplications do not wait for each other.
pub const LANES: usize = 4;

/// Adds a word to a hash that depends on all words before it.
#[inline(always)]
#[must_use]
pub const fn add(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(MULTIPLIERS[0]);
    mixed ^ mixed >> 29
}

/// Hash of the beginning of a walk: scope of the mappings, stack pointer, and two addresses of code.
#[inline(always)]
#[must_use]
pub const fn of_start(scope: u64, stack_pointer: u64, site: u64, return_address: u64) -> u64 {
    // One after the other: a function can be called from two sites that differ in the same bits as the addresses that they return to.
    add(add(add(scope, stack_pointer), site), return_address)
}

/// Hash of many words.
#[derive(Debug, Clone, Copy)]
pub struct Lanes([u64; LANES]);

impl Lanes {
    /// Begins with the hash of all words before, and the number of words. Each lane begins with another number: words in another order
    /// have another hash. The last words are followed by zeros, which the number tells from words that are zero. It is in the highest bits,
    /// which are zero in addresses.
    #[inline(always)]
    #[must_use]
    pub const fn new(hash: u64, count: u16) -> Self {
        Self([hash, 1, 2, 3 | (count as u64) << ADDRESS_BITS])
    }

    /// Adds words.
    #[inline(always)]
    #[must_use]
    pub const fn push(self, words: [u64; LANES]) -> Self {
        let Self(lanes) = self;
        Self([
            (lanes[0] ^ words[0]).wrapping_mul(MULTIPLIERS[0]),
            (lanes[1] ^ words[1]).wrapping_mul(MULTIPLIERS[1]),
            (lanes[2] ^ words[2]).wrapping_mul(MULTIPLIERS[2]),
            (lanes[3] ^ words[3]).wrapping_mul(MULTIPLIERS[3]),
        ])
    }

    /// The hash.
    #[inline(always)]
    #[must_use]
    pub const fn finish(self) -> u64 {
        let Self(lanes) = self;
        add(add(add(lanes[0], lanes[1]), lanes[2]), lanes[3])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Addresses of code and of a stack, another one for each number.
    fn address(number: u64) -> u64 {
        0x7f00_0000_0000 | (number.wrapping_mul(0xd1b5_4a32_d192_ed03) >> 26 & !7)
    }

    /// Differences between addresses.
    fn differences() -> impl Iterator<Item = u64> {
        (0..46).map(|bit| 1 << bit).chain([0x42, 0x1b0, 0x21_000, 0x7fff_f000, 0x5555_0000_1120])
    }

    #[test]
    fn starts_that_differ_in_the_same_bits_have_hashes_of_their_own() {
        for seed in 0..500 {
            let [stack_pointer, site, return_address] = [0, 1, 2].map(|number| address(3 * seed + number));
            let scope = add(seed, 1);
            let starts = differences().flat_map(|difference| {
                (1..8).map(move |which| {
                    let of = |bit: u64| difference * (which >> bit & 1);
                    of_start(scope, stack_pointer ^ of(0), site ^ of(1), return_address ^ of(2))
                })
            });
            let all: BTreeSet<_> = starts.collect();
            assert_eq!(all.len(), 7 * differences().count());
        }
    }

    #[test]
    fn zeros_are_told_from_words_that_are_not_there() {
        let [one, two, three] = [1, 2, 3].map(address);
        for words in [[one, 0, 0, 0], [one, two, 0, 0], [one, two, three, 0]] {
            let hashes: BTreeSet<_> =
                (1..=4).map(|count| Lanes::new(7, count).push(words).finish()).collect();
            assert_eq!(hashes.len(), 4);
        }
    }

    #[test]
    fn words_that_differ_in_the_same_bits_have_hashes_of_their_own() {
        const WORDS: usize = 8;
        for seed in 0..20 {
            let words: [u64; WORDS] =
                std::array::from_fn(|number| address(seed * WORDS as u64 + number as u64));
            let hash = |words: [u64; WORDS]| {
                let [one, two, three, four, five, six, seven, eight] = words;
                let lanes = Lanes::new(address(seed), 8).push([one, two, three, four]);
                lanes.push([five, six, seven, eight]).finish()
            };
            let mut all = BTreeSet::new();
            for difference in differences() {
                for which in 1..1u64 << WORDS {
                    let of = |at| difference * (which >> at & 1);
                    all.insert(hash(std::array::from_fn(|at| words[at] ^ of(at))));
                }
            }
            assert_eq!(all.len(), differences().count() * ((1 << WORDS) - 1));
            for one in 0..WORDS {
                for other in 0..one {
                    let mut swapped = words;
                    swapped.swap(one, other);
                    assert!(all.insert(hash(swapped)), "words {one} and {other} swapped");
                }
            }
        }
    }
}
