//! The table of live allocations: set-associative, memory-mapped, spilling into a hash map.
//!
//! An insert claims a way by compare-and-swap of its key to [`Key::LOCKED`], then writes the time, the other
//! fields, and last the key. A removal reads the fields and swaps the key for [`Key::EMPTY`]. A reader that
//! sees the same key before and the same time after reading the fields has a consistent record: a writer that
//! reused the way in between changed the time first. A block that replaces one with the same key locks its
//! way likewise.

use crate::process::ImageId;

/// Ways per set. Four keys and sizes share one cache line.
pub const WAYS: usize = 4;

/// Default capacity in blocks: 32 MiB of sets, 4 MiB of buckets of the spill map.
pub const DEFAULT_BLOCKS: u32 = 1_000_000;

/// Maximum capacity in blocks: 4 GiB of sets.
pub const MAX_BLOCKS: u32 = 1 << 27;

/// log2 of the number of sets for this capacity: at least as many ways as blocks.
#[must_use]
pub const fn sets_log2(blocks: u32) -> u32 {
    let ways = if blocks < MIN_WAYS { MIN_WAYS } else { blocks };
    ways.next_power_of_two().ilog2() - WAYS.ilog2()
}

/// Entries of the spill map for this capacity. With as many blocks as ways, a fifth of the blocks find their
/// set full (the blocks of a set are Poisson-distributed around 4); a quarter leaves a margin. Small tables need
/// some more; in large ones, more would double the buckets. The kernel allocates entries on demand, so an unused
/// spill costs only its buckets, whose number is a power of two.
#[must_use]
pub const fn spill_entries(blocks: u32) -> u32 {
    let blocks = if blocks < MIN_WAYS { MIN_WAYS } else { blocks };
    if blocks < SMALL { blocks / 4 + 256 } else { blocks / 4 }
}

/// Tables of fewer blocks are small.
const SMALL: u32 = 1 << 14;

/// Fewer ways would leave too little margin in the spill.
const MIN_WAYS: u32 = 256;

/// Bit of a block's stack index: a call that resizes the block is running. The block stays in the table until
/// the call's outcome is known, but its address may already be another block's.
pub const RESIZING: u32 = 1 << 31;

const ADDRESS_BITS: u32 = 47;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const _: () = assert!(ADDRESS_BITS + ImageId::BITS == u64::BITS);

/// Key of a block: its image and its address. User addresses on x86-64 without 5-level paging have 47 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Key(pub u64);

impl Key {
    /// A free way.
    pub const EMPTY: Self = Self(0);
    /// A way that is being written. No block has this key: its image would be 0.
    pub const LOCKED: Self = Self(1);

    /// The key of the block at `address` in `image`.
    #[inline(always)]
    #[must_use]
    pub const fn new(image: ImageId, address: u64) -> Self {
        Self((image.0 as u64) << ADDRESS_BITS | address & ADDRESS_MASK)
    }

    /// The image that allocated the block.
    #[inline(always)]
    #[must_use]
    pub const fn image(self) -> ImageId {
        ImageId((self.0 >> ADDRESS_BITS) as u32)
    }

    /// The block's address.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 & ADDRESS_MASK
    }

    /// Index of the block's set among 2^`sets_log2`. Blocks within a KiB of memory share a page of the table if they
    /// are a multiple of 32 bytes apart, each in a set of its own: a program that uses neighbouring blocks finds the
    /// page in the TLB. Hashing chooses the page and the order of its sets. One multiplication would not do: blocks
    /// at some regular distances would share few pages.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits remain after the shift")]
    pub const fn set(self, sets_log2: u32) -> u32 {
        let page = self.0 >> 10 << 2 | self.0 >> 3 & 3;
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (hash ^ hash >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd) >> (64 - sets_log2);
        (place ^ (self.0 >> 5) & 31) as u32
    }
}

/// A live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// Requested size in bytes.
    pub size: u64,
    /// Allocation time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Index of its stack in the stack table, with [`RESIZING`].
    pub stack: u32,
    /// Explicit padding, always 0.
    pub reserved: u32,
}

