//! Reports system calls that map and unmap memory. All decisions are left to the user side where possible.

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, generated::bpf_ktime_get_ns};
use jjleak_common::{
    counter::Counter,
    mapping::{Call, Event, MAP_FIXED, MappingKinds, RING_BYTES, flag},
    stack::lost_row,
};

use crate::{
    accounting,
    constants::setting,
    current::{self, Caller},
    maps::{MAPPING_EVENTS, count},
    ring::wakeup,
    stack,
    syscall::{self, Syscall, UserRegisters},
};

#[inline(always)]
fn kinds() -> MappingKinds {
    MappingKinds(setting!(mapping_kinds))
}

/// Returns true if changes of the program break are reported: they must be requested, and the kernel's structures known.
#[inline(always)]
fn follows_breaks() -> bool {
    kinds().has_break() && current::knows_breaks()
}

/// Entry of a call. Reports calls that may unmap memory, and calls whose arguments alone do not determine the outcome.
#[inline(always)]
pub(crate) fn enter(syscall: &Syscall, call: Call) {
    let Some(caller) = Caller::current() else { return };
    let Some(user) = syscall.user() else {
        count(caller.image.slot(), Counter::MappingEventLost);
        return;
    };
    let mut arguments = syscall::arguments(&user);
    match call {
        Call::Map if arguments[3] & MAP_FIXED == 0 => return,
        // A query, or a call without relevant outcome.
        Call::Break if arguments[0] == 0 || !follows_breaks() => return,
        Call::Break => match current::current_break() {
            Some(current) => arguments[1] = current,
            None => {
                count(caller.image.slot(), Counter::MappingEventLost);
                return;
            }
        },
        _ => {}
    }
    report(&caller, call, arguments, 0, lost_row(caller.image.slot()), 0);
}

/// Return of a call.
#[inline(always)]
pub(crate) fn leave(syscall: &Syscall, call: Call, result: i64) {
    let Some(caller) = Caller::current() else { return };
    let Some(user) = syscall.user() else {
        count(caller.image.slot(), Counter::MappingEventLost);
        return;
    };
    let arguments = syscall::arguments(&user);
    let failed = result < 0;
    match call {
        // The entry was not reported, and the outcome is irrelevant.
        Call::Map if arguments[3] & MAP_FIXED == 0 && (failed || !kinds().has(arguments[3])) => return,
        // The entry was reported.
        Call::Unmap if !failed => return,
        Call::Break if arguments[0] == 0 || !follows_breaks() => return,
        _ => {}
    }
    let gives = match call {
        Call::Map => !failed && kinds().has(arguments[3]),
        Call::Remap => !failed,
        Call::Break => true,
        Call::Unmap => false,
    };
    let (row, flags) = if gives { origin(&caller, &user) } else { (lost_row(caller.image.slot()), 0) };
    report(&caller, call, arguments, result, row, flags | flag::LEFT);
}

/// Stack of a call, with a flag if an allocator made it.
#[inline(always)]
fn origin(caller: &Caller, user: &UserRegisters) -> (u32, u8) {
    let at = syscall::origin(user);
    let stack = stack::capture_syscall(caller.image, caller.row, &at);
    let nested = accounting::is_part_of_allocation(caller.image, caller.row, at.stack_pointer, stack.caller);
    (stack.row, if nested { flag::NESTED } else { 0 })
}

#[inline(always)]
fn report(caller: &Caller, call: Call, arguments: [u64; 5], result: i64, stack: u32, flags: u8) {
    let event = Event {
        // SAFETY: has no preconditions.
        time_ns: unsafe { bpf_ktime_get_ns() },
        arguments,
        result,
        image: caller.image,
        thread: bpf_get_current_pid_tgid() as u32,
        stack,
        call: call as u8,
        flags,
        reserved: 0,
    };
    if MAPPING_EVENTS.output::<Event>(&event, wakeup(&MAPPING_EVENTS, RING_BYTES, false)).is_err() {
        count(caller.image.slot(), Counter::MappingEventLost);
    }
}
