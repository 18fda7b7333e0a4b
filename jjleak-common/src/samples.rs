//! Samples of allocations that a program draws itself and announces at probes (SDT, as in `<sys/sdt.h>`): where their arguments are,
//! and how a live block carries its weight.
//!
//! The contract is OpenTelemetry's `otel_memory`: `alloc(pointer, size, weighted_bytes)` and `free(pointer)`, of sampled blocks only.

use crate::sampling::{WEIGHT_BITS, WEIGHT_ONE};

/// Maximum number of ways to pass arguments at a time. Compilers use one or two of a kind of probe.
pub const MAX_SITES: u32 = 256;

/// Number of a register that is none.
pub const NO_REGISTER: u16 = u16::MAX;

/// Location of an argument at a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Argument {
    /// The constant, or what is added to the address.
    pub value: i64,
    /// Offset in the kernel's `pt_regs` of the register, or of the address's base; [`NO_REGISTER`] for a constant.
    pub register: u16,
    /// Offset of the register that is multiplied and added to the address; [`NO_REGISTER`] for none.
    pub index: u16,
    /// Factor of the index.
    pub scale: u8,
    /// 1 if the argument is in memory.
    pub in_memory: u8,
    /// Size in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// 1 if it is signed.
    pub is_signed: u8,
}

impl Argument {
    /// The constant 0.
    pub const ZERO: Self = Self {
        value: 0,
        register: NO_REGISTER,
        index: NO_REGISTER,
        scale: 1,
        in_memory: 0,
        bytes: 8,
        is_signed: 0,
    };

    /// The argument from the register or memory that contains it: the lowest bytes, extended.
    #[inline(always)]
    #[must_use]
    pub const fn extended(bytes: u8, is_signed: bool, raw: u64) -> u64 {
        let unused = (64 - (bytes as u32) * 8) & 63;
        if is_signed {
            ((raw << unused).cast_signed() >> unused).cast_unsigned()
        } else {
            raw << unused >> unused
        }
    }
}

/// Arguments of a probe. Those of a free beyond the pointer are [`Argument::ZERO`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Site {
    /// Address of the block.
    pub pointer: Argument,
    /// Its size in bytes.
    pub size: Argument,
    /// Bytes that it stands for.
    pub weighted_bytes: Argument,
    /// 1 if the weighted bytes are the number of sampling points in the block times their distance, as `ddheap` has them. Otherwise, they
    /// are the size divided by the chance that the block was sampled.
    pub counts_points: u64,
    /// Number of the file with the probe, from 0 to [`MAX_PRODUCERS`] - 1: several can announce the same block.
    pub producer: u64,
}

/// Number of files of a process whose blocks are distinguished, a power of two: blocks are aligned to as many bytes.
pub const MAX_PRODUCERS: u64 = 8;

/// A sampled block: its size in the low bits, and how many blocks it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled(pub u64);

const SIZE_BITS: u32 = 47;
const MANTISSA_BITS: u32 = 10;
const EXPONENT_SHIFT: u32 = SIZE_BITS + MANTISSA_BITS;
const POINTS_SHIFT: u32 = 63;
const _: () = assert!(EXPONENT_SHIFT + 6 == POINTS_SHIFT);

impl Sampled {
    /// More bytes are no block, and no weight, of an x86-64 process.
    pub const MAX_BYTES: u64 = (1 << SIZE_BITS) - 1;

    /// A block of `size` bytes that stands for `weighted_bytes`. `None` if no sampler has such figures. The weight is off by
    /// 0.05 % at most.
    #[inline(always)]
    #[must_use]
    pub const fn new(size: u64, weighted_bytes: u64, counts_points: bool) -> Option<Self> {
        // An allocation of 0 bytes takes some.
        let size = if size == 0 { 1 } else { size };
        if size > Self::MAX_BYTES || weighted_bytes > Self::MAX_BYTES {
            return None;
        }
        let Some(weight) = (weighted_bytes << WEIGHT_BITS).checked_div(size) else { return None };
        if weight == 0 {
            return None;
        }
        let exponent = weight.ilog2();
        let mantissa = (weight << (63 - exponent) << 1) >> (64 - MANTISSA_BITS - 1);
        // Rounded: an overflow of the mantissa increases the exponent by one, as it should.
        let code = ((exponent as u64) << MANTISSA_BITS) + mantissa.div_ceil(2);
        Some(Self(size | code << SIZE_BITS | (counts_points as u64) << POINTS_SHIFT))
    }

