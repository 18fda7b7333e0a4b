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
    books::Books,
    maps::CALLS,
    memory::read_user_word,
    outcome::{book, leave_nested},
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
    let Some(books) = Books::of(hit) else { return };
    if stages::end_with(Stage::Process) || !counts(&books, hit) || stages::end_with(Stage::Calls) {
        return;
    }
    let left_out = left_out(hit.register(inside.size));
    if left_out != 0 {
        book(&books, left_out, lost_row(books.slot), block, 0);
        return;
    }
    let stack = stack::capture(books.image, books.row, hit);
    if stages::end_with(Stage::Words) || stages::end_with(Stage::Stack) {
        return;
    }
    // Read again: otherwise the verifier would track the size through the whole stack walk.
    book(&books, 0, stack, block, hit.register(inside.size));
}

/// Returns true if an unrecorded call counts, because it is not nested in a recorded one.
#[inline(always)]
fn counts(books: &Books, hit: &Hit) -> bool {
    let Some(calls) = CALLS.get() else { return true };
    // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    calls.freed_by_library = 0;
    if is_nested(books, hit, &mut calls.outer) {
        return false;
    }
    match books.nesting(&calls.current, hit.cfa()) {
        Nesting::Outermost | Nesting::CalledBack => true,
        Nesting::Nested => {
            calls.current.nested += 1;
            false
        }
        Nesting::Stale => {
            drop_stale(books, hit, &mut calls.current);
            true
        }
    }
}

/// Entry of a function that returns a new block or throws. A return probe would kill the program when it throws, so its exits are
/// probed.
#[inline(always)]
pub(crate) fn enter_noted(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let Some(return_address) = read_user_word(hit.cfa() - 8) else {
        books.count(Counter::ResultUnreadable);
        return;
    };
    if let Some(pending) = enter(&books, hit) {
        begin(&books, hit, pending, 0);
        pending.return_address = return_address;
        pending.allocator =
            if books.knows_allocators() { books.allocator_at(hit.instruction_pointer()) } else { u8::MAX };
    }
}

/// A function with a probe at its end is about to return, or another function that shares its code.
#[inline(always)]
pub(crate) fn exit(hit: &Hit) {
    let Some(books) = Books::of(hit) else { return };
    let Some(calls) = CALLS.get() else {
        if hit.cookie.inside.is_some() {
            books.count(Counter::ReturnWithoutEntry);
        }
        return;
    };
    // SAFETY: task storage belongs to the current task, which is executing this probe, so there is no concurrent access.
    let calls = unsafe { &mut *calls };
    let pending = if ends(&books, hit, &calls.current) {
        &mut calls.current
    } else if ends(&books, hit, &calls.outer) {
        &mut calls.outer
    } else {
        if hit.cookie.inside.is_some() {
            leave_unnoted(&books, hit, calls);
        }
        return;
    };
    let block = hit.returned();
    if block != 0 {
        book(&books, pending.flags, pending.stack, block, pending.size);
    }
    pending.flags = 0;
}

/// End of an unrecorded call: it is nested in another one, or was in progress when the probes were attached. Called only
/// for exits that no other function shares.
#[inline(always)]
fn leave_unnoted(books: &Books, hit: &Hit, calls: &mut Calls) {
    let cfa = hit.cfa();
    if books.nesting(&calls.current, cfa) == Nesting::Nested {
        leave_nested(&mut calls.current, hit);
    } else if books.nesting(&calls.outer, cfa) == Nesting::Nested {
        leave_nested(&mut calls.outer, hit);
    } else {
        books.count(Counter::ReturnWithoutEntry);
    }
}

/// Returns true if this exit ends the pending call.
#[inline(always)]
fn ends(books: &Books, hit: &Hit, pending: &Pending) -> bool {
    pending.has(flag::RUNNING)
        && pending.ends_at_exits()
        && pending.cfa == hit.cfa()
        && pending.image == books.image.0 as u64
        && books.is_intact(pending)
}
