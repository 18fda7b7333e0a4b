//! Sampling of allocations, and the weights of sampled ones.
//!
//! Each allocation is selected at random, independently of the others. The probability depends on its size
//! only, so that a sampled block stands for 1/probability blocks (the Horvitz-Thompson estimator): weighted
//! sums are unbiased, whatever the probabilities are. Both sides compute the same integers, so the kernel's
//! sums and those over live blocks agree.

use crate::samples::{MAX_PRODUCERS, Sampled};

/// Weights are fixed-point numbers with this many fractional bits.
pub const WEIGHT_BITS: u32 = 16;

/// The weight of a block that stands for itself only.
pub const WEIGHT_ONE: u64 = 1 << WEIGHT_BITS;

/// Random numbers have 32 bits; a probability is the number of them, out of 2^32, that select the allocation.
const DRAWS: u64 = 1 << 32;

/// Maximum sampling interval in bytes that the arithmetic supports: a gibibyte.
pub const MAX_BYTES: u64 = 1 << 30;

/// Size in sampling intervals from which on a block is always selected: all but 10^-14 of them would be.
const CERTAIN: u64 = 32;

/// log2(e), with 32 fractional bits.
const LOG2_E: u64 = 6_196_328_019;

/// Rule that selects allocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sampling {
    /// Selects all.
    #[default]
    Off,
    /// Selects one in this many, on average.
    Rate(u32),
    /// The program selects, and announces the weight of each ([`crate::samples`]).
    Announced,
    /// Selects as if points were scattered over the allocated bytes, one in this many on average, and each block with
    /// a point were selected: a block of `size` bytes with the probability 1 - exp(-size / bytes).
    Bytes(u64),
}

impl Sampling {
    /// Returns true if figures are estimates.
    #[must_use]
    pub const fn is_estimate(self) -> bool {
        !matches!(self, Self::Off | Self::Rate(0 | 1))
    }

    /// Number of equally likely random numbers, out of 2^32, that select a block of `size` bytes; 2^32 means always.
    #[inline(always)]
    #[must_use]
    pub const fn draws(self, size: u64) -> u64 {
        match self {
            Self::Off | Self::Announced => DRAWS,
            Self::Rate(rate) => draws_of_rate(rate),
            Self::Bytes(bytes) => draws_of_bytes(scale_of(bytes), certain_from(bytes), size),
        }
    }

    /// Number of blocks that a sampled block with this size in its record stands for, in fixed point.
    #[inline(always)]
    #[must_use]
    pub const fn weight(self, size: u64) -> u64 {
        match self {
            Self::Off => WEIGHT_ONE,
            Self::Announced => Sampled(size).weight(),
            Self::Rate(_) | Self::Bytes(_) => weight_of(self.draws(size)),
        }
    }
}

impl Sampling {
    /// Size in bytes of a block, from that in its record.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(self, size: u64) -> u64 {
        match self {
            Self::Announced => Sampled(size).size(),
            Self::Off | Self::Rate(_) | Self::Bytes(_) => size,
        }
    }

    /// Address of a block, from that in its key.
    #[must_use]
    pub const fn address(self, address: u64) -> u64 {
        match self {
            Self::Announced => address & !(MAX_PRODUCERS - 1),
            Self::Off | Self::Rate(_) | Self::Bytes(_) => address,
        }
    }

    /// Contributions of a sampled block with this size in its record to the variances of the estimated numbers of blocks and bytes.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a standard error has no use for more than 53 bits")]
    pub const fn variances(self, size: u64) -> (f64, f64) {
        if let Self::Announced = self {
            return Sampled(size).variances();
        }
        let (weight, size) = (self.weight(size) as f64 / WEIGHT_ONE as f64, size as f64);
        // A block's contribution to the variance of a Horvitz-Thompson estimate.
        let objects = weight * (weight - 1.);
        (objects, objects * size * size)
    }
}

