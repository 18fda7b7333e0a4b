//! References between objects in the Java heap, for all collectors.

use jjleak_common::{
    jvm::{Continuations, barrier},
    stack::StackStatus,
};

use super::{super::Claimed, coloured, forwarded, with};
use crate::memory::read_user_word;

/// Innermost chunk of the continuation with the assumed entry.
#[inline(always)]
pub(super) fn first_chunk(scratch: Claimed) -> Result<u64, StackStatus> {
    let walk = scratch.walk();
    let slot = walk.image.slot().0;
    let word = read_user_word(walk.heap.entry.wrapping_add(Continuations::CONTINUATION_AT));
    let word = word.ok_or(StackStatus::InHeap)?;
    let (is_coloured, place) = with(slot, |known| (known.barrier == barrier::COLOURED, known.tail))?;
    let continuation = if is_coloured {
        referred(scratch, word)?
    } else {
        with(slot, |known| forwarded::current(known, word))??
    };
    reference(scratch, continuation, place)
}

/// The object referenced by another one; an error if it is unknown, or `object` is not an object.
#[inline(always)]
pub(super) fn reference(scratch: Claimed, object: u64, place: u32) -> Result<u64, StackStatus> {
    let word = read_user_word(object.wrapping_add((place as u64) << 2)).ok_or(StackStatus::InHeap)?;
    referred(scratch, word)
}

/// The address that a word with a reference refers to; 0 for null.
#[inline(always)]
fn referred(scratch: Claimed, word: u64) -> Result<u64, StackStatus> {
    let walk = scratch.walk();
    with(walk.image.slot().0, |known| {
        if coloured::are_coloured(known) {
            walk.heap.phase.colours.referred(known, word).ok_or(StackStatus::InHeap)
        } else {
            forwarded::current(known, known.referred(word))
        }
    })?
}