/// A set, stored field by field, so that a search touches one cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
pub struct LiveSet {
    /// Keys of the blocks, [`Key::EMPTY`] or [`Key::LOCKED`].
    pub keys: [u64; WAYS],
    /// Requested sizes in bytes.
    pub sizes: [u64; WAYS],
    /// Allocation times, in nanoseconds of `CLOCK_MONOTONIC`.
    pub times_ns: [u64; WAYS],
    /// Indexes into the stack table, with [`RESIZING`].
    pub stacks: [u32; WAYS],
    /// Number of this set's blocks in the spill map; 0 saves searching there.
    pub spilled: u32,
    /// Explicit padding to two cache lines.
    pub reserved: [u32; 3],
}

const _: () = assert!(size_of::<Record>() == 24 && align_of::<Record>() == 8);
const _: () = assert!(size_of::<LiveSet>() == 128 && align_of::<LiveSet>() == 8);

// SAFETY: integers only, no padding (asserted above), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Record {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_gives_back_image_and_address(image in 0..1u32 << ImageId::BITS, address in 0..1u64 << 47) {
            let key = Key::new(ImageId(image), address);
            prop_assert_eq!((key.image(), key.address()), (ImageId(image), address));
        }

        #[test]
        fn every_key_falls_into_a_set(key: u64, sets_log2 in sets_log2(1)..=sets_log2(MAX_BLOCKS)) {
            prop_assert!(Key(key).set(sets_log2) < 1 << sets_log2);
        }
    }

    #[test]
    fn there_are_ways_for_the_blocks_asked_for() {
        for blocks in [1, 1_000, 4_096, DEFAULT_BLOCKS, MAX_BLOCKS] {
            let ways = (1u64 << sets_log2(blocks)) * WAYS as u64;
            assert!(ways >= u64::from(blocks) && ways < 2 * u64::from(blocks.max(MIN_WAYS)), "{blocks}");
        }
        assert_eq!(sets_log2(DEFAULT_BLOCKS), 18);
    }

    #[test]
    fn the_spill_of_a_large_table_has_no_more_buckets_than_needed() {
        for blocks in [SMALL, 1 << 20, MAX_BLOCKS] {
            assert_eq!(spill_entries(blocks).next_power_of_two(), blocks / 4, "{blocks}");
        }
    }

    #[test]
    fn as_many_blocks_as_asked_for_find_room() {
        const DISTANCES: [u64; 20] = [
            8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 256, 272, 440, 512, 1_024, 4_096, 4_112, 34_816, 69_632,
            1_048_576,
        ];
        // The kernel's rule, with addresses as allocators return them: a full set spills.
        for blocks in [1_000u32, 1_024, 4_096, SMALL - 1, SMALL, 65_536, 1 << 20] {
            for distance in DISTANCES {
                let sets_log2 = sets_log2(blocks);
                let mut held = vec![0usize; 1 << sets_log2];
                for block in 0..u64::from(blocks) {
                    held[Key::new(ImageId(1), 0x5555_5555_0010 + block * distance).set(sets_log2)
                        as usize] += 1;
                }
                let spilled: usize = held.iter().map(|held| held.saturating_sub(WAYS)).sum();
                assert!(
                    spilled <= spill_entries(blocks) as usize,
                    "{spilled} of {blocks}, {distance} bytes apart"
                );
            }
        }
    }

    #[test]
    fn neighbouring_blocks_share_a_page_of_the_table() {
        let sets = |at: u64| (0..1024 / 32).map(move |i| Key::new(ImageId(1), at + i * 32).set(18));
        for at in (0x5555_5555_0000..0x5555_5565_0000).step_by(1024) {
            let pages: std::collections::BTreeSet<_> =
                sets(at).map(|set| set as usize * size_of::<LiveSet>() / 4096).collect();
            assert_eq!(pages.len(), 1, "{at:x}");
            assert_eq!(sets(at).collect::<std::collections::BTreeSet<_>>().len(), 32, "{at:x}");
        }
    }

    #[test]
    fn neighbouring_blocks_spread_over_the_sets() {
        let sets: std::collections::BTreeSet<_> =
            (0..1000).map(|i| Key::new(ImageId(1), 0x5555_5555_0000 + i * 32).set(18)).collect();
        assert!(sets.len() > 950, "{} sets for 1000 blocks", sets.len());
    }
}
