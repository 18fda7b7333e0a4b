//! Finishes stacks that the kernel side could not, from a copy of the thread's stack, by the rules of the kernel side's walk.
//!
//! Only words that the kernel side has hashed decide a walk: all stacks in a row have these in common. Where a walk needs another
//! word, more than the stack, or code that is not known, it ends and the stack keeps its status.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jjleak_common::stack::{InterpretedFrame, MAX_FRAMES, StackFrame, StackStatus};
use jjleak_common::unfinished::{PAGE_BYTES, Unfinished};
use jjleak_common::unwind::step::{
    MAX_FRAME_BYTES, WORD, interpreter, is_possible_cfa, is_word_address, signal_frame,
};
use jjleak_common::unwind::{Row, RowKind, SavedFp};

/// The code at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Code with a row, and its layer: see [`jjleak_common::unwind::Mapping::layer`].
    Known(Row, u16),
    /// A native method's wrapper in a JVM: the size of its frame in words, and its layer.
    Wrapper(u64, u16),
    /// A JVM's interpreter.
    Interpreter,
    /// Code in no file that cannot be unwound.
    Generated,
    /// Not known, or not for certain.
    Unknown,
}

/// An unfinished stack with the copy of its words.
#[derive(Debug, Clone)]
pub struct StackCopy {
    /// State of the walk.
    pub walk: Unfinished,
    /// Pages of the stack, from [`Unfinished::copied_at`] on; `None` for those that were not copied. Copies of a thread's stack have
    /// most of them in common.
    pub pages: Vec<Option<Arc<StackPage>>>,
    /// Words that the kernel side has hashed: a bit for each, in order.
    pub hashed: Vec<u64>,
}

/// A page of a stack, which counts as long as it exists.
#[derive(Debug)]
pub struct StackPage {
    bytes: [u8; StackCopy::PAGE_BYTES],
    count: Arc<AtomicUsize>,
}

impl StackPage {
    /// A page that counts in `count`.
    #[must_use]
    pub fn new(bytes: &[u8; StackCopy::PAGE_BYTES], count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self { bytes: *bytes, count: Arc::clone(count) }
    }

    /// Returns true if the page has this content.
    #[must_use]
    pub fn is(&self, bytes: &[u8; StackCopy::PAGE_BYTES]) -> bool {
        self.bytes == *bytes
    }
}

impl Drop for StackPage {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StackCopy {
    /// Size of a page.
    pub const PAGE_BYTES: usize = 4096;

    /// The word at an address; `None` if it was not copied.
    fn word(&self, at: u64) -> Option<Word> {
        let offset = usize::try_from(at.wrapping_sub(self.walk.copied_at)).ok()?;
        let page = self.pages.get(offset / Self::PAGE_BYTES)?.as_ref()?;
        let bytes = page.bytes[offset % Self::PAGE_BYTES..].first_chunk()?;
        Some(Word { value: u64::from_ne_bytes(*bytes), is_hashed: self.is_hashed(at) })
    }

    fn is_hashed(&self, at: u64) -> bool {
        let place = at.wrapping_sub(self.walk.copied_at) / WORD;
        let bits =
            usize::try_from(place / u64::from(u64::BITS)).ok().and_then(|index| self.hashed.get(index));
        // Bits below are left over from other stacks.
        at >= self.walk.stack_pointer.wrapping_sub(self.walk.base_saved)
            && bits.is_some_and(|bits| bits >> (place % u64::from(u64::BITS)) & 1 == 1)
    }
}

/// A copied word, or a register with its value.
#[derive(Debug, Clone, Copy)]
struct Word {
    value: u64,
    is_hashed: bool,
}

impl Word {
    /// The value, if all stacks in the row have it.
    fn hashed(self) -> Result<u64, End> {
        self.is_hashed.then_some(self.value).ok_or(End::OutOfReach)
    }
}

const _: () = assert!(StackCopy::PAGE_BYTES as u64 == PAGE_BYTES);

/// Result of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// All frames, leaf first.
    pub frames: Vec<StackFrame>,
    /// Status of the stack.
    pub status: StackStatus,
    /// True if the walk has ended at code that is not known.
    pub awaits_code: bool,
}

/// End of a walk.
#[derive(Debug, Clone, Copy)]
enum End {
    /// As the kernel side's.
    Final(StackStatus),
    /// At code that is not known.
    UnknownCode,
    /// The walk needs a word that was not copied or not hashed, or more than the stack.
    OutOfReach,
}

/// Result of a step: continue with the caller's frame, or end.
type Step = Result<(), End>;

struct Walk<'copy> {
    copy: &'copy StackCopy,
    instruction_pointer: u64,
    stack_pointer: u64,
    frame_pointer: Word,
    base_saved: u64,
    after_call: bool,
    unproven: bool,
    by_frame_pointer: bool,
    frames: Vec<StackFrame>,
}

