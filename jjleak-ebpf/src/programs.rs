//! The entry points: one program a role.

use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid,
    macros::{raw_tracepoint, uprobe, uretprobe},
    programs::{ProbeContext, RawTracePointContext, RetProbeContext},
};
use jjleak_common::counter::Counter;

use crate::{accounting, process, registers::Hit};

/// Entry of a function that gives a new block.
#[uprobe]
pub(crate) fn allocate_enter(ctx: ProbeContext) -> u32 {
    accounting::enter_allocate(&Hit::new(&ctx));
    0
}

/// Entry of a function that turns a block into another one.
#[uprobe]
pub(crate) fn resize_enter(ctx: ProbeContext) -> u32 {
    accounting::enter_resize(&Hit::new(&ctx));
    0
}

/// Return of either.
#[uretprobe]
pub(crate) fn allocate_return(ctx: RetProbeContext) -> u32 {
    accounting::leave(&Hit::new(&ctx));
    0
}

/// Entry of a function that takes a block back.
#[uprobe]
pub(crate) fn free_enter(ctx: ProbeContext) -> u32 {
    accounting::free(&Hit::new(&ctx));
    0
}

/// Entry of a function that resizes a block where it is.
#[uprobe]
pub(crate) fn resize_in_place_enter(ctx: ProbeContext) -> u32 {
    accounting::enter_resize_in_place(&Hit::new(&ctx));
    0
}

/// Entry of a function that gives a new block or throws an exception.
#[uprobe]
pub(crate) fn throwing_enter(ctx: ProbeContext) -> u32 {
    accounting::enter_throwing(&Hit::new(&ctx));
    0
}

/// A return instruction of such a function, or of code that it shares with others.
#[uprobe]
pub(crate) fn throwing_exit(ctx: ProbeContext) -> u32 {
    accounting::exit(&Hit::new(&ctx));
    0
}

/// Entry of a function that gives a new block, which cannot be followed.
#[uprobe]
pub(crate) fn unseen_allocate_enter(ctx: ProbeContext) -> u32 {
    accounting::count_unseen(&Hit::new(&ctx), Counter::UnseenAllocation);
    0
}

/// Entry of a function that takes back blocks that it does not name.
#[uprobe]
pub(crate) fn unseen_free_enter(ctx: ProbeContext) -> u32 {
    accounting::count_unseen(&Hit::new(&ctx), Counter::UnseenFree);
    0
}

/// A process, or a thread, begins.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub(crate) fn process_fork(ctx: RawTracePointContext) -> i32 {
    // include/trace/events/sched.h: (parent, child)
    process::fork(ctx.arg(0), ctx.arg(1));
    0
}

/// A thread ends.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub(crate) fn process_exit(_ctx: RawTracePointContext) -> i32 {
    process::exit();
    0
}

/// A process replaced its program.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub(crate) fn process_exec(ctx: RawTracePointContext) -> i32 {
    // include/trace/events/sched.h: (task, old_pid, bprm)
    let thread = bpf_get_current_pid_tgid() as u32;
    process::exec(ctx.arg::<i32>(1) as u32, thread);
    0
}

/// Does nothing: what a bare probe costs. For the benchmark.
#[uprobe]
pub(crate) fn bare_enter(_ctx: ProbeContext) -> u32 {
    0
}

/// Does nothing: what a bare return probe costs. For the benchmark.
#[uretprobe]
pub(crate) fn bare_return(_ctx: RetProbeContext) -> u32 {
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier rejects a program from which this can be reached, so it never runs.
    loop {}
}

/// The kernel reserves some helpers to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
