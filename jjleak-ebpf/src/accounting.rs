//! Rules of the accounting: what an entry and a free do.

use aya_log_ebpf::debug;
use jjleak_common::{
    cookie::ResultIn,
    counter::Counter,
    pending::{Nesting, Pending, flag},
    process::{ImageId, ProcessRow, ProcessSlot},
};

use crate::{
    armed::Armed,
    live,
    maps::{CALLS, count_many, filters_out},
    memory::opaque,
    registers::Hit,
    sampling,
    stack::{self, CallStack, Captured},
    trace,
};

/// Returns true if a system call with this stack pointer, made by a function that returns to `caller`, is part of one of the
/// thread's allocation calls in progress. Does not change records: a stale one stays, and the next allocation call detects it.
#[inline(always)]
pub(crate) fn is_part_of_allocation(
    image: ImageId,
    row: *const ProcessRow,
    stack_pointer: u64,
    caller: u64,
) -> bool {
    let Some(calls) = CALLS.get() else { return false };
    // SAFETY: task storage belongs to the current task, which is executing this system call, so there is no concurrent access.
    let calls = unsafe { &*calls };
    let armed = Armed { image, row };
    armed.makes(&calls.current, stack_pointer, caller) || armed.makes(&calls.outer, stack_pointer, caller)
}

/// Entry of a function that returns a new block.
#[inline(always)]
pub(crate) fn enter_allocate(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let pointee = if hit.cookie.signature.result == ResultIn::Pointee { flag::POINTEE } else { 0 };
    if let Some(pending) = enter(&armed, hit) {
        begin(&armed, hit, pending, pointee);
    }
}

/// Captures only a stack.
#[cfg(feature = "measuring")]
#[inline(always)]
pub(crate) fn take_stack(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    stack::capture(armed.image, armed.row, hit);
}

/// Entry of a function that resizes a block. The block stays in the table, marked, until the outcome is known, because the
/// allocator may reuse its address meanwhile.
#[inline(always)]
pub(crate) fn enter_resize(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let Some(pending) = enter(&armed, hit) else { return };
    let signature = &hit.cookie.signature;
    let mut flags = flag::RESIZE;
    if signature.zero_frees {
        flags |= flag::ZERO_FREES;
    }
    let pointer = hit.arg(signature.pointer);
    if pointer != 0 {
        if let Some(old) = live::suspend(armed.key(pointer)) {
            pending.old = old;
            flags |= flag::HAS_OLD;
        }
    }
    begin(&armed, hit, pending, flags);
}

/// Entry of a function that resizes a block in place.
#[inline(always)]
pub(crate) fn enter_resize_in_place(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let Some(pending) = enter(&armed, hit) else { return };
    let mut flags = flag::RESIZE | flag::IN_PLACE;
    if let Some(old) = live::suspend(armed.key(hit.arg(hit.cookie.signature.pointer))) {
        pending.old = old;
        flags |= flag::HAS_OLD;
    }
    pending.extra = hit.arg(hit.cookie.signature.extra);
    begin(&armed, hit, pending, flags);
}

/// Record to use for this call, if the call counts.
#[inline(always)]
pub(crate) fn enter<'a>(armed: &Armed, hit: &Hit) -> Option<&'a mut Pending> {
    let Some(calls) = CALLS.get_or_create() else {
        armed.count(Counter::PendingFull);
        return None;
    };
    // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    calls.freed_by_library = 0;
    if is_nested(armed, hit, &mut calls.outer) {
        return None;
    }
    match armed.nesting(&calls.current, hit.cfa()) {
        Nesting::Outermost => {}
        Nesting::Nested => {
            calls.current.nested += 1;
            return None;
        }
        Nesting::CalledBack => {
            if calls.outer.has(flag::RUNNING) {
                // A new handler within a new handler: only one of them is kept.
                armed.count(Counter::StalePending);
            }
            calls.outer = calls.current;
        }
        Nesting::Stale => drop_stale(armed, hit, &mut calls.current),
    }
    Some(&mut calls.current)
}

/// Returns true if a call is nested in the outer call, which has called back into the program; only the outer call counts.
#[inline(always)]
pub(crate) fn is_nested(armed: &Armed, hit: &Hit, outer: &mut Pending) -> bool {
    match armed.nesting(outer, hit.cfa()) {
        Nesting::Outermost | Nesting::CalledBack => false,
        Nesting::Nested => {
            outer.nested += 1;
            true
        }
        Nesting::Stale => {
            drop_stale(armed, hit, outer);
            false
        }
    }
}

/// Records the call. Returns its return address, or 0 if that was not read.
#[inline(always)]
pub(crate) fn begin(armed: &Armed, hit: &Hit, pending: &mut Pending, flags: u8) -> u64 {
    let size = requested_size(hit);
    let left_out = left_out(size);
    pending.cfa = hit.cfa();
    pending.image = armed.image.0 as u64;
    pending.size = size;
    pending.pointer = hit.arg(hit.cookie.signature.pointer);
    pending.return_address = 0;
    pending.nested = 0;
    let CallStack { stack, return_address } = if left_out != 0 {
        CallStack { stack: Captured::lost(armed.image.slot()), return_address: 0 }
    } else {
        stack::capture(armed.image, armed.row, hit)
    };
    pending.stack = stack.row;
    pending.hash = stack.hash;
    pending.flags = flags | left_out | flag::RUNNING;
    return_address
}

