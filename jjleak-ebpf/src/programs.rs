//! Entry points: one program per role.

use aya_ebpf::{
    helpers::bpf_get_current_pid_tgid,
    macros::{fentry, fexit, raw_tracepoint, uprobe, uretprobe},
    programs::{FEntryContext, FExitContext, ProbeContext, RawTracePointContext, RetProbeContext},
};
use jjleak_common::{counter::Counter, mapping::Call};

use crate::{
    accounting, exits, fault, java_heap, mapping, outcome, process, registers::Hit, replacement, samples,
    syscall::Syscall,
};

/// Entry of a function that returns a new block.
#[uprobe]
pub(crate) fn allocate_enter(ctx: ProbeContext) -> u32 {
    accounting::enter_allocate(&Hit::new(&ctx));
    0
}

/// Instruction of a function that returns a new block, where the block is known.
#[uprobe]
pub(crate) fn block_given(ctx: ProbeContext) -> u32 {
    exits::give(&Hit::new(&ctx));
    0
}

/// Entry of a function that resizes a block.
#[uprobe]
pub(crate) fn resize_enter(ctx: ProbeContext) -> u32 {
    accounting::enter_resize(&Hit::new(&ctx));
    0
}

/// Return of either.
#[uretprobe]
pub(crate) fn allocate_return(ctx: RetProbeContext) -> u32 {
    outcome::leave(&Hit::new(&ctx));
    0
}

/// Entry of a function that frees a block.
#[uprobe]
pub(crate) fn free_enter(ctx: ProbeContext) -> u32 {
    accounting::free(&Hit::new(&ctx));
    0
}

/// Entry of a function that resizes a block in place.
#[uprobe]
pub(crate) fn resize_in_place_enter(ctx: ProbeContext) -> u32 {
    accounting::enter_resize_in_place(&Hit::new(&ctx));
    0
}

/// Entry of a function that returns a new block or throws an exception, or an instruction of a function that ends at another
/// probe.
#[uprobe]
pub(crate) fn noted_enter(ctx: ProbeContext) -> u32 {
    exits::enter_noted(&Hit::new(&ctx));
    0
}

/// Return instruction of such a function, or of code that it shares with others, or an instruction where the result is known.
#[uprobe]
pub(crate) fn noted_exit(ctx: ProbeContext) -> u32 {
    exits::exit(&Hit::new(&ctx));
    0
}

/// Entry of a function that returns a new block and cannot be traced.
#[uprobe]
pub(crate) fn unseen_allocate_enter(ctx: ProbeContext) -> u32 {
    accounting::count_unseen(&Hit::new(&ctx), Counter::UnseenAllocation);
    0
}

/// Entry of a function that frees blocks that are not in its arguments.
#[uprobe]
pub(crate) fn unseen_free_enter(ctx: ProbeContext) -> u32 {
    accounting::count_unseen(&Hit::new(&ctx), Counter::UnseenFree);
    0
}

/// A JVM announces an object in its heap.
#[uprobe]
pub(crate) fn java_object(ctx: ProbeContext) -> u32 {
    java_heap::announce(&Hit::new(&ctx));
    0
}

/// A JVM frees generated code.
#[uprobe]
pub(crate) fn code_freed(_ctx: ProbeContext) -> u32 {
    process::count_freed_code();
    0
}

/// A program announces an allocation that it has sampled.
#[uprobe]
pub(crate) fn sample_allocated(ctx: ProbeContext) -> u32 {
    samples::allocated(&Hit::new(&ctx));
    0
}

/// A program announces that it frees such a block.
#[uprobe]
pub(crate) fn sample_freed(ctx: ProbeContext) -> u32 {
    samples::freed(&Hit::new(&ctx));
    0
}

/// The kernel has chosen the address of a mapping.
#[raw_tracepoint(tracepoint = "vm_unmapped_area")]
pub(crate) fn area_placed(ctx: RawTracePointContext) -> i32 {
    // include/trace/events/mmap.h: (addr, info)
    replacement::placed(ctx.arg(0), ctx.arg(1));
    0
}

/// A process is about to map memory.
#[fentry]
pub(crate) fn mmap_enter(ctx: FEntryContext) -> i32 {
    mapping::enter(&Syscall::new(&ctx), Call::Map);
    0
}

/// A process has mapped memory.
#[fexit]
pub(crate) fn mmap_leave(ctx: FExitContext) -> i32 {
    mapping::leave(&Syscall::new(&ctx), Call::Map, ctx.arg(1));
    0
}

/// A process is about to unmap memory.
#[fentry]
pub(crate) fn munmap_enter(ctx: FEntryContext) -> i32 {
    mapping::enter(&Syscall::new(&ctx), Call::Unmap);
    0
}

/// A process has unmapped memory.
#[fexit]
pub(crate) fn munmap_leave(ctx: FExitContext) -> i32 {
    mapping::leave(&Syscall::new(&ctx), Call::Unmap, ctx.arg(1));
    0
}

/// A process is about to move or resize a mapping.
#[fentry]
pub(crate) fn mremap_enter(ctx: FEntryContext) -> i32 {
    mapping::enter(&Syscall::new(&ctx), Call::Remap);
    0
}

/// A process has moved or resized a mapping.
#[fexit]
pub(crate) fn mremap_leave(ctx: FExitContext) -> i32 {
    mapping::leave(&Syscall::new(&ctx), Call::Remap, ctx.arg(1));
    0
}

