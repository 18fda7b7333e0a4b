//! Position of the caller's frame, at an instruction.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use jjleak_common::unwind::{Row, RowKind, SavedFp};

use crate::unwind::start::clears_frame_pointer;

const WORD: i64 = 8;

/// The CFA and the caller's frame pointer, as far as they are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// Nobody has called this code: the kernel has started it, as a program or as a thread.
    Outermost,
    Called(Called),
}

/// Distances in bytes, from the register or the place up to the CFA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Called {
    /// From the stack pointer; `None` if it was aligned, or set to something unknown.
    from_stack_pointer: Option<i64>,
    /// From the frame pointer, if it was set to a place in this frame.
    from_frame_pointer: Option<i64>,
    /// From the word that has the caller's frame pointer.
    saved: Option<i64>,
    /// True if the register still has the caller's.
    is_intact: bool,
}

impl Frame {
    /// At the first instruction of a function.
    pub(super) const ENTRY: Self = Self::Called(Called {
        from_stack_pointer: Some(WORD),
        from_frame_pointer: None,
        saved: None,
        is_intact: true,
    });

    /// Returns true if a return, or a jump to another function, is possible here: the stack pointer is at the return address, and
    /// the caller has its frame pointer.
    pub(super) const fn can_leave(&self) -> bool {
        matches!(self, Self::Called(Called { from_stack_pointer: Some(WORD), is_intact: true, .. }))
    }

    /// Returns true if two ways to an instruction agree. Where the caller's frame pointer is saved, it does not matter whether the
    /// register still has it.
    pub(super) fn agrees(self, other: Self) -> bool {
        let comparable = |frame: Self| match frame {
            Self::Called(called) => {
                Self::Called(Called { is_intact: called.is_intact || called.saved.is_some(), ..called })
            }
            Self::Outermost => frame,
        };
        comparable(self) == comparable(other)
    }

    /// The row for an instruction.
    pub(super) fn row(&self, address: u32) -> Row {
        match self {
            Self::Outermost => Row::plain(address, RowKind::End),
            Self::Called(called) => called.row(address).unwrap_or_else(|| Row::plain(address, RowKind::None)),
        }
    }

    /// The frame after an instruction that is neither a jump nor a call.
    pub(super) fn step(self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Self {
        let Self::Called(mut called) = self else { return self };
        // By the ABI, the outermost frame has a frame pointer of 0. A function would have to save the caller's first.
        if called.is_intact && called.saved.is_none() && clears_frame_pointer(instruction) {
            return Self::Outermost;
        }
        called.step(instruction, info);
        Self::Called(called)
    }
}

impl Called {
    fn row(&self, address: u32) -> Option<Row> {
        let words = |bytes: i64| (bytes % WORD == 0).then_some(bytes / WORD);
        let (saved, saved_at) = match self.saved {
            Some(distance) => (SavedFp::AtCfa, -words(distance)?),
            None if self.is_intact => (SavedFp::Register, 0),
            None => return None,
        };
        if let Some(offset) = self.from_stack_pointer {
            let offset = u64::try_from(words(offset)?).ok().filter(|words| *words > 0)?;
            return if offset > Row::MAX_OFFSET_WORDS {
                Row::far(address, offset, saved, saved_at)
            } else {
                Row::new(address, RowKind::Sp, offset, saved, saved_at)
            };
        }
        let offset = u64::try_from(words(self.from_frame_pointer?)?).ok()?;
        Row::new(address, RowKind::Fp, offset, saved, saved_at)
    }

