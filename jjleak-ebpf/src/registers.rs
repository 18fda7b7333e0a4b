//! A probe hit: registers at the probed instruction, and the attach cookie.

use core::{arch::asm, ffi::c_void, mem::offset_of};

use aya_ebpf::{EbpfContext, bindings::pt_regs, helpers::generated::bpf_get_attach_cookie};
use jjleak_common::cookie::{Arg, Cookie, Inside};

use crate::memory::{opaque, read_kernel, top_bit};

/// One hit of a probe.
pub(crate) struct Hit {
    regs: *const pt_regs,
    /// The decoded cookie of the site.
    pub(crate) cookie: Cookie,
}

/// Registers that describe the position of a thread.
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
        // SAFETY: the context of an uprobe program is a pt_regs that is valid while the program runs.
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

    /// Stack pointer before the call instruction pushed the return address.
    #[inline(always)]
    pub(crate) fn cfa(&self) -> u64 {
        self.stack_pointer().wrapping_add((self.cookie.cfa_words as u64) << 3)
    }

    /// Return value of the function.
    #[inline(always)]
    pub(crate) fn returned(&self) -> u64 {
        self.regs().rax
    }

    /// Address that identifies the function: the probed instruction, or the first one if there are several.
    #[inline(always)]
    pub(crate) fn site(&self) -> u64 {
        let distance = self.cookie.inside.map_or(0, |inside| inside.distance as i64);
        self.instruction_pointer().wrapping_sub(distance as u64)
    }

    /// Number of words below the CFA that a stack walk reads first: down to the caller's frame pointer if the function has saved
    /// it, or else the return address.
    #[inline(always)]
    pub(crate) fn words_to_begin_with(&self) -> u64 {
        let words = self.saved_frame_pointer_words();
        if words == 0 { 1 } else { words }
    }

    /// Returns true if the caller's frame pointer is no longer in its register.
    #[inline(always)]
    pub(crate) fn has_saved_frame_pointer(&self) -> bool {
        self.saved_frame_pointer_words() != 0
    }

    #[inline(always)]
    fn saved_frame_pointer_words(&self) -> u64 {
        self.cookie.inside.map_or(0, |inside| inside.frame_pointer_words as u64)
    }

    /// The register with this number, one of [`Inside::SIZE_REGISTERS`]. Without branches: the verifier would follow all later
    /// code once per branch.
    #[inline(always)]
    pub(crate) fn register(&self, number: u8) -> u64 {
        let [rbx, rbp, rsi, rdi, r12, r13, r14, r15] = Inside::SIZE_REGISTERS;
        self.load_if::<{ offset_of!(pt_regs, rbx) }>(number, rbx)
            | self.load_if::<{ offset_of!(pt_regs, rbp) }>(number, rbp)
            | self.load_if::<{ offset_of!(pt_regs, rsi) }>(number, rsi)
            | self.load_if::<{ offset_of!(pt_regs, rdi) }>(number, rdi)
            | self.load_if::<{ offset_of!(pt_regs, r12) }>(number, r12)
            | self.load_if::<{ offset_of!(pt_regs, r13) }>(number, r13)
            | self.load_if::<{ offset_of!(pt_regs, r14) }>(number, r14)
            | self.load_if::<{ offset_of!(pt_regs, r15) }>(number, r15)
    }

    /// A register if it is the wanted one; otherwise 0.
    #[inline(always)]
    fn load_if<const OFFSET: usize>(&self, wanted: u8, number: u8) -> u64 {
        // Only for 0 does subtracting 1 set the top bit.
        let is_wanted = top_bit(((wanted ^ number) as u64).wrapping_sub(1));
        self.load::<OFFSET>() & 0u64.wrapping_sub(is_wanted)
    }

    /// The register at this offset of `pt_regs`; `None` if it cannot be read.
    #[inline(always)]
    pub(crate) fn register_at(&self, offset: u16) -> Option<u64> {
        // The verifier requires a bound of the offset, and a register of the context cannot be loaded from a computed address.
        const WITHIN: u64 = 0xff;
        const _: () = assert!(size_of::<pt_regs>() <= WITHIN as usize);
        read_kernel(self.regs as u64 + (opaque(offset as u64) & WITHIN))
    }

    /// An argument of the function; 0 if there is none with that role.
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

    /// A register, at a constant offset of the context: the verifier requires the offset in the instruction, and LLVM would merge
    /// the loads of several registers into one with a computed address.
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
