//! Stages of the accounting: all run, except in the benchmark, which measures each stage.

use aya_ebpf::Global;
use jjleak_common::stage::Stage;

/// Constant for the verifier, which removes skipped code and the check itself.
#[unsafe(no_mangle)]
static LAST_STAGE: Global<u32> = Global::new(Stage::All as u32);

/// Returns true if nothing runs after this stage.
#[inline(always)]
pub(crate) fn end_with(stage: Stage) -> bool {
    LAST_STAGE.load() == stage as u32
}
