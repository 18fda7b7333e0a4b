//! The instructions that the Linux kernel emulates under a uprobe on x86-64.
//!
//! Source: `arch/x86/kernel/uprobes.c`, `branch_setup_xol_ops` and `push_setup_xol_ops`; all other instructions are copied to
//! another page and single-stepped there. Only encodings that compilers emit count as emulated: the kernel refuses branches with
//! an operand-size prefix (`-ENOTSUPP`; until Linux 6.2 also the no-op `66 90`) and any instruction with a segment or lock prefix
//! (`is_prefix_bad`).

use crate::allocators::site::Stepping;

/// The kernel's method of stepping over this instruction.
///
/// The 5-byte no-op counts as emulated: Linux 6.18 even turns it into a call. Older kernels single-step it, like all multi-byte
/// no-ops, which costs time there but has no other effect.
pub(in crate::allocators) const fn stepping(instruction: &[u8]) -> Stepping {
    match instruction {
        // nop; the 5-byte nop; jmp and jcc rel8; jmp rel32; jcc rel32.
        [0x90]
        | [0x0f, 0x1f, 0x44, 0x00, 0x00]
        | [0xeb | 0x70..=0x7f, _]
        | [0xe9, _, _, _, _]
        | [0x0f, 0x80..=0x8f, _, _, _, _] => Stepping::EmulatedBranch,
        // push r64 of the old and the new registers; call rel32.
        [0x50..=0x57] | [0x41, 0x50..=0x57] | [0xe8, _, _, _, _] => Stepping::EmulatedPush,
        _ => Stepping::SingleStep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_and_no_ops_are_emulated() {
        for bytes in [
            &[0x90][..],                           // nop
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],       // nop DWORD PTR [rax+rax*1+0x0]
            &[0xeb, 0xfe],                         // jmp rel8
            &[0xe9, 0, 0, 0, 0],                   // jmp rel32
            &[0x74, 0x05],                         // je rel8
            &[0x0f, 0x84, 0xbf, 0x00, 0x00, 0x00], // je rel32
        ] {
            assert_eq!(stepping(bytes), Stepping::EmulatedBranch, "{bytes:02x?}");
        }
    }

    #[test]
    fn pushes_and_calls_are_emulated() {
        for bytes in [&[0x55][..], &[0x41, 0x54], &[0xe8, 0, 0, 0, 0]] {
            assert_eq!(stepping(bytes), Stepping::EmulatedPush, "{bytes:02x?}");
        }
    }

    #[test]
    fn what_the_kernel_steps_or_refuses_is_not_emulated() {
        for bytes in [
            &[0xf3, 0x0f, 0x1e, 0xfa][..], // endbr64
            &[0x48, 0x85, 0xff],           // test rdi,rdi
            &[0x66, 0x90],                 // xchg ax,ax: refused by older kernels
            &[0x66, 0xe9, 0, 0, 0, 0],     // jmp with an operand-size prefix
            &[0x2e, 0x74, 0x05],           // je with a branch hint
            &[0x66, 0x55],                 // push bp
            &[0x48, 0x55],                 // push rbp with a useless prefix
            &[0xe3, 0x05],                 // jrcxz
            &[0xff, 0xe0],                 // jmp rax
            &[0x6a, 0x01],                 // push 1
            &[],
        ] {
            assert_eq!(stepping(bytes), Stepping::SingleStep, "{bytes:02x?}");
        }
    }
}
