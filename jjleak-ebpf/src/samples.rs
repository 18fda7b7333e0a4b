//! Allocations that a program samples itself and announces at probes.

use jjleak_common::{
    counter::Counter,
    samples::{Argument, MAX_PRODUCERS, NO_REGISTER, Sampled, Site},
};

use crate::{
    armed::Armed,
    live,
    maps::SAMPLE_SITES,
    memory::{USER_SPACE_END, read_user_word},
    outcome,
    registers::{Hit, Registers},
    sampling, stack, trace,
};

/// A sampled allocation.
#[inline(always)]
pub(crate) fn allocated(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let Some((block, sampled)) = announced(hit) else {
        armed.count(Counter::SampleRefused);
        return;
    };
    let at = Registers {
        instruction_pointer: hit.instruction_pointer(),
        stack_pointer: hit.stack_pointer(),
        frame_pointer: hit.frame_pointer(),
    };
    let stack = stack::capture_at(armed.image, armed.row, &at).row;
    outcome::add_block(&armed, 0, || stack, block, sampled.0);
}

/// A sampled block is about to be freed. Those that were sampled before the probes were attached are unknown.
#[inline(always)]
pub(crate) fn freed(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let Some(block) = site(hit).and_then(|site| block(hit, site)) else {
        armed.count(Counter::SampleRefused);
        return;
    };
    if let Some(record) = live::remove(armed.key(block)) {
        trace::freed(armed.image.slot(), sampling::address(block), Sampled(record.size).size());
    }
}

#[inline(always)]
fn announced(hit: &Hit) -> Option<(u64, Sampled)> {
    let site = site(hit)?;
    let block = block(hit, site)?;
    let (size, weighted_bytes) = (argument(hit, &site.size)?, argument(hit, &site.weighted_bytes)?);
    let sampled = Sampled::new(size, weighted_bytes, site.counts_points != 0)?;
    Some((block, sampled))
}

/// Address of the block, with the number of the producer in the bits that alignment leaves.
#[inline(always)]
fn block(hit: &Hit, site: &Site) -> Option<u64> {
    let address = argument(hit, &site.pointer)?;
    if address == 0 || address >= USER_SPACE_END {
        return None;
    }
    Some(address & !(MAX_PRODUCERS - 1) | site.producer)
}

#[inline(always)]
fn site(hit: &Hit) -> Option<&'static Site> {
    // SAFETY: points into a map value.
    SAMPLE_SITES.get_ptr(hit.cookie.sample_site() as u32).map(|site| unsafe { &*site })
}

/// An argument; `None` if its memory is not resident.
#[inline(always)]
fn argument(hit: &Hit, argument: &Argument) -> Option<u64> {
    let Argument { value, register, index, scale, in_memory, bytes, is_signed } = *argument;
    let mut raw = value as u64;
    if register != NO_REGISTER {
        raw = raw.wrapping_add(hit.register_at(register)?);
    }
    if index != NO_REGISTER {
        raw = raw.wrapping_add(hit.register_at(index)?.wrapping_mul(scale as u64));
    }
    let raw = if in_memory != 0 { read_user_word(raw)? } else { raw };
    Some(Argument::extended(bytes, is_signed != 0, raw))
}
