//! State of a thread, found in as little time as possible: each allocation needs it while samples are consumed.

use std::cell::Cell;

/// State of a thread, zero at first. Without a destructor: it exists as long as the thread, and its first use allocates nothing.
#[repr(C)]
pub(crate) struct Thread {
    /// Bytes up to the next point; 0 before the first draw.
    pub(crate) left: Cell<i64>,
    /// True once a block was allocated.
    pub(crate) has_drawn: Cell<bool>,
}

#[cfg(not(all(feature = "shared-library", target_arch = "x86_64")))]
mod found {
    use std::cell::Cell;

    use super::Thread;

    thread_local! {
        static THREAD: Thread = const { Thread { left: Cell::new(0), has_drawn: Cell::new(false) } };
    }

    #[inline]
    pub(crate) fn with_thread<T>(call: impl FnOnce(&Thread) -> T) -> T {
        THREAD.with(call)
    }
}

/// In a shared library, by a TLS descriptor ("Thread-Local Storage Descriptors for IA32 and AMD64/EM64T", A. Oliva and G. Araujo): a call of
/// the loader's function, which takes two instructions if the library was loaded with the program, and changes one register. rustc calls
/// `__tls_get_addr`, which takes two nanoseconds more.
#[cfg(all(feature = "shared-library", target_arch = "x86_64"))]
mod found {
    use std::arch::{asm, global_asm};

    use super::Thread;

    const _: () = assert!(size_of::<Thread>() == 16 && align_of::<Thread>() == 8);

    global_asm!(
        ".pushsection .tbss.jjleak_thread,\"awT\",@nobits",
        ".balign 8",
        ".hidden jjleak_thread",
        ".globl jjleak_thread",
        ".type jjleak_thread,@object",
        ".size jjleak_thread,16",
        "jjleak_thread: .zero 16",
        ".popsection",
        options(att_syntax),
    );

    #[inline]
    pub(crate) fn with_thread<T>(call: impl FnOnce(&Thread) -> T) -> T {
        let thread: *const Thread;
        // SAFETY: the descriptor's function returns the variable's offset from the thread pointer. It may allocate the variable of a
        // library that was loaded late, by malloc, which some versions of glibc let change vector registers.
        unsafe {
            asm!(
                "leaq jjleak_thread@tlsdesc(%rip), %rax",
                "call *jjleak_thread@tlscall(%rax)",
                "addq %fs:0, %rax",
                out("rax") thread,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(att_syntax),
            );
            call(&*thread)
        }
    }
}

pub(crate) use found::with_thread;
