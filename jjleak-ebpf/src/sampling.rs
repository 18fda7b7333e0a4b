//! Sampling of allocations, by the rule in `jjleak_common::sampling`.

use aya_ebpf::{Global, helpers::generated::bpf_get_prandom_u32};
use jjleak_common::sampling::{WEIGHT_ONE, draws_of_bytes, weight_of};

#[unsafe(no_mangle)]
static SAMPLE_DRAWS: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static SAMPLE_SCALE: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static SAMPLE_CERTAIN_FROM: Global<u64> = Global::new(0);

/// Returns true if allocations are sampled.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    SAMPLE_DRAWS.load() != 0 || SAMPLE_SCALE.load() != 0
}

/// Decides at random if an allocation of this size is left out.
#[inline(always)]
pub(crate) fn leaves_out(size: u64) -> bool {
    // SAFETY: has no preconditions.
    is_on() && unsafe { bpf_get_prandom_u32() } as u32 as u64 >= draws(size)
}

/// Number of blocks that a sampled block of this size represents.
#[inline(always)]
pub(crate) fn weight(size: u64) -> u64 {
    if is_on() { weight_of(draws(size)) } else { WEIGHT_ONE }
}

#[inline(always)]
fn draws(size: u64) -> u64 {
    if SAMPLE_SCALE.load() != 0 {
        draws_of_bytes(SAMPLE_SCALE.load(), SAMPLE_CERTAIN_FROM.load(), size)
    } else {
        SAMPLE_DRAWS.load()
    }
}