/// The flag for the reason why a block of this size is not accounted for; 0 if it is.
#[inline(always)]
pub(crate) fn left_out(size: u64) -> u8 {
    if filters_out(size) {
        flag::FILTERED
    } else if sampling::leaves_out(size) {
        flag::UNSAMPLED
    } else {
        0
    }
}

/// The requested size; `u64::MAX` if the product overflows, which the allocator rejects.
#[inline(always)]
fn requested_size(hit: &Hit) -> u64 {
    if let Some(inside) = hit.cookie.inside {
        return hit.register(inside.size);
    }
    let signature = &hit.cookie.signature;
    let size = hit.arg(signature.size);
    if signature.count.is_none() {
        return size;
    }
    // The barrier keeps LLVM from turning the check into a 128-bit multiplication, which BPF lacks.
    let count = hit.arg(signature.count);
    if count != 0 && size > opaque(u64::MAX) / count { u64::MAX } else { size.wrapping_mul(count) }
}

/// Drops an allocation call that will never return. The block that it was resizing is assumed unchanged.
#[inline(always)]
pub(crate) fn drop_stale(armed: &Armed, hit: &Hit, pending: &mut Pending) {
    armed.count(if pending.ends_at_exits() { Counter::Thrown } else { Counter::StalePending });
    count_many(armed.image.slot(), Counter::MutedCall, pending.nested as u64);
    debug!(hit, "an allocation call at stack pointer {:x} never returned", pending.cfa);
    if pending.has(flag::HAS_OLD) && pending.image == armed.image.0 as u64 {
        armed.restore(pending);
    }
    pending.flags = 0;
}

/// A block is about to be freed. It is removed from the table now, before the allocator can reuse its address.
#[inline(always)]
pub(crate) fn free(hit: &Hit) {
    let block = hit.arg(hit.cookie.signature.pointer);
    if block == 0 {
        return;
    }
    let Some(armed) = Armed::of(hit) else { return };
    if let Some(record) = live::remove(armed.key(block)) {
        trace::freed(armed.image.slot(), block, record.size);
    } else if !sampling::is_on() {
        free_absent(&armed, hit, block);
    }
    if hit.cookie.signature.passes_on() {
        note_passed_on(block);
    }
}

/// Records that another allocator may free the same block on behalf of this one.
#[inline(always)]
fn note_passed_on(block: u64) {
    // Without memory for the record, the second free counts as one of an unknown block.
    let Some(calls) = CALLS.get_or_create() else { return };
    // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
    unsafe { (*calls).passed_on = block };
}

/// Counts a call that allocates or frees in a way that is not traced.
#[inline(always)]
pub(crate) fn count_unseen(hit: &Hit, counter: Counter) {
    if let Some(armed) = Armed::of(hit) {
        armed.count(counter);
    }
}

/// A block that is not in the table is about to be freed.
#[inline(always)]
fn free_absent(armed: &Armed, hit: &Hit, block: u64) {
    if let Some(calls) = CALLS.get() {
        // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
        let calls = unsafe { &mut *calls };
        if calls.passed_on == block && !hit.cookie.signature.passes_on() {
            calls.passed_on = 0;
            return;
        }
        // Freed by an allocation call in progress; the block is internal to the allocator.
        let cfa = hit.cfa();
        if armed.nesting(&calls.current, cfa) == Nesting::Nested
            || armed.nesting(&calls.outer, cfa) == Nesting::Nested
        {
            return;
        }
    }
    note_freed_by_library(armed.is_freed_by_allocator(hit.cfa()));
    armed.count_unknown_free();
}

/// An unknown block was freed, by the C library or by the program. The library frees its data of a thread last, when the thread
/// ends; only then can these blocks be distinguished from blocks that the library frees on behalf of the program, as in `fclose`.
#[inline(always)]
fn note_freed_by_library(is_by_library: bool) {
    let calls = if is_by_library { CALLS.get_or_create() } else { CALLS.get() };
    // Without memory for the record, the block counts as the program's.
    let Some(calls) = calls else { return };
    // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    calls.freed_by_library = if is_by_library { calls.freed_by_library + 1 } else { 0 };
}

/// The current thread ends: blocks freed by the C library since its last allocation were the library's data of the thread.
#[inline(always)]
pub(crate) fn end_thread(slot: ProcessSlot) {
    let Some(calls) = CALLS.get() else { return };
    // SAFETY: task storage belongs to the current task, which is executing this hook, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    if calls.freed_by_library > 0 {
        count_many(slot, Counter::FreedByCLibrary, calls.freed_by_library);
        calls.freed_by_library = 0;
    }
}
