//! The rules of the books: what an entry and a free do.

use aya_log_ebpf::debug;
use jjleak_common::{
    cookie::ResultIn,
    counter::Counter,
    pending::{Nesting, Pending, flag},
    process::{ImageId, ProcessRow, ProcessSlot},
    stack::lost_row,
};

use crate::{
    books::Books,
    live,
    maps::{CALLS, count_many, filters_out},
    memory::opaque,
    outcome::restore,
    registers::Hit,
    sampling, stack, trace,
};

/// Whether a system call with this stack pointer, made by a function that returns to `caller`, is part of one of the
/// thread's allocation calls in progress. Only judges: a record that it takes for stale stays, since the next allocation
/// call shows it anyway.
#[inline(always)]
pub(crate) fn is_part_of_allocation(
    image: ImageId,
    row: *const ProcessRow,
    stack_pointer: u64,
    caller: u64,
) -> bool {
    let Some(calls) = CALLS.get() else { return false };
    // SAFETY: task storage belongs to the current task, which is busy with this very call.
    let calls = unsafe { &*calls };
    let books = Books { slot: image.slot(), image, row };
    books.makes(&calls.current, stack_pointer, caller) || books.makes(&calls.outer, stack_pointer, caller)
}

/// A function that gives a new block was called.
#[inline(always)]
pub(crate) fn enter_allocate(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let pointee = if hit.cookie.signature.result == ResultIn::Pointee { flag::POINTEE } else { 0 };
    if let Some(pending) = enter(&books, hit) {
        begin(&books, hit, pending, pointee);
    }
}

/// A stack is all that is wanted.
#[inline(always)]
pub(crate) fn take_stack(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    stack::capture(books.image, books.row, hit);
}

/// A function that turns a block into another one was called. The block stays in the table until the outcome is known,
/// marked, for the allocator can give its address to somebody else in the meantime.
#[inline(always)]
pub(crate) fn enter_resize(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let Some(pending) = enter(&books, hit) else { return };
    let signature = &hit.cookie.signature;
    let mut flags = flag::RESIZE;
    if signature.zero_frees {
        flags |= flag::ZERO_FREES;
    }
    let pointer = hit.arg(signature.pointer);
    if pointer != 0 {
        if let Some(old) = live::suspend(books.key(pointer)) {
            pending.old = old;
            flags |= flag::HAS_OLD;
        }
    }
    begin(&books, hit, pending, flags);
}

/// A function that resizes a block where it is was called.
#[inline(always)]
pub(crate) fn enter_resize_in_place(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let Some(pending) = enter(&books, hit) else { return };
    let mut flags = flag::RESIZE | flag::IN_PLACE;
    if let Some(old) = live::suspend(books.key(hit.arg(hit.cookie.signature.pointer))) {
        pending.old = old;
        flags |= flag::HAS_OLD;
    }
    pending.extra = hit.arg(hit.cookie.signature.extra);
    begin(&books, hit, pending, flags);
}

/// Where to note this call, when it is one that counts.
#[inline(always)]
pub(crate) fn enter<'a>(books: &Books, hit: &Hit) -> Option<&'a mut Pending> {
    let Some(calls) = CALLS.get_or_create() else {
        books.count(Counter::PendingFull);
        return None;
    };
    // SAFETY: task storage belongs to the current task, which is busy with this very probe.
    let calls = unsafe { &mut *calls };
    calls.freed_by_library = 0;
    if is_nested(books, hit, &mut calls.outer) {
        return None;
    }
    match books.nesting(&calls.current, hit.cfa()) {
        Nesting::Outermost => {}
        Nesting::Nested => {
            calls.current.nested += 1;
            return None;
        }
        Nesting::CalledBack => {
            if calls.outer.has(flag::RUNNING) {
                // A new handler within a new handler: only one of them is kept.
                books.count(Counter::StalePending);
            }
            calls.outer = calls.current;
        }
        Nesting::Stale => drop_stale(books, hit, &mut calls.current),
    }
    Some(&mut calls.current)
}

/// Whether a call is made by the one that has called the program back, and only that one counts.
#[inline(always)]
pub(crate) fn is_nested(books: &Books, hit: &Hit, outer: &mut Pending) -> bool {
    match books.nesting(outer, hit.cfa()) {
        Nesting::Outermost | Nesting::CalledBack => false,
        Nesting::Nested => {
            outer.nested += 1;
            true
        }
        Nesting::Stale => {
            drop_stale(books, hit, outer);
            false
        }
    }
}

