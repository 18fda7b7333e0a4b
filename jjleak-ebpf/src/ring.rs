//! Ring buffers that the user side polls.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    maps::RingBuf,
};

/// Flags for another record in a ring buffer of this size. The user side is woken when a quarter of the buffer waits, or at once if the record
/// `is_urgent`. Waking it for each record would cost the target several times as much as the record.
#[inline(always)]
pub(crate) fn wakeup(ring: &RingBuf, bytes: u32, is_urgent: bool) -> u64 {
    let is_urgent = is_urgent || ring.query(BPF_RB_AVAIL_DATA as u64) > (bytes >> 2) as u64;
    (if is_urgent { BPF_RB_FORCE_WAKEUP } else { BPF_RB_NO_WAKEUP }) as u64
}
