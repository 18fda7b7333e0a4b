//! Sampling of allocations, by the rule in `jjleak_common::sampling`.

use aya_ebpf::helpers::generated::bpf_get_prandom_u32;
use jjleak_common::{
    samples::{MAX_PRODUCERS, Sampled},
    sampling::{WEIGHT_ONE, draws_of_bytes, weight_of},
};

use crate::constants::setting;

/// Returns true if allocations are sampled.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    setting!(sample_draws) != 0 || setting!(sample_scale) != 0 || are_announced()
}

/// Returns true if programs draw the samples: the sizes of live blocks are [`Sampled`].
#[inline(always)]
fn are_announced() -> bool {
    setting!(announced) != 0
}

/// Size in bytes of a block, from that in its record.
#[inline(always)]
pub(crate) fn bytes(size: u64) -> u64 {
    if are_announced() { Sampled(size).size() } else { size }
}

/// Address of a block, from that in its key.
#[inline(always)]
pub(crate) fn address(block: u64) -> u64 {
    if are_announced() { block & !(MAX_PRODUCERS - 1) } else { block }
}

/// Decides at random if an allocation of this size is left out.
#[inline(always)]
pub(crate) fn leaves_out(size: u64) -> bool {
    is_on() && misses(draws(size))
}

/// Number of blocks that a sampled block with this size in its record represents.
#[inline(always)]
pub(crate) fn weight(size: u64) -> u64 {
    if are_announced() {
        Sampled(size).weight()
    } else if is_on() {
        weight_of(draws(size))
    } else {
        WEIGHT_ONE
    }
}

/// Weight of an object that this many random numbers select; 0 if it is left out.
#[inline(always)]
pub(crate) fn weight_unless_left_out(draws: u64) -> u64 {
    if misses(draws) { 0 } else { weight_of(draws) }
}

/// Draws a random number, and returns true if it is not among this many.
#[inline(always)]
fn misses(draws: u64) -> bool {
    // SAFETY: has no preconditions.
    let number = unsafe { bpf_get_prandom_u32() };
    number as u32 as u64 >= draws
}

/// Number of random numbers that select an allocation of this size while allocations are sampled.
#[inline(always)]
pub(crate) fn draws(size: u64) -> u64 {
    if setting!(sample_scale) != 0 {
        draws_of_bytes(setting!(sample_scale), setting!(sample_certain_from), size)
    } else {
        setting!(sample_draws)
    }
}
