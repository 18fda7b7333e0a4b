//! Calls that end at a probe other than a return probe: of functions that may throw an exception, where a return probe would kill
//! the program, and of functions probed within.

use jjleak_common::{
    counter::Counter,
    pending::{Calls, Nesting, Pending, flag},
    stack::lost_row,
    stage::Stage,
};

use crate::{
    accounting::{begin, drop_stale, enter, is_nested, left_out},
    armed::Armed,
    maps::CALLS,
    memory::read_user_word,
    outcome::{add_block, leave_nested},
    registers::Hit,
    stack, stages,
};

/// A function that returns a new block has obtained it: the call is detected by this probe alone.
#[inline(always)]
pub(crate) fn give(hit: &Hit) {
    let Some(inside) = hit.cookie.inside else { return };
    let block = hit.returned();
    if block == 0 {
        return;
    }
    let Some(armed) = Armed::of(hit) else { return };
    if stages::end_with(Stage::Process) || !counts(&armed, hit) || stages::end_with(Stage::Calls) {
        return;
    }
    let left_out = left_out(hit.register(inside.size));
    if left_out != 0 {
        add_block(&armed, left_out, || lost_row(armed.image.slot()), block, 0);
        return;
    }
    let stack = stack::capture(armed.image, armed.row, hit).stack.row;
    if stages::end_with(Stage::Words) || stages::end_with(Stage::Stack) {
        return;
    }
    // Read again: otherwise the verifier would track them through the whole stack walk, and they would take room on the BPF stack.
    add_block(&armed, 0, || stack, hit.returned(), hit.register(inside.size));
}

/// Returns true if an unrecorded call counts, because it is not nested in a recorded one.
#[inline(always)]
fn counts(armed: &Armed, hit: &Hit) -> bool {
    let Some(calls) = CALLS.get() else { return true };
    // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    calls.freed_by_library = 0;
    if is_nested(armed, hit, &mut calls.outer) {
        return false;
    }
    match armed.nesting(&calls.current, hit.cfa()) {
        Nesting::Outermost | Nesting::CalledBack => true,
        Nesting::Nested => {
            calls.current.nested += 1;
            false
        }
        Nesting::Stale => {
            drop_stale(armed, hit, &mut calls.current);
            true
        }
    }
}

/// Entry of a function that returns a new block or throws. A return probe would kill the program when it throws, so its exits are
/// probed.
#[inline(always)]
pub(crate) fn enter_noted(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let Some(pending) = enter(&armed, hit) else { return };
    let seen = begin(&armed, hit, pending, 0);
    // If a stack was walked, the walk has read it: another read would take a tenth of a microsecond.
    let return_address = if seen != 0 { Some(seen) } else { read_user_word(hit.cfa() - 8) };
    let Some(return_address) = return_address else {
        armed.count(Counter::ResultUnreadable);
        pending.flags = 0;
        return;
    };
    pending.return_address = return_address;
    pending.allocator =
        if armed.knows_allocators() { armed.allocator_at(hit.instruction_pointer()) } else { u8::MAX };
}

/// A function with a probe at its end is about to return, or another function that shares its code.
#[inline(always)]
pub(crate) fn exit(hit: &Hit) {
    let Some(armed) = Armed::of(hit) else { return };
    let Some(calls) = CALLS.get() else {
        if hit.cookie.inside.is_some() {
            armed.count(Counter::ReturnWithoutEntry);
        }
        return;
    };
    // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    let pending = if ends(&armed, hit, &calls.current) {
        &mut calls.current
    } else if ends(&armed, hit, &calls.outer) {
        &mut calls.outer
    } else {
        if hit.cookie.inside.is_some() {
            leave_unnoted(&armed, hit, calls);
        }
        return;
    };
    let block = hit.returned();
    if block != 0 {
        add_block(&armed, pending.flags, || stack::row_at_end(pending), block, pending.size);
    }
    pending.flags = 0;
}

/// End of an unrecorded call: it is nested in another one, or was in progress when the probes were attached. Called only
/// for exits that no other function shares.
#[inline(always)]
fn leave_unnoted(armed: &Armed, hit: &Hit, calls: &mut Calls) {
    let cfa = hit.cfa();
    if armed.nesting(&calls.current, cfa) == Nesting::Nested {
        leave_nested(&mut calls.current, hit);
    } else if armed.nesting(&calls.outer, cfa) == Nesting::Nested {
        leave_nested(&mut calls.outer, hit);
    } else {
        armed.count(Counter::ReturnWithoutEntry);
    }
}

/// Returns true if this exit ends the pending call. An exit inside a function is only placed where the call has been noted on every path
/// to it (`cut::sites` in the user side proves it), and that has dropped any other call with this CFA. So the word in the return slot is
/// not compared there, which would take a tenth of a microsecond.
#[inline(always)]
fn ends(armed: &Armed, hit: &Hit, pending: &Pending) -> bool {
    pending.has(flag::RUNNING)
        && pending.ends_at_exits()
        && pending.cfa == hit.cfa()
        && pending.image == armed.image.0 as u64
        && (hit.cookie.inside.is_some() || armed.is_intact(pending))
}
