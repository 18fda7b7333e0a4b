//! Rules of a step from a frame to its caller: the kernel side's walk applies them, and the user side's, which finishes stacks.

use super::{Row, RowKind};
use crate::stack::StackStatus;

/// Maximum size of a frame: the default stack limit.
pub const MAX_FRAME_BYTES: u64 = 8 << 20;

/// Highest address of a word in user space: memory above cannot be memory of the target that is not resident
/// (`Documentation/arch/x86/x86_64/mm.rst` in Linux; stacks are below 2^47 even with five levels of page tables).
pub const LAST_ADDRESS: u64 = (1 << 47) - 8;

/// Size of a word of the stack.
pub const WORD: u64 = 8;

/// Offsets of registers above the stack pointer of a frame that the kernel has pushed for a signal handler: `struct rt_sigframe`
/// (arch/x86/include/asm/sigframe.h) without its return address. It begins with `struct ucontext`, with the registers at offset 40
/// (arch/x86/include/uapi/asm/sigcontext.h).
pub mod signal_frame {
    /// Frame pointer.
    pub const RBP: u64 = 40 + 10 * 8;
    /// Stack pointer.
    pub const RSP: u64 = 40 + 15 * 8;
    /// Instruction pointer.
    pub const RIP: u64 = 40 + 16 * 8;
}

/// Offsets below the frame pointer in a frame of HotSpot's interpreter, in bytes (`src/hotspot/cpu/x86/frame_x86.hpp` in the JDK).
pub mod interpreter {
    /// Stack pointer of the caller: its arguments have become locals.
    pub const SENDER_STACK_POINTER: u64 = 8;
    /// The `Method`.
    pub const METHOD: u64 = 3 * 8;
    /// The first local variable, the outermost one.
    pub const LOCALS: u64 = 7 * 8;
    /// The current bytecode.
    pub const BYTECODE: u64 = 8 * 8;
}

/// Returns true if a word of the stack can be at this address.
#[inline(always)]
#[must_use]
pub const fn is_word_address(at: u64) -> bool {
    at & (WORD - 1) == 0 && at <= LAST_ADDRESS
}

/// Returns true if a frame with this stack pointer can have this CFA, which is above all inner frames.
#[inline(always)]
#[must_use]
pub const fn is_possible_cfa(cfa: u64, stack_pointer: u64) -> bool {
    cfa & (WORD - 1) == 0 && cfa.wrapping_sub(stack_pointer).wrapping_sub(1) < MAX_FRAME_BYTES
}

impl Row {
    /// Returns true if the frame's CFA is assumed to be above its frame pointer: code without call frame information may keep
    /// frame pointers. They are tried, but are no proof, and can point to any memory.
    #[inline(always)]
    #[must_use]
    pub const fn is_by_frame_pointer(self) -> bool {
        self.kind() == RowKind::FramePointer as u64 || self.kind() == RowKind::None as u64
    }

    /// For a [`RowKind::Plt`]: the CFA.
    #[inline(always)]
    #[must_use]
    pub const fn plt_cfa(self, instruction_pointer: u64, stack_pointer: u64) -> u64 {
        let pushed = if instruction_pointer & 15 >= self.offset_bytes() >> 3 { WORD } else { 0 };
        stack_pointer.wrapping_add(WORD + pushed)
    }

    /// Status of a stack that ends at a frame of this rule because its CFA is impossible.
    #[inline(always)]
    #[must_use]
    pub const fn status_of_bad_frame(self) -> StackStatus {
        if self.kind() == RowKind::None as u64 {
            StackStatus::NoRow
        } else if self.is_by_frame_pointer() {
            StackStatus::BrokenChain
        } else {
            StackStatus::BadFrame
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cfa_is_above_the_stack_pointer_and_not_far() {
        let at = 0x7fff_0000_0000;
        assert!(is_possible_cfa(at + 8, at) && is_possible_cfa(at + MAX_FRAME_BYTES, at));
        assert!(!is_possible_cfa(at, at) && !is_possible_cfa(at - 8, at) && !is_possible_cfa(at + 4, at));
        assert!(!is_possible_cfa(at + MAX_FRAME_BYTES + 8, at));
        assert!(is_word_address(LAST_ADDRESS) && !is_word_address(LAST_ADDRESS + 8) && !is_word_address(12));
    }

    #[test]
    fn an_entry_of_the_procedure_linkage_table_has_pushed_a_word_from_its_threshold_on() {
        let row = Row::new(0, RowKind::Plt, 11, super::super::SavedFp::Register, 0).unwrap();
        assert_eq!([0x100a, 0x100b].map(|ip| row.plt_cfa(ip, 0x7000)), [0x7008, 0x7010]);
    }

    #[test]
    fn only_rows_without_call_frame_information_go_by_the_frame_pointer() {
        let of = |kind| {
            let row = Row::plain(0, kind);
            (row.is_by_frame_pointer(), row.status_of_bad_frame())
        };
        assert_eq!(of(RowKind::None), (true, StackStatus::NoRow));
        assert_eq!(of(RowKind::FramePointer), (true, StackStatus::BrokenChain));
        assert_eq!(of(RowKind::Fp), (false, StackStatus::BadFrame));
    }
}
