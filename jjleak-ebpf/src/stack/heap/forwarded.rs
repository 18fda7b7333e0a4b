//! Forwarded objects of Shenandoah, which moves objects while threads run; each old copy leads to the new one.
//!
//! A reference leads to the object, or to its location before the last move. The old copy stays until all references to it have
//! been updated, on stacks and in objects, and a safepoint ends that phase: without a safepoint in between, each reference leads
//! to the object. A copy is complete before anything refers to it. Only a running virtual thread itself changes the location of
//! its frames or their callers.

use jjleak_common::{
    jvm::{Continuations, barrier, forwarded},
    stack::StackStatus,
};

use crate::memory::read_user_word;

/// Current address of the object that is or was here.
#[inline(always)]
pub(super) fn current(known: &Continuations, object: u64) -> Result<u64, StackStatus> {
    if known.barrier != barrier::FORWARDED || object == 0 {
        return Ok(object);
    }
    let mark = read_user_word(object).ok_or(StackStatus::InHeap)?;
    Ok(forwarded(mark).unwrap_or(object))
}
