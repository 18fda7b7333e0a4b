//! Ends of calls: accounting of their outcomes.

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use jjleak_common::{
    counter::Counter,
    live::{Key, Record},
    pending::{Pending, flag},
    stage::Stage,
};

use crate::{
    accounting::drop_stale,
    armed::Armed,
    live::{self, Inserted},
    maps::{CALLS, count, count_many},
    memory::read_user_word,
    registers::Hit,
    sampling, stack, stages, trace,
};

/// Return of an allocation function.
#[inline(always)]
pub(crate) fn leave(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let Some(calls) = CALLS.get() else {
        armed.count(Counter::ReturnWithoutEntry);
        return;
    };
    // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    let stack_pointer = hit.stack_pointer();
    let current = &mut calls.current;
    if current.has(flag::RUNNING) {
        if stack_pointer < current.cfa {
            leave_nested(current, hit);
        } else if stack_pointer == current.cfa && !current.ends_at_exits() {
            settle(&armed, current, hit.returned());
            current.flags = 0;
        } else {
            drop_stale(&armed, hit, current);
        }
    } else if calls.outer.has(flag::RUNNING) && stack_pointer < calls.outer.cfa {
        leave_nested(&mut calls.outer, hit);
    } else if current.cfa != stack_pointer {
        // Functions that call each other in tail position return together: the first return has ended the call.
        armed.count(Counter::ReturnWithoutEntry);
    }
}

/// Return of a call that was muted as nested in another one. If it failed, it does not count as muted.
#[inline(always)]
pub(crate) fn leave_nested(outer: &mut Pending, hit: &Hit) {
    if outer.ends_at_exits() && outer.nested > 0 && hit.returned() == 0 {
        outer.nested -= 1;
    }
}

/// Accounts for the outcome of the outermost call.
#[inline(always)]
fn settle(armed: &Armed, pending: &Pending, returned: u64) {
    if pending.has(flag::IN_PLACE) {
        settle_in_place(armed, pending, returned);
        return;
    }
    let Some(block) = new_block(pending, returned) else {
        armed.count(Counter::ResultUnreadable);
        return;
    };
    if block != 0 {
        trace_old(armed, pending);
        // Add the new block first: a snapshot must not miss both.
        let stack = || stack::row_at_end(pending);
        let time_ns = add_block(armed, pending.flags, stack, block, pending.size);
        release_old(armed, pending, time_ns);
    } else if pending.has(flag::RESIZE) && pending.pointer != 0 {
        if pending.has(flag::ZERO_FREES) && pending.size == 0 {
            trace_old(armed, pending);
            release_old(armed, pending, live::NOW);
        } else if pending.has(flag::HAS_OLD) {
            armed.restore(pending);
        }
    }
}

/// Accounts for a block that was resized in place, if it has at least the requested size. The optional extra size is granted as
/// far as there was space.
#[inline(always)]
fn settle_in_place(armed: &Armed, pending: &Pending, real_size: u64) {
    if real_size >= pending.size {
        let most = pending.size.saturating_add(pending.extra);
        trace_old(armed, pending);
        let size = if real_size < most { real_size } else { most };
        let stack = || stack::row_at_end(pending);
        let time_ns = add_block(armed, pending.flags, stack, pending.pointer, size);
        release_old(armed, pending, time_ns);
    } else if pending.has(flag::HAS_OLD) {
        armed.restore(pending);
    }
}

/// Address of the new block, 0 if the call failed; `None` if it cannot be read.
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

/// Removes the resized block, freed at `time_ns`.
#[inline(always)]
fn release_old(armed: &Armed, pending: &Pending, time_ns: u64) {
    if !pending.has(flag::RESIZE) || pending.pointer == 0 {
        return;
    }
    if pending.has(flag::HAS_OLD) {
        live::conclude(armed.key(pending.pointer), &pending.old, time_ns);
    } else {
        armed.count_unknown_free();
    }
}

/// Reports the free of the resized block, before the new one, which may have its address; unless the allocator has called its own
/// `free` for it.
#[inline(always)]
fn trace_old(armed: &Armed, pending: &Pending) {
    if trace::is_on() && pending.has(flag::HAS_OLD) && live::holds(armed.key(pending.pointer), &pending.old) {
        trace::freed(armed.image.slot(), pending.pointer, pending.old.size);
    }
}

/// Adds the new block, with the row of its stack; returns the time of its allocation.
#[inline(always)]
pub(crate) fn add_block(armed: &Armed, flags: u8, stack: impl FnOnce() -> u32, block: u64, size: u64) -> u64 {
    if flags & flag::FILTERED != 0 {
        armed.count(Counter::Filtered);
        return live::NOW;
    }
    if flags & flag::UNSAMPLED != 0 {
        armed.count(Counter::Unsampled);
        return live::NOW;
    }
    let stack = stack();
    // SAFETY: has no preconditions.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    stack::count_allocation(stack, size);
    if stages::end_with(Stage::Counted) {
        return time_ns;
    }
    enter_block(armed.key(block), &Record { size, time_ns, stack, reserved: 0 });
    trace::allocated(armed.image.slot(), sampling::address(block), sampling::bytes(size));
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
            count_many(slot, Counter::LiveTableFullBytes, sampling::bytes(record.size));
        }
    }
}