/// Notes the call.
#[inline(always)]
pub(crate) fn begin(books: &Books, hit: &Hit, pending: &mut Pending, flags: u8) {
    let size = requested_size(hit);
    let left_out = left_out(size);
    pending.cfa = hit.cfa();
    pending.image = books.image.0 as u64;
    pending.size = size;
    pending.pointer = hit.arg(hit.cookie.signature.pointer);
    pending.return_address = 0;
    pending.nested = 0;
    pending.stack =
        if left_out != 0 { lost_row(books.slot) } else { stack::capture(books.image, books.row, hit) };
    pending.flags = flags | left_out | flag::RUNNING;
}

/// Why a block of this size is not booked, as a flag; 0 when it is.
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

/// The size the caller asked for; `u64::MAX` when the product overflows, which the allocator refuses.
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

/// An allocation call will never return. What it was resizing is as it was, for all we know.
#[inline(always)]
pub(crate) fn drop_stale(books: &Books, hit: &Hit, pending: &mut Pending) {
    books.count(if pending.ends_at_exits() { Counter::Thrown } else { Counter::StalePending });
    count_many(books.slot, Counter::MutedCall, pending.nested as u64);
    debug!(hit, "an allocation call at stack pointer {:x} never returned", pending.cfa);
    if pending.has(flag::HAS_OLD) && pending.image == books.image.0 as u64 {
        restore(books, pending);
    }
    pending.flags = 0;
}

/// A block is about to be freed: it leaves the table now, before the allocator can give its address to
/// somebody else.
#[inline(always)]
pub(crate) fn free(hit: &Hit) {
    let block = hit.arg(hit.cookie.signature.pointer);
    if block == 0 {
        return;
    }
    let Some(books) = Books::of(hit) else { return };
    if let Some(record) = live::remove(books.key(block)) {
        trace::freed(books.slot, block, record.size);
    } else if !sampling::is_on() {
        free_absent(&books, hit, block);
    }
    if hit.cookie.signature.passes_on() {
        note_passed_on(block);
    }
}

/// Another allocator may come to free the same block for this one.
#[inline(always)]
fn note_passed_on(block: u64) {
    // Without memory for it, the other free counts as one of an unknown block.
    let Some(calls) = CALLS.get_or_create() else { return };
    // SAFETY: task storage belongs to the current task, which is busy with this very probe.
    unsafe { (*calls).passed_on = block };
}

/// A function was called that changes the books in a way that is not followed.
#[inline(always)]
pub(crate) fn count_unseen(hit: &Hit, counter: Counter) {
    if let Some(books) = Books::of(hit) {
        books.count(counter);
    }
}

/// A block that is not in the table is about to be freed.
#[inline(always)]
fn free_absent(books: &Books, hit: &Hit, block: u64) {
    if let Some(calls) = CALLS.get() {
        // SAFETY: task storage belongs to the current task, which is busy with this very probe.
        let calls = unsafe { &mut *calls };
        if calls.passed_on == block && !hit.cookie.signature.passes_on() {
            calls.passed_on = 0;
            return;
        }
        // Made by an allocation call in progress, of a block that is the allocator's own.
        let cfa = hit.cfa();
        if books.nesting(&calls.current, cfa) == Nesting::Nested
            || books.nesting(&calls.outer, cfa) == Nesting::Nested
        {
            return;
        }
    }
    note_freed_by_library(books.is_freed_by_allocator(hit.cfa()));
    books.count_unknown_free();
}

/// A block that is not in the books was freed, by the C library or not. What the library has kept for a thread it frees last
/// of all, when the thread ends: only then is it told from what the program has it free, as by `fclose`.
#[inline(always)]
fn note_freed_by_library(is_by_library: bool) {
    let calls = if is_by_library { CALLS.get_or_create() } else { CALLS.get() };
    // Without memory for it, the block counts as the program's.
    let Some(calls) = calls else { return };
    // SAFETY: task storage belongs to the current task, which is busy with this very probe.
    let calls = unsafe { &mut *calls };
    calls.freed_by_library = if is_by_library { calls.freed_by_library + 1 } else { 0 };
}

/// The current thread ends: what the C library has freed since it last allocated was kept for it.
#[inline(always)]
pub(crate) fn end_thread(slot: ProcessSlot) {
    let Some(calls) = CALLS.get() else { return };
    // SAFETY: task storage belongs to the current task, which is busy with this very call.
    let calls = unsafe { &mut *calls };
    if calls.freed_by_library > 0 {
        count_many(slot, Counter::FreedByCLibrary, calls.freed_by_library);
        calls.freed_by_library = 0;
    }
}
