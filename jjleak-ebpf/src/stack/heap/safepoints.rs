//! Whether anything has been done in a safepoint while a walk reads the Java heap: see [`safepoint`].

use jjleak_common::jvm::{Continuations, safepoint};

use crate::memory::read_user;

/// How often safepoints have begun and ended; `None` when that cannot be read.
#[inline(always)]
pub(super) fn count(known: &Continuations) -> Option<u64> {
    read_user(known.safepoints)
}

/// Whether nothing has been done in a safepoint since there were so many.
#[inline(always)]
pub(super) fn are_still(known: &Continuations, before: u64) -> bool {
    // In this order, as the rule wants it.
    let Some(state) = read_user(known.safepoint) else { return false };
    let Some(now) = count(known) else { return false };
    safepoint::are_still(before, state, now)
}
