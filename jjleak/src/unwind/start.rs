//! Finds the code at which the kernel starts a program, if it has no call frame information: the entry point of glibc's dynamic
//! loader, and musl's `_start`. It has no caller, and therefore ends stacks.

use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};

/// Maximum number of bytes of start-up code; glibc's loader has 61, musl's 22.
pub(super) const MAX_BYTES: usize = 128;

/// The start-up code in `code`, which is at `address`, the entry point in the ELF header; `None` if it could be a function
/// nevertheless.
///
/// A program finds its arguments at the stack pointer (System V ABI, "Initial Process Stack"), and has no caller whose frame
/// pointer it must preserve. A function has its return address at the stack pointer, and must preserve the frame pointer. Code is
/// therefore not a function if, before it pushes or calls anything, it passes the stack pointer as its first argument or clears
/// the frame pointer.
pub(super) fn startup(code: &[u8], address: u64) -> Option<Range<u64>> {
    let code = &code[..code.len().min(MAX_BYTES)];
    let mut decoder = Decoder::with_ip(u64::BITS, code, address, DecoderOptions::NONE);
    let mut info = InstructionInfoFactory::new();
    let (mut is_start, mut can_tell) = (false, true);
    // Functions that it calls may follow it directly, and have no call frame information either.
    let mut end = address + code.len() as u64;
    while decoder.can_decode() && decoder.ip() < end {
        let instruction = decoder.decode();
        is_start |= can_tell && (takes_stack_pointer(&instruction) || clears_frame_pointer(&instruction));
        let used = info.info(&instruction);
        can_tell &= !used.used_registers().iter().any(|used| {
            used.register().full_register() == Register::RSP && used.access() != iced_x86::OpAccess::Read
        });
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::IndirectCall => {}
            FlowControl::Call => {
                let target = instruction.near_branch_target();
                if (instruction.next_ip()..end).contains(&target) {
                    end = target;
                }
            }
            _ => {
                end = end.min(instruction.next_ip());
                break;
            }
        }
    }
    is_start.then_some(address..end.min(decoder.ip()))
}

/// `mov %rsp, %rdi`.
fn takes_stack_pointer(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Mov_rm64_r64 | Code::Mov_r64_rm64)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && (instruction.op0_register(), instruction.op1_register()) == (Register::RDI, Register::RSP)
}

/// `xor %ebp, %ebp`.
pub(super) fn clears_frame_pointer(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Xor
        && instruction.op0_register().full_register() == Register::RBP
        && instruction.op0_register() == instruction.op1_register()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// glibc's loader, with its instructions after the second call: `lea`, `mov %r13, %rsp`, `jmp *%r12`.
    const GLIBC: &[u8] = &[
        0x48, 0x89, 0xe7, 0xe8, 0xf8, 0x0b, 0, 0, 0x49, 0x89, 0xc4, 0x48, 0x8b, 0x14, 0x24, 0x48, 0x89, 0xd6,
        0x49, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xf0, 0x31, 0xed, 0xe8, 0x9e, 0xfe, 0xff, 0xff, 0x4c, 0x89, 0xec,
        0x41, 0xff, 0xe4, 0x0f, 0x1f, 0x00,
    ];
    /// musl's: `xor %rbp, %rbp; mov %rsp, %rdi; and $-16, %rsp; call` of the function that follows at +16.
    const MUSL: &[u8] = &[
        0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x83, 0xe4, 0xf0, 0xe8, 1, 0, 0, 0, 0x90, 0x55, 0x31, 0xc0,
        0xc3,
    ];

    #[test]
    fn startup_code_ends_where_it_jumps_to_the_program() {
        assert_eq!(startup(GLIBC, 0x1000), Some(0x1000..0x1000 + 38));
    }

    #[test]
    fn startup_code_ends_where_a_function_begins_that_it_calls() {
        assert_eq!(startup(MUSL, 0x1000), Some(0x1000..0x1010));
    }

    #[test]
    fn a_function_is_no_startup_code() {
        // push %rbp; mov %rsp, %rdi; xor %ebp, %ebp; ret
        assert_eq!(startup(&[0x55, 0x48, 0x89, 0xe7, 0x31, 0xed, 0xc3], 0x1000), None);
        // crtstuff's deregister_tm_clones: lea; cmp; je; ret
        assert_eq!(
            startup(&[0x48, 0x8d, 0x3d, 0, 0, 0, 0, 0x48, 0x39, 0xf8, 0x74, 0x00, 0xc3], 0x1000),
            None
        );
        assert_eq!(startup(&[], 0x1000), None);
    }
}
