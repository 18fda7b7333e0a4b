//! Detection of safepoints during a walk in the Java heap: see [`safepoint`].

use jjleak_common::jvm::{Continuations, safepoint};

use crate::memory::read_user;

/// Number of safepoints begun and ended; `None` if it cannot be read.
#[inline(always)]
pub(super) fn count(known: &Continuations) -> Option<u64> {
    read_user(known.safepoints)
}

/// Returns true if nothing has been done in a safepoint since the counter was `before`.
#[inline(always)]
pub(super) fn are_still(known: &Continuations, before: u64) -> bool {
    // The rule requires this order.
    let Some(state) = read_user(known.safepoint) else { return false };
    let Some(now) = count(known) else { return false };
    safepoint::are_still(before, state, now)
}
