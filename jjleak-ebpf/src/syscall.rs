//! A system call of x86-64: its arguments and the user registers.

use core::mem::offset_of;

use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::generated::{bpf_get_current_task_btf, bpf_task_pt_regs},
};

use crate::{memory::read_kernel, registers::Registers};

/// A system call at the kernel function that implements it, `long __x64_sys_NAME(const struct pt_regs *)`
/// (arch/x86/include/asm/syscall_wrapper.h), or at the tracepoints of all system calls. The registers are the user's.
pub(crate) struct Syscall {
    registers: *const pt_regs,
}

impl Syscall {
    #[inline(always)]
    pub(crate) fn new<C: EbpfContext>(ctx: &C) -> Self {
        // SAFETY: the context of a program at a function's entry or exit begins with the function's arguments.
        Self { registers: unsafe { *ctx.as_ptr().cast::<*const pt_regs>() } }
    }

    /// The registers that the current thread had in user space; null if it has none.
    #[inline(always)]
    pub(crate) fn of_current() -> Self {
        // SAFETY: the current task is always valid.
        let registers = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) };
        Self { registers: registers as *const pt_regs }
    }

    /// Number of the system call; `None` if it cannot be read.
    #[inline(always)]
    pub(crate) fn number(&self) -> Option<u64> {
        read_kernel(self.registers as u64 + offset_of!(pt_regs, orig_rax) as u64)
    }

    /// The user registers; `None` if they cannot be read.
    #[inline(always)]
    pub(crate) fn user(&self) -> Option<UserRegisters> {
        read_kernel(self.registers as u64 + offset_of!(pt_regs, rbp) as u64)
    }
}

/// The required part of `pt_regs`, no larger than necessary: before Linux 6.13, programs share 512 bytes of stack with their
/// callees.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UserRegisters {
    rbp: u64,
    rbx: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rax: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    orig_rax: u64,
    rip: u64,
    cs: u64,
    eflags: u64,
    rsp: u64,
}

const _: () = assert!(
    size_of::<UserRegisters>() == offset_of!(pt_regs, rsp) + 8 - offset_of!(pt_regs, rbp)
        && offset_of!(UserRegisters, rip) == offset_of!(pt_regs, rip) - offset_of!(pt_regs, rbp)
);

/// The first arguments of a system call, in order.
#[inline(always)]
pub(crate) fn arguments(user: &UserRegisters) -> [u64; 5] {
    [user.rdi, user.rsi, user.rdx, user.r10, user.r8]
}

/// Registers at the origin of the call.
#[inline(always)]
pub(crate) fn origin(user: &UserRegisters) -> Registers {
    Registers { instruction_pointer: user.rip, stack_pointer: user.rsp, frame_pointer: user.rbp }
}