    fn step(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        let (target, source) = (instruction.op0_register(), instruction.op1_register());
        match (instruction.mnemonic(), target) {
            (Mnemonic::Push, _) => {
                self.move_stack_pointer(instruction);
                if target == Register::RBP && self.is_intact && self.saved.is_none() {
                    self.saved = self.from_stack_pointer;
                }
            }
            (Mnemonic::Pop, Register::RSP) => self.from_stack_pointer = None,
            (Mnemonic::Pop, Register::RBP) => {
                self.load_frame_pointer(self.from_stack_pointer);
                self.move_stack_pointer(instruction);
            }
            (Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq, _) => self.move_stack_pointer(instruction),
            (Mnemonic::Leave, _) => {
                self.from_stack_pointer = self.from_frame_pointer;
                self.load_frame_pointer(self.from_stack_pointer);
                self.add(Some(-WORD));
            }
            (Mnemonic::Sub, Register::RSP) => self.add(constant(instruction)),
            (Mnemonic::Add, Register::RSP) => self.add(constant(instruction).and_then(i64::checked_neg)),
            (Mnemonic::Lea, Register::RSP) => self.set_stack_pointer(self.distance(instruction)),
            (Mnemonic::Lea, Register::RBP) => self.set_frame_pointer(self.distance(instruction)),
            (Mnemonic::Mov, Register::RBP) if source == Register::RSP => {
                self.set_frame_pointer(self.from_stack_pointer);
            }
            (Mnemonic::Mov, Register::RSP) if source == Register::RBP => {
                self.set_stack_pointer(self.from_frame_pointer);
            }
            (Mnemonic::Mov, Register::RBP) if instruction.op1_kind() == OpKind::Memory => {
                self.load_frame_pointer(self.distance(instruction));
            }
            (Mnemonic::Mov, _) if source == Register::RBP && instruction.op0_kind() == OpKind::Memory => {
                if self.is_intact && self.saved.is_none() {
                    self.saved = self.distance(instruction);
                }
            }
            _ => self.forget_written(instruction, info),
        }
    }

    /// Moves the stack pointer as a push or pop does.
    fn move_stack_pointer(&mut self, instruction: &Instruction) {
        self.add(i64::from(instruction.stack_pointer_increment()).checked_neg());
    }

    fn add(&mut self, distance: Option<i64>) {
        self.set_stack_pointer(
            self.from_stack_pointer.zip(distance).and_then(|(from, by)| from.checked_add(by)),
        );
    }

    fn set_stack_pointer(&mut self, distance: Option<i64>) {
        self.from_stack_pointer = distance;
        // A saved frame pointer below the stack pointer is no longer there.
        if distance.is_some_and(|distance| self.saved.is_some_and(|saved| saved > distance)) {
            self.saved = None;
        }
    }

    fn set_frame_pointer(&mut self, distance: Option<i64>) {
        self.from_frame_pointer = distance;
        self.is_intact = false;
    }

    /// The frame pointer is read from the word at a distance from the CFA.
    fn load_frame_pointer(&mut self, distance: Option<i64>) {
        self.is_intact = distance.is_some() && distance == self.saved;
        self.from_frame_pointer = None;
    }

    /// Distance from a memory operand's address up to the CFA; `None` unless it is relative to the stack or frame pointer alone.
    fn distance(&self, instruction: &Instruction) -> Option<i64> {
        if instruction.memory_index() != Register::None {
            return None;
        }
        let base = match instruction.memory_base() {
            Register::RSP => self.from_stack_pointer,
            Register::RBP => self.from_frame_pointer,
            _ => None,
        };
        base?.checked_sub(instruction.memory_displacement64().cast_signed())
    }

    fn forget_written(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) {
        for used in info.info(instruction).used_registers() {
            if matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess) {
                continue;
            }
            match used.register().full_register() {
                Register::RSP => self.from_stack_pointer = None,
                Register::RBP => self.set_frame_pointer(None),
                _ => {}
            }
        }
    }
}

/// The constant operand of an addition or subtraction.
fn constant(instruction: &Instruction) -> Option<i64> {
    let is_constant = instruction.op_count() == 2
        && matches!(
            instruction.op1_kind(),
            OpKind::Immediate8to64 | OpKind::Immediate32to64 | OpKind::Immediate64
        );
    is_constant.then(|| instruction.immediate(1).cast_signed())
}