/// Number of random numbers that select one in `rate`.
#[inline(always)]
#[must_use]
pub const fn draws_of_rate(rate: u32) -> u64 {
    DRAWS / if rate == 0 { 1 } else { rate as u64 }
}

/// Size from which on every block is selected.
#[inline(always)]
#[must_use]
pub const fn certain_from(bytes: u64) -> u64 {
    bytes * CERTAIN
}

/// log2(e) / `bytes`, with 48 fractional bits: the contribution of each byte of a block to the negative
/// binary logarithm of the probability that it is skipped. Computed by the user side, since BPF divides
/// slowly.
#[must_use]
pub const fn scale_of(bytes: u64) -> u64 {
    let bytes = if bytes == 0 { 1 } else { bytes };
    (LOG2_E << 16).div_ceil(bytes)
}

/// Number of random numbers that select a block of `size` bytes: 2^32 (1 - 2^-(size * scale)). Never 0, so
/// that every block has a weight.
#[inline(always)]
#[must_use]
pub const fn draws_of_bytes(scale: u64, certain_from: u64, size: u64) -> u64 {
    if size >= certain_from {
        return DRAWS;
    }
    // Below 47 with 48 fractional bits, since size < 32 sampling intervals.
    let exponent = size.wrapping_mul(scale) >> 16;
    let whole = exponent >> 32;
    let left = (DRAWS - one_minus_exp2(exponent & (DRAWS - 1))) >> (whole & 63);
    let taken = DRAWS - left;
    if taken == 0 { 1 } else { taken }
}

/// 2^32 (1 - 2^-f) for f = `fraction` / 2^32: the series of the exponential function, with its last
/// coefficient chosen to reach one half at 1. Off by 0.04 % at most, which affects the selection but not the
/// estimate.
#[inline(always)]
const fn one_minus_exp2(fraction: u64) -> u64 {
    const C1: u64 = 2_977_044_472;
    const C2: u64 = 1_031_764_991;
    const C3: u64 = 238_388_332;
    const C4: u64 = 36_184_165;
    let sum = C3 - ((C4 * fraction) >> 32);
    let sum = C2 - ((sum * fraction) >> 32);
    let sum = C1 - ((sum * fraction) >> 32);
    (sum * fraction) >> 32
}

/// The weight of a block that `draws` of 2^32 random numbers select, rounded.
#[inline(always)]
#[must_use]
pub const fn weight_of(draws: u64) -> u64 {
    // `draws` is never 0, but the kernel would reject a division that can panic.
    match ((DRAWS << WEIGHT_BITS) + draws / 2).checked_div(draws) {
        Some(weight) => weight,
        None => WEIGHT_ONE,
    }
}

/// `amount`, weighted.
#[inline(always)]
#[must_use]
pub const fn weighted(amount: u64, weight: u64) -> u64 {
    // Separate parts, since the product would overflow for a large block.
    (amount >> WEIGHT_BITS).wrapping_mul(weight)
        + ((amount & (WEIGHT_ONE - 1)).wrapping_mul(weight) >> WEIGHT_BITS)
}