/// Continues a walk behind these `frames`; `code` returns the code at an address.
pub fn finish(copy: &StackCopy, frames: &[StackFrame], mut code: impl FnMut(u64) -> Code) -> Finished {
    let start = copy.walk;
    let mut walk = Walk {
        copy,
        instruction_pointer: start.instruction_pointer,
        stack_pointer: start.stack_pointer,
        frame_pointer: Word { value: start.frame_pointer, is_hashed: start.frame_pointer_hashed != 0 },
        base_saved: start.base_saved,
        after_call: start.after_call != 0,
        unproven: start.unproven != 0,
        by_frame_pointer: start.by_frame_pointer != 0,
        frames: frames.to_vec(),
    };
    let end = loop {
        if let Err(end) = walk.advance(&mut code) {
            break end;
        }
    };
    let (status, awaits_code) = match end {
        End::Final(status) => (status, false),
        End::UnknownCode => (StackStatus::NoMapping, true),
        End::OutOfReach => (StackStatus::NoMapping, false),
    };
    Finished { frames: walk.frames, status, awaits_code }
}

impl Walk<'_> {
    /// Adds the current frame and continues with its caller.
    fn advance(&mut self, code: &mut impl FnMut(u64) -> Code) -> Step {
        let address = self.instruction_pointer.wrapping_sub(u64::from(self.after_call));
        let (row, layer) = match code(address) {
            Code::Known(row, layer) => (row, layer),
            Code::Wrapper(words, layer) => (self.row_of_wrapper(words)?, layer),
            Code::Interpreter => return self.leave_interpreted(),
            Code::Generated => return Err(End::Final(StackStatus::GeneratedCode)),
            Code::Unknown => return Err(End::UnknownCode),
        };
        if self.frames.len() >= MAX_FRAMES {
            return Err(End::Final(StackStatus::TooDeep));
        }
        let frame = StackFrame::new(self.instruction_pointer, layer);
        self.frames.push(frame.found_by_frame_pointer(self.by_frame_pointer.into()));
        let by_frame_pointer = row.is_by_frame_pointer();
        if row.kind() == RowKind::End as u64 {
            return Err(self.finished());
        }
        if row.kind() == RowKind::Signal as u64 {
            return self.leave_signal();
        }
        if by_frame_pointer {
            self.unproven = true;
            match self.frame_pointer {
                // At the root of a stack, the frame pointer is zero (System V ABI, x86-64).
                Word { value: 0, is_hashed: true } => return Err(self.finished()),
                // Another stack in the row may have another value.
                Word { value: 0, is_hashed: false } => return Err(End::OutOfReach),
                // It points to no frame.
                Word { is_hashed: false, .. } => return Err(End::Final(row.status_of_bad_frame())),
                Word { is_hashed: true, .. } => {}
            }
        }
        let cfa = self.canonical_frame_address(row)?;
        let is_possible = is_possible_cfa(cfa, self.stack_pointer);
        if !is_possible || by_frame_pointer && !self.is_on_stack(cfa)? {
            return Err(End::Final(row.status_of_bad_frame()));
        }
        let saved = row.saved();
        let frame_pointer = if by_frame_pointer || saved == SavedFp::AtFp as u64 {
            self.word(self.frame_pointer.hashed()?)?
        } else if saved == SavedFp::AtCfa as u64 {
            self.word(cfa.wrapping_add(row.fp_offset_bytes()))?
        } else {
            self.frame_pointer
        };
        let return_address = self.hashed_word(cfa.wrapping_sub(WORD))?;
        (self.frame_pointer, self.stack_pointer, self.instruction_pointer) =
            (frame_pointer, cfa, return_address);
        (self.after_call, self.by_frame_pointer) = (true, by_frame_pointer);
        self.base_saved = row.base_saved_bytes();
        if return_address != 0 {
            return Ok(());
        }
        // A function that could not return has no caller.
        Err(self.finished())
    }

    /// CFA of the current frame.
    fn canonical_frame_address(&self, row: Row) -> Result<u64, End> {
        let (kind, offset) = (row.kind(), row.offset_bytes());
        let is = |of: RowKind| kind == of as u64;
        if is(RowKind::Sp) {
            Ok(self.stack_pointer.wrapping_add(offset))
        } else if is(RowKind::Fp) {
            Ok(self.frame_pointer.hashed()?.wrapping_add(offset))
        } else if row.is_by_frame_pointer() {
            Ok(self.frame_pointer.hashed()?.wrapping_add(2 * WORD))
        } else if is(RowKind::Plt) {
            Ok(row.plt_cfa(self.instruction_pointer, self.stack_pointer))
        } else if is(RowKind::Deref) {
            let at = self.frame_pointer.hashed()?.wrapping_add(row.fp_offset_bytes());
            Ok(self.hashed_word(at)?.wrapping_add(offset))
        } else if is(RowKind::FarSp) {
            Ok(self.stack_pointer.wrapping_add(row.far_offset_bytes()))
        } else if is(RowKind::Base) && self.base_saved != 0 {
            // The stack pointer is the CFA of the called frame.
            let at = self.stack_pointer.wrapping_sub(self.base_saved);
            Ok(self.hashed_word(at)?.wrapping_add(offset))
        } else if is(RowKind::Go) {
            Err(End::OutOfReach)
        } else {
            Err(End::Final(StackStatus::Unsupported))
        }
    }

    /// Row of a native method's wrapper whose frame has this size. It may have moved the stack pointer slightly to align it; then the
    /// frame pointer identifies the frame.
    fn row_of_wrapper(&self, words: u64) -> Result<Row, End> {
        const ALIGNMENT: u64 = 16;
        let by_size = self.stack_pointer.wrapping_add(words * WORD);
        let by_frame_pointer = self.frame_pointer.value.wrapping_add(2 * WORD);
        let row = if by_frame_pointer.wrapping_sub(by_size) <= ALIGNMENT {
            Row::new(0, RowKind::Fp, 2, SavedFp::AtFp, 0)
        } else {
            Row::new(0, RowKind::Sp, words, SavedFp::AtCfa, -2)
        };
        // The value decides, so all stacks in the row must have it.
        self.frame_pointer.hashed()?;
        row.ok_or(End::Final(StackStatus::Unsupported))
    }

    /// Adds a frame of a JVM's interpreter and continues with its caller.
    fn leave_interpreted(&mut self) -> Step {
        if self.frames.len() >= MAX_FRAMES {
            return Err(End::Final(StackStatus::TooDeep));
        }
        let frame = self.frame_pointer.hashed()?;
        if frame.wrapping_sub(self.stack_pointer) >= MAX_FRAME_BYTES {
            return Err(End::Final(StackStatus::BadFrame));
        }
        let below = |offset: u64| self.hashed_word(frame.wrapping_sub(offset));
        let bytecode = below(interpreter::BYTECODE)?;
        let method = below(interpreter::METHOD)?;
        let sender = below(interpreter::SENDER_STACK_POINTER)?;
        if !InterpretedFrame::can_be(method) || !is_possible_cfa(sender, self.stack_pointer) {
            return Err(End::Final(StackStatus::BadFrame));
        }
        let (frame_pointer, return_address) =
            (self.word(frame)?, self.hashed_word(frame.wrapping_add(WORD))?);
        let interpreted = InterpretedFrame::pack(method, bytecode);
        self.frames.push(interpreted.found_by_frame_pointer(self.by_frame_pointer.into()));
        (self.frame_pointer, self.stack_pointer, self.instruction_pointer) =
            (frame_pointer, sender, return_address);
        (self.after_call, self.by_frame_pointer, self.base_saved) = (true, false, 0);
        Ok(())
    }

    /// Continues with the frame that a signal interrupted.
    fn leave_signal(&mut self) -> Step {
        let at = |register: u64| self.stack_pointer.wrapping_add(register);
        let frame_pointer = self.word(at(signal_frame::RBP))?;
        let stack_pointer = self.hashed_word(at(signal_frame::RSP))?;
        self.instruction_pointer = self.hashed_word(at(signal_frame::RIP))?;
        (self.frame_pointer, self.stack_pointer) = (frame_pointer, stack_pointer);
        (self.after_call, self.by_frame_pointer, self.base_saved) = (false, false, 0);
        Ok(())
    }

    /// The word at an address of the copy.
    fn word(&self, at: u64) -> Result<Word, End> {
        if !is_word_address(at) {
            return Err(End::Final(StackStatus::BadFrame));
        }
        self.copy.word(at).ok_or(End::OutOfReach)
    }

    /// The word at an address of the copy, if all stacks in the row have it.
    fn hashed_word(&self, at: u64) -> Result<u64, End> {
        self.word(at)?.hashed()
    }

    /// Returns true if an address is in the mapping of the stack. The kernel side's copy does not describe another stack, on which a
    /// signal may have interrupted the thread.
    fn is_on_stack(&self, address: u64) -> Result<bool, End> {
        let Unfinished { stack_begin, stack_end, .. } = self.copy.walk;
        if !(stack_begin..stack_end).contains(&self.stack_pointer) {
            return Err(End::OutOfReach);
        }
        Ok((stack_begin..=stack_end).contains(&address))
    }

    const fn finished(&self) -> End {
        End::Final(if self.unproven { StackStatus::FramePointers } else { StackStatus::Complete })
    }
}

#[cfg(test)]
mod tests;
