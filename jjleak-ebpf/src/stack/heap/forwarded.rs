//! Objects that a collector moves while threads run, each of which leads to its copy from then on: Shenandoah's.
//!
//! A reference leads to where an object is, or to where it was before the last time that objects were moved. What was there stays until
//! all references to it have been changed, on stacks as well as in objects, and that is ended by a safepoint: as long as there is none,
//! each reference leads to the object. Its copy is complete before anything leads there, and of a virtual thread that runs, nobody but
//! itself changes where frames are, or their callers.

use jjleak_common::{
    jvm::{Continuations, barrier, forwarded},
    stack::StackStatus,
};

use crate::memory::read_user_word;

/// Where the object is that is, or was, here.
#[inline(always)]
pub(super) fn current(known: &Continuations, object: u64) -> Result<u64, StackStatus> {
    if known.barrier != barrier::FORWARDED || object == 0 {
        return Ok(object);
    }
    let mark = read_user_word(object).ok_or(StackStatus::InHeap)?;
    Ok(forwarded(mark).unwrap_or(object))
}