/// A process is about to move its program break.
#[fentry]
pub(crate) fn brk_enter(ctx: FEntryContext) -> i32 {
    mapping::enter(&Syscall::new(&ctx), Call::Break);
    0
}

/// A process has moved its program break.
#[fexit]
pub(crate) fn brk_leave(ctx: FExitContext) -> i32 {
    mapping::leave(&Syscall::new(&ctx), Call::Break, ctx.arg(1));
    0
}

/// Entry of any system call, for kernels without BPF programs at functions.
#[raw_tracepoint(tracepoint = "sys_enter")]
pub(crate) fn syscall_enter(ctx: RawTracePointContext) -> i32 {
    // include/trace/events/syscalls.h: (regs, number)
    if let Some(call) = Call::of_x86_64(ctx.arg(1)) {
        mapping::enter(&Syscall::new(&ctx), call);
    }
    0
}

/// Return of any system call.
#[raw_tracepoint(tracepoint = "sys_exit")]
pub(crate) fn syscall_leave(ctx: RawTracePointContext) -> i32 {
    // include/trace/events/syscalls.h: (regs, result)
    let syscall = Syscall::new(&ctx);
    if let Some(call) = syscall.number().and_then(Call::of_x86_64) {
        mapping::leave(&syscall, call, ctx.arg(1));
    }
    0
}

/// A program touches a page that is not mapped, or not as it needs it.
#[raw_tracepoint(tracepoint = "page_fault_user")]
pub(crate) fn fault_of_program(ctx: RawTracePointContext) -> i32 {
    // arch/x86/include/asm/trace/exceptions.h: (address, regs, error_code)
    fault::report(ctx.arg(0), ctx.arg(2));
    0
}

/// The kernel touches such a page, for a system call of the program.
#[raw_tracepoint(tracepoint = "page_fault_kernel")]
pub(crate) fn fault_of_kernel(ctx: RawTracePointContext) -> i32 {
    fault::report(ctx.arg(0), ctx.arg(2));
    0
}

/// The kernel has chosen the address of a mapping, and will move pages there if this is for `mremap`.
#[raw_tracepoint(tracepoint = "vm_unmapped_area")]
pub(crate) fn pages_moved(ctx: RawTracePointContext) -> i32 {
    // include/trace/events/mmap.h: (addr, info)
    fault::placed(ctx.arg(0), ctx.arg(1));
    0
}

/// A process or a thread starts.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub(crate) fn process_fork(ctx: RawTracePointContext) -> i32 {
    // include/trace/events/sched.h: (parent, child)
    process::fork(ctx.arg(0), ctx.arg(1));
    0
}

/// A thread ends; its state in the accounting is evaluated.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub(crate) fn thread_exit(_ctx: RawTracePointContext) -> i32 {
    process::end_thread();
    0
}

/// A thread ends, and possibly its process.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub(crate) fn process_exit(_ctx: RawTracePointContext) -> i32 {
    process::exit();
    0
}

/// A process has executed a program.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub(crate) fn process_exec(ctx: RawTracePointContext) -> i32 {
    // include/trace/events/sched.h: (task, old_pid, bprm)
    let thread = bpf_get_current_pid_tgid() as u32;
    process::exec(ctx.arg::<i32>(1) as u32, thread, ctx.arg(2));
    0
}

/// Does nothing, to measure the cost of a probe.
#[uprobe]
pub(crate) fn bare_enter(_ctx: ProbeContext) -> u32 {
    0
}

/// Does nothing where a block is known ([`block_given`]). The kernel counts the runs per program, so each kind of hit has its own
/// program.
#[uprobe]
pub(crate) fn bare_given(_ctx: ProbeContext) -> u32 {
    0
}

/// Does nothing where a call is recorded that ends at another probe ([`noted_enter`]).
#[uprobe]
pub(crate) fn bare_noted(_ctx: ProbeContext) -> u32 {
    0
}

/// Does nothing where such a call ends.
#[uprobe]
pub(crate) fn bare_exit(_ctx: ProbeContext) -> u32 {
    0
}

/// Does nothing at frees.
#[uprobe]
pub(crate) fn bare_free(_ctx: ProbeContext) -> u32 {
    0
}

/// Does nothing, to measure the cost of a return probe.
#[uretprobe]
pub(crate) fn bare_return(_ctx: RetProbeContext) -> u32 {
    0
}

/// Programs that only the benchmark needs.
#[cfg(feature = "measuring")]
mod measuring {
    use aya_ebpf::{macros::uprobe, programs::ProbeContext};

    use crate::{accounting, registers::Hit, stack, steps};

    /// Captures a stack like the accounting.
    #[uprobe]
    pub(crate) fn stack_enter(ctx: ProbeContext) -> u32 {
        accounting::take_stack(&Hit::new(&ctx));
        0
    }

    /// Makes the kernel capture a stack by frame pointers.
    #[uprobe]
    pub(crate) fn kernel_stack_enter(ctx: ProbeContext) -> u32 {
        stack::measuring::by_kernel(&ctx);
        0
    }

    /// Repeats one step of the accounting.
    #[uprobe]
    pub(crate) fn step_given(ctx: ProbeContext) -> u32 {
        steps::repeat(&Hit::new(&ctx));
        0
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier rejects a program that can reach this, so it never runs.
    loop {}
}

/// Some helpers are restricted to GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