#[cfg(test)]
#[expect(clippy::cast_precision_loss, reason = "statistics")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A pair of bytes and objects.
    #[derive(Debug, Default, Clone, Copy)]
    struct Pair {
        bytes: f64,
        objects: f64,
    }

    impl Pair {
        fn add(&mut self, size: u64, bytes_factor: f64, factor: f64) {
            self.bytes += bytes_factor * size as f64;
            self.objects += factor;
        }
    }

    /// Samples a stream of blocks: the estimated sums and their estimated variances.
    fn estimate(sampling: Sampling, sizes: &[u64], seed: u64) -> (Pair, Pair) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut sums, mut variances) = (Pair::default(), Pair::default());
        for &size in sizes {
            if u64::from(random.u32(..)) < sampling.draws(size) {
                let weight = sampling.weight(size) as f64 / WEIGHT_ONE as f64;
                let spread = weight * (weight - 1.);
                sums.add(size, weight, weight);
                variances.add(size, spread * size as f64, spread);
            }
        }
        (sums, variances)
    }

    /// Asserts that estimates and their estimated variances are right on average over many runs.
    fn assert_unbiased(sampling: Sampling) {
        const RUNS: u64 = 1_000;
        // A program that repeatedly allocates the same sizes.
        let sizes: Vec<_> =
            [16, 24, 100, 400, 3_000, 40_000, 500_000].into_iter().cycle().take(7_000).collect();
        let (mut truth, mut true_variance) = (Pair::default(), Pair::default());
        for &size in &sizes {
            let odds = DRAWS as f64 / sampling.draws(size) as f64 - 1.;
            truth.add(size, 1., 1.);
            true_variance.add(size, odds * size as f64, odds);
        }
        let (mut mean, mut variance) = (Pair::default(), Pair::default());
        for seed in 0..RUNS {
            let (sums, variances) = estimate(sampling, &sizes, seed);
            for (total, one) in [(&mut mean, sums), (&mut variance, variances)] {
                total.bytes += one.bytes / RUNS as f64;
                total.objects += one.objects / RUNS as f64;
            }
        }
        for (mean, truth, variance, true_variance) in [
            (mean.bytes, truth.bytes, variance.bytes, true_variance.bytes),
            (mean.objects, truth.objects, variance.objects, true_variance.objects),
        ] {
            let off = (mean - truth) / (true_variance / RUNS as f64).sqrt();
            assert!(off.abs() < 4., "{sampling:?}: {mean}, not {truth}: off by {off} standard errors");
            let ratio = variance / true_variance;
            assert!(
                (0.95..1.05).contains(&ratio),
                "{sampling:?}: variances are {ratio} of what they should be"
            );
        }
    }

    #[test]
    fn one_in_so_many_is_right_on_average_and_its_error_is_true() {
        assert_unbiased(Sampling::Rate(2));
        assert_unbiased(Sampling::Rate(10));
    }

    #[test]
    fn sampling_by_bytes_is_right_on_average_and_its_error_is_true() {
        assert_unbiased(Sampling::Bytes(1_000));
        assert_unbiased(Sampling::Bytes(50_000));
    }

    #[test]
    fn probabilities_are_those_of_points_strewn_over_the_bytes() {
        for bytes in [1, 100, 4_096, 524_288, MAX_BYTES] {
            for part in 1..400u64 {
                let size = (bytes / 16).max(1) * part;
                let exact = -(-(size as f64 / bytes as f64)).exp_m1();
                let drawn = Sampling::Bytes(bytes).draws(size) as f64 / DRAWS as f64;
                assert!((drawn / exact - 1.).abs() < 5e-4, "{size} of {bytes}: {drawn}, not {exact}");
            }
        }
    }

    #[test]
    fn without_sampling_everything_is_taken_and_stands_for_itself() {
        assert_eq!((Sampling::Off.draws(7), Sampling::Off.weight(7)), (DRAWS, WEIGHT_ONE));
        assert_eq!((Sampling::Rate(1).draws(7), Sampling::Rate(1).weight(7)), (DRAWS, WEIGHT_ONE));
        assert_eq!(weighted(12_345, WEIGHT_ONE), 12_345);
    }

    proptest! {
        #[test]
        fn a_weight_is_the_inverse_of_its_probability(bytes in 1..=MAX_BYTES, size in 0..1u64 << 47) {
            let sampling = Sampling::Bytes(bytes);
            let (draws, weight) = (sampling.draws(size), sampling.weight(size));
            prop_assert!((1..=DRAWS).contains(&draws));
            let product = draws as f64 / DRAWS as f64 * (weight as f64 / WEIGHT_ONE as f64);
            prop_assert!((product - 1.).abs() < 2e-5, "{}", product);
        }

        #[test]
        fn weighting_is_multiplication(amount in 0..1u64 << 47, rate in 1..1u32 << 16) {
            prop_assert!(weighted(amount, u64::from(rate) << WEIGHT_BITS) == amount * u64::from(rate));
        }
    }
}
