//! Stages of the accounting: all run, except in the benchmark, which measures each stage.

use jjleak_common::stage::Stage;

use crate::constants::setting;

/// Returns true if nothing runs after this stage.
#[inline(always)]
pub(crate) fn end_with(stage: Stage) -> bool {
    setting!(last_stage) == stage as u32
}
