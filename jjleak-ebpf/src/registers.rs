//! A probe hit: the registers at the probed instruction and what the attach cookie says of them.

use core::{arch::asm, ffi::c_void, mem::offset_of};

use aya_ebpf::{EbpfContext, bindings::pt_regs, helpers::generated::bpf_get_attach_cookie};
use jjleak_common::cookie::{Arg, Cookie};

/// One hit of a probe.
pub(crate) struct Hit {
    regs: *const pt_regs,
    /// What the site's cookie says.
    pub(crate) cookie: Cookie,
}

/// Where a thread is in its code.
pub(crate) struct Registers {
    pub(crate) instruction_pointer: u64,
    pub(crate) stack_pointer: u64,
    pub(crate) frame_pointer: u64,
}

impl EbpfContext for Hit {
    fn as_ptr(&self) -> *mut c_void {
        self.regs.cast_mut().cast()
    }
}

impl Hit {
    #[inline(always)]
    pub(crate) fn new<C: EbpfContext>(ctx: &C) -> Self {
        // SAFETY: the helper only reads the program's own context.
        let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
        Self { regs: ctx.as_ptr().cast(), cookie: Cookie::decode(cookie) }
    }

    #[inline(always)]
    fn regs(&self) -> &pt_regs {
        // SAFETY: the context of an uprobe program is a pt_regs that lives as long as the program runs.
        unsafe { &*self.regs }
    }

    /// Address of the probed instruction, or of the caller at a return.
    #[inline(always)]
    pub(crate) fn instruction_pointer(&self) -> u64 {
        self.regs().rip
    }

    #[inline(always)]
    pub(crate) fn stack_pointer(&self) -> u64 {
        self.regs().rsp
    }

    #[inline(always)]
    pub(crate) fn frame_pointer(&self) -> u64 {
        self.regs().rbp
    }

    /// The stack pointer before the call instruction pushed the return address.
    #[inline(always)]
    pub(crate) fn cfa(&self) -> u64 {
        self.stack_pointer().wrapping_add((self.cookie.cfa_words as u64) << 3)
    }

    /// What the function returned.
    #[inline(always)]
    pub(crate) fn returned(&self) -> u64 {
        self.regs().rax
    }

    /// An argument of the function; 0 when it has none of that meaning.
    #[inline(always)]
    pub(crate) fn arg(&self, arg: Option<Arg>) -> u64 {
        match arg.map(Arg::index) {
            Some(0) => self.load::<{ offset_of!(pt_regs, rdi) }>(),
            Some(1) => self.load::<{ offset_of!(pt_regs, rsi) }>(),
            Some(2) => self.load::<{ offset_of!(pt_regs, rdx) }>(),
            Some(3) => self.load::<{ offset_of!(pt_regs, rcx) }>(),
            Some(4) => self.load::<{ offset_of!(pt_regs, r8) }>(),
            Some(5) => self.load::<{ offset_of!(pt_regs, r9) }>(),
            _ => 0,
        }
    }

    /// A register, at a fixed offset of the context: the verifier wants the offset in the instruction, and LLVM
    /// would merge the loads of several registers into one with a computed address.
    #[inline(always)]
    fn load<const OFFSET: usize>(&self) -> u64 {
        let value;
        // SAFETY: reads a field of the context.
        unsafe {
            asm!("{0} = *(u64 *)({1} + {2})", out(reg) value, in(reg) self.regs, const OFFSET, options(pure, readonly, nostack));
        }
        value
    }
}