    /// Size in bytes.
    #[inline(always)]
    #[must_use]
    pub const fn size(self) -> u64 {
        self.0 & Self::MAX_BYTES
    }

    /// Number of blocks that it stands for, with [`WEIGHT_BITS`] fractional bits.
    #[inline(always)]
    #[must_use]
    pub const fn weight(self) -> u64 {
        let exponent = (self.0 >> EXPONENT_SHIFT) & 63;
        let mantissa = (self.0 >> SIZE_BITS) & ((1 << MANTISSA_BITS) - 1);
        let fraction = mantissa << (63 - MANTISSA_BITS);
        (1 << 63 | fraction) >> (63 - exponent)
    }

    /// Returns true if the weight counts sampling points.
    #[inline(always)]
    #[must_use]
    pub const fn counts_points(self) -> bool {
        self.0 >> POINTS_SHIFT != 0
    }

    /// Estimated variances of the numbers of blocks and bytes that it stands for: at most those of its sampler.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a standard error has no use for more than 53 bits")]
    pub const fn variances(self) -> (f64, f64) {
        let (weight, size) = (self.weight() as f64 / WEIGHT_ONE as f64, self.size() as f64);
        // A number of points varies as much as it is. How many were in this block is unknown: one varies most.
        let objects = if self.counts_points() { weight * weight } else { weight * (weight - 1.).max(0.) };
        (objects, objects * size * size)
    }
}

// SAFETY: integers only, no padding (asserted below), every bit pattern valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Site {}

const _: () = assert!(size_of::<Argument>() == 16 && size_of::<Site>() == 64);

#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "ratios")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sampled_block_keeps_its_size_and_its_weight(
            size in 1..1u64 << 27, parts in 64..64u64 << 13, counts_points: bool,
        ) {
            let weighted = size * parts / 64;
            let sampled = Sampled::new(size, weighted, counts_points).unwrap();
            prop_assert_eq!((sampled.size(), sampled.counts_points()), (size, counts_points));
            let weight = sampled.weight() as f64 / WEIGHT_ONE as f64;
            let exact = weighted as f64 / size as f64;
            prop_assert!((weight / exact - 1.).abs() < 6e-4, "{} {}", weight, exact);
        }

        #[test]
        fn whatever_is_announced_is_a_block_or_refused(size: u64, weighted: u64, counts_points: bool) {
            if let Some(sampled) = Sampled::new(size, weighted, counts_points) {
                prop_assert!(sampled.size() > 0 && sampled.weight() > 0);
                let (objects, bytes) = sampled.variances();
                prop_assert!(objects >= 0. && bytes.is_finite());
            }
        }
    }

    #[test]
    fn a_block_that_stands_for_itself_has_the_weight_of_one() {
        for size in [1, 7, 4096, 1 << 40] {
            let sampled = Sampled::new(size, size, false).unwrap();
            assert_eq!((sampled.weight(), sampled.variances()), (WEIGHT_ONE, (0., 0.)));
        }
    }

    #[test]
    fn a_number_of_points_varies_more_than_a_chance() {
        let variances = |counts_points| Sampled::new(100, 400, counts_points).unwrap().variances();
        assert_eq!(variances(false), (12., 120_000.));
        assert_eq!(variances(true), (16., 160_000.));
    }

    #[test]
    fn no_sampler_has_weights_of_nothing_or_of_more_than_a_process_can_have() {
        for (size, weighted) in [(16, 0), (16, 1 << 63), (1 << 47, 1 << 20), (u64::MAX, 1), (1 << 40, 1)] {
            assert_eq!(Sampled::new(size, weighted, false), None, "{size} {weighted}");
        }
        assert_eq!(Sampled::new(0, 4096, false).unwrap().size(), 1, "an empty block takes room, too");
    }

    #[test]
    fn arguments_are_extended_as_their_signs_say() {
        assert_eq!(Argument::extended(4, true, 0xdead_beef_ffff_fffe), (-2i64).cast_unsigned());
        assert_eq!(Argument::extended(4, false, 0xdead_beef_ffff_fffe), 0xffff_fffe);
        assert_eq!(Argument::extended(1, true, 0x80), (-128i64).cast_unsigned());
        assert_eq!(Argument::extended(8, true, u64::MAX), u64::MAX);
    }
}
