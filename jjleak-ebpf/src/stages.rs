//! Stages of the accounting: all run, except in the benchmark, which measures each stage.

use jjleak_common::stage::Stage;

/// Returns true if nothing runs after this stage.
#[cfg(feature = "measuring")]
#[inline(always)]
pub(crate) fn end_with(stage: Stage) -> bool {
    use crate::constants::{load, measurement};

    load(&measurement().last_stage) == stage as u32
}

/// Returns false: all stages run.
#[cfg(not(feature = "measuring"))]
#[inline(always)]
pub(crate) const fn end_with(_stage: Stage) -> bool {
    false
}
