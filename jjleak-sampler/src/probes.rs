//! The probes: a no-op each, described by a note as `<sys/sdt.h>` writes it. Each has one place in the program, out of line.
//!
//! A no-op of one byte: kernels that make a call of a longer one have overwritten the 128 bytes below the stack pointer, which functions
//! that call no others may use.

use std::sync::atomic::{AtomicU16, Ordering};

/// Number of consumers. The kernel adds to it while a probe is attached.
#[used]
#[unsafe(link_section = ".probes")]
static SEMAPHORE: Semaphore = Semaphore(AtomicU16::new(0));

/// Has a page of the file of its own. LLD puts the data that becomes read-only and the other data into two segments which can share a page of
/// the file: while a program is loaded, both are writable, and the kernel counts in the first that has the page.
#[repr(align(4096))]
struct Semaphore(AtomicU16);

/// Returns true if somebody consumes samples.
#[inline]
pub(crate) fn are_consumed() -> bool {
    SEMAPHORE.0.load(Ordering::Relaxed) != 0
}

/// Behaves as if there were this number of consumers.
#[cfg(test)]
pub(crate) fn pretend_consumers(number: u16) {
    SEMAPHORE.0.store(number, Ordering::Relaxed);
}

/// A note on a probe at the local label 990, with the place of its base (which `prelink` moves) and its semaphore.
#[cfg(target_arch = "x86_64")]
macro_rules! probe {
    ($name:literal, $arguments:literal, $($operand:tt)*) => {
        // SAFETY: a no-op, and data in a section that is not loaded.
        unsafe {
            core::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"?\",\"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b, _.stapsdt.base, {semaphore}",
                ".asciz \"otel_memory\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $arguments, "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                semaphore = sym SEMAPHORE,
                $($operand)*
                options(att_syntax, nostack, preserves_flags),
            );
        }
    };
}

/// Announces a sampled block. The arguments are in the registers of a function's, where consumers that ignore descriptions look.
#[inline(never)]
#[cfg(target_arch = "x86_64")]
pub(crate) fn announce(block: *mut u8, size: usize, weighted_bytes: u64) {
    probe!("alloc", "8@%rdi 8@%rsi 8@%rdx", in("rdi") block, in("rsi") size, in("rdx") weighted_bytes,);
}

/// Announces that a sampled block is about to be freed.
#[inline(never)]
#[cfg(target_arch = "x86_64")]
pub(crate) fn announce_free(block: *mut u8) {
    probe!("free", "8@%rdi", in("rdi") block,);
}

/// There are probes on x86-64 only: elsewhere, nobody can consume samples.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const fn announce(_block: *mut u8, _size: usize, _weighted_bytes: u64) {}

/// See [`announce`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const fn announce_free(_block: *mut u8) {}
