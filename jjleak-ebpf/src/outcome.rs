//! How calls end: what becomes of a block is booked.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use jjleak_common::{
    counter::Counter,
    live::{Key, Record},
    pending::{Pending, flag},
    stage::Stage,
};

use crate::{
    accounting::drop_stale,
    books::Books,
    live::{self, Inserted},
    maps::{CALLS, count, count_many},
    memory::read_user_word,
    registers::Hit,
    stack, stages, trace,
};

/// An allocation function returned.
#[inline(always)]
pub(crate) fn leave(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let Some(calls) = CALLS.get() else {
        books.count(Counter::ReturnWithoutEntry);
        return;
    };
    // SAFETY: task storage belongs to the current task, which is busy with this very probe.
    let calls = unsafe { &mut *calls };
    let stack_pointer = hit.stack_pointer();
    let current = &mut calls.current;
    if current.has(flag::RUNNING) {
        if stack_pointer < current.cfa {
            leave_nested(current, hit);
        } else if stack_pointer == current.cfa && !current.ends_at_exits() {
            settle(&books, current, hit.returned());
            current.flags = 0;
        } else {
            drop_stale(&books, hit, current);
        }
    } else if calls.outer.has(flag::RUNNING) && stack_pointer < calls.outer.cfa {
        leave_nested(&mut calls.outer, hit);
    } else if current.cfa != stack_pointer {
        // Functions that call each other in tail position return together: the first return settled it.
        books.count(Counter::ReturnWithoutEntry);
    }
}

/// A call that was muted as a part of another one returned. Where it failed, nothing was muted.
#[inline(always)]
pub(crate) fn leave_nested(outer: &mut Pending, hit: &Hit) {
    if outer.ends_at_exits() && outer.nested > 0 && hit.returned() == 0 {
        outer.nested -= 1;
    }
}

/// The outermost call returned: books its outcome.
#[inline(always)]
fn settle(books: &Books, pending: &Pending, returned: u64) {
    if pending.has(flag::IN_PLACE) {
        settle_in_place(books, pending, returned);
        return;
    }
    let Some(block) = new_block(pending, returned) else {
        books.count(Counter::ResultUnreadable);
        return;
    };
    if block != 0 {
        trace_old(books, pending);
        // The new block first: a snapshot must not find neither.
        let time_ns = book(books, pending.flags, pending.stack, block, pending.size);
        release_old(books, pending, time_ns);
    } else if pending.has(flag::RESIZE) && pending.pointer != 0 {
        if pending.has(flag::ZERO_FREES) && pending.size == 0 {
            trace_old(books, pending);
            release_old(books, pending, live::NOW);
        } else if pending.has(flag::HAS_OLD) {
            restore(books, pending);
        }
    }
}

/// A block was resized where it is, if it is now as large as was asked for. Of what it may have beyond that it has
/// what there was room for.
#[inline(always)]
fn settle_in_place(books: &Books, pending: &Pending, real_size: u64) {
    if real_size >= pending.size {
        let most = pending.size.saturating_add(pending.extra);
        trace_old(books, pending);
        let size = if real_size < most { real_size } else { most };
        let time_ns = book(books, pending.flags, pending.stack, pending.pointer, size);
        release_old(books, pending, time_ns);
    } else if pending.has(flag::HAS_OLD) {
        restore(books, pending);
    }
}

/// Address of the new block, 0 when the call failed; `None` when it cannot be read.
#[inline(always)]
fn new_block(pending: &Pending, returned: u64) -> Option<u64> {
    if !pending.has(flag::POINTEE) {
        Some(returned)
    } else if returned as u32 != 0 {
        Some(0)
    } else {
        read_user_word(pending.pointer)
    }
}

/// The block that was resized is gone, since `time_ns`.
#[inline(always)]
fn release_old(books: &Books, pending: &Pending, time_ns: u64) {
    if !pending.has(flag::RESIZE) || pending.pointer == 0 {
        return;
    }
    if pending.has(flag::HAS_OLD) {
        live::conclude(books.key(pending.pointer), &pending.old, time_ns);
    } else {
        books.count_unknown_free();
    }
}

/// Tells of the end of the block that was resized, before the new one, which can have its address; unless the allocator
/// has called its own `free` for it.
#[inline(always)]
fn trace_old(books: &Books, pending: &Pending) {
    if trace::is_on() && pending.has(flag::HAS_OLD) && live::holds(books.key(pending.pointer), &pending.old) {
        trace::freed(books.slot, pending.pointer, pending.old.size);
    }
}

/// The block that should be resized is still there.
#[inline(always)]
pub(crate) fn restore(books: &Books, pending: &Pending) {
    live::resume(books.key(pending.pointer), &pending.old);
}

/// Enters the new block; the time it begins at.
#[inline(always)]
pub(crate) fn book(books: &Books, flags: u8, stack: u32, block: u64, size: u64) -> u64 {
    if flags & flag::FILTERED != 0 {
        books.count(Counter::Filtered);
        return live::NOW;
    }
    if flags & flag::UNSAMPLED != 0 {
        books.count(Counter::Unsampled);
        return live::NOW;
    }
    // SAFETY: has no preconditions.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    stack::count_allocation(stack, size);
    if stages::end_with(Stage::Counted) {
        return time_ns;
    }
    enter_block(books.key(block), &Record { size, time_ns, stack, reserved: 0 });
    trace::allocated(books.slot, block, size);
    time_ns
}

#[inline(always)]
fn enter_block(key: Key, record: &Record) {
    let slot = key.image().slot();
    match live::insert(key, record) {
        Inserted::New => {}
        Inserted::Replaced => count(slot, Counter::MissedFree),
        Inserted::Full => {
            count(slot, Counter::LiveTableFull);
            count_many(slot, Counter::LiveTableFullBytes, record.size);
        }
    }
}
