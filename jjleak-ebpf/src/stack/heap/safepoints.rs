//! Whether anything has been done in a safepoint while a walk reads the Java heap.
//!
//! A safepoint is counted and announced, then threads are stopped, except for those in native code, then comes what it is for. In the end
//! it is announced to be over, and counted again (`src/hotspot/share/runtime/safepoint.cpp` in the JDK). So nothing has been done in any
//! if none has been counted, or if the first one is still coming when the walk has read everything.

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
    // In this order: while it is coming, it is not over, and counted once.
    let Some(state) = read_user::<u32>(known.safepoint) else { return false };
    let Some(now) = count(known) else { return false };
    (now | 1 == before | 1) & ((now & 1 == 0) | (state == safepoint::COMING))
}
