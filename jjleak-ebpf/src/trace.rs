//! Reports of individual allocations and frees, if requested.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, generated::bpf_ktime_get_ns};
use jjleak_common::{
    counter::Counter,
    process::ProcessSlot,
    trace::{ALLOCATED, Event, FREED},
};

use crate::constants::setting;
use crate::maps::{EVENTS, count};

/// Returns true if reports are requested.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    setting!(trace) != 0
}

/// A block was allocated.
#[inline(always)]
pub(crate) fn allocated(slot: ProcessSlot, address: u64, size: u64) {
    report(slot, address, size, ALLOCATED);
}

/// A block is being freed.
#[inline(always)]
pub(crate) fn freed(slot: ProcessSlot, address: u64, size: u64) {
    report(slot, address, size, FREED);
}

#[inline(always)]
fn report(slot: ProcessSlot, address: u64, size: u64, kind: u32) {
    if !is_on() {
        return;
    }
    // SAFETY: has no preconditions.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    let event = Event { time_ns, address, size, thread: bpf_get_current_pid_tgid() as u32, kind };
    if EVENTS.output::<Event>(event, 0).is_err() {
        count(slot, Counter::TraceLost);
    }
}
