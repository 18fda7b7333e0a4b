//! Finishes stacks that the kernel side could not, from a copy of the thread's stack, by the rules of the kernel side's walk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jjleak_common::stack::{MAX_FRAMES, StackFrame, StackStatus};
use jjleak_common::unfinished::{PAGE_BYTES, Unfinished};
use jjleak_common::unwind::{Row, RowKind, SavedFp};

/// Maximum size of a frame, as in the kernel side's walk.
const MAX_FRAME_BYTES: u64 = 8 << 20;
/// Highest address of a word in user space, as in the kernel side's walk.
const LAST_ADDRESS: u64 = (1 << 47) - 8;
const WORD: u64 = 8;

/// The code at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Code of a file: its row and its layer, see [`jjleak_common::unwind::Mapping::layer`].
    Known(Row, u16),
    /// Code in no file.
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

    /// The word at an address, if it was copied.
    fn word(&self, at: u64) -> Option<u64> {
        let offset = usize::try_from(at.wrapping_sub(self.walk.copied_at)).ok()?;
        let page = self.pages.get(offset / Self::PAGE_BYTES)?.as_ref()?;
        let bytes = page.bytes[offset % Self::PAGE_BYTES..].first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    }
}

const _: () = assert!(StackCopy::PAGE_BYTES as u64 == PAGE_BYTES);

/// Result of a finished walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// All frames, leaf first.
    pub frames: Vec<StackFrame>,
    /// How the walk ended.
    pub status: StackStatus,
}

/// Result of a step: continue with the caller's frame, or end.
type Step = Result<(), StackStatus>;

struct Walk<'copy> {
    copy: &'copy StackCopy,
    instruction_pointer: u64,
    stack_pointer: u64,
    frame_pointer: u64,
    base_saved: u64,
    after_call: bool,
    unproven: bool,
    by_frame_pointer: bool,
    frames: Vec<StackFrame>,
}

/// Continues a walk behind these `frames`; `code` tells what is at an address. `None` if the copy does not hold a word that the
/// walk needs, or a frame needs more of the process than its stack: the stack stays as it is.
pub fn finish(
    copy: &StackCopy,
    frames: &[StackFrame],
    mut code: impl FnMut(u64) -> Code,
) -> Option<Finished> {
    let start = copy.walk;
    let mut walk = Walk {
        copy,
        instruction_pointer: start.instruction_pointer,
        stack_pointer: start.stack_pointer,
        frame_pointer: start.frame_pointer,
        base_saved: start.base_saved,
        after_call: start.after_call != 0,
        unproven: start.unproven != 0,
        by_frame_pointer: start.by_frame_pointer != 0,
        frames: frames.to_vec(),
    };
    let status = loop {
        match walk.advance(&mut code) {
            Ok(()) => {}
            Err(StackStatus::Fault | StackStatus::Unsupported) => return None,
            Err(status) => break status,
        }
    };
    Some(Finished { frames: walk.frames, status })
}

impl Walk<'_> {
    /// Adds the current frame and continues with its caller.
    fn advance(&mut self, code: &mut impl FnMut(u64) -> Code) -> Step {
        let address = self.instruction_pointer.wrapping_sub(u64::from(self.after_call));
        let (row, layer) = match code(address) {
            Code::Known(row, layer) => (row, layer),
            Code::Generated => return Err(StackStatus::GeneratedCode),
            Code::Unknown => return Err(StackStatus::NoMapping),
        };
        if self.frames.len() >= MAX_FRAMES {
            return Err(StackStatus::TooDeep);
        }
        let frame = StackFrame::new(self.instruction_pointer, layer);
        self.frames.push(frame.found_by_frame_pointer(self.by_frame_pointer.into()));
        let kind = row.kind();
        // Code without call frame information may keep frame pointers: they are tried, but are no proof.
        let by_frame_pointer = kind == RowKind::FramePointer as u64 || kind == RowKind::None as u64;
        if kind == RowKind::End as u64 {
            return Err(self.finished());
        }
        if kind == RowKind::Signal as u64 {
            return self.leave_signal();
        }
        if by_frame_pointer {
            self.unproven = true;
            if self.frame_pointer == 0 {
                // At the root of a stack, the frame pointer is zero (System V ABI, x86-64).
                return Err(self.finished());
            }
        }
        let cfa = self.canonical_frame_address(row)?;
        // The CFA is above all inner frames. An assumed frame pointer can point to any memory.
        let is_possible = cfa.is_multiple_of(WORD)
            && cfa.wrapping_sub(self.stack_pointer).wrapping_sub(1) < MAX_FRAME_BYTES;
        if !is_possible || by_frame_pointer && !self.is_on_stack(cfa) {
            return Err(if kind == RowKind::None as u64 {
                StackStatus::NoRow
            } else if by_frame_pointer {
                StackStatus::BrokenChain
            } else {
                StackStatus::BadFrame
            });
        }
        let saved = row.saved();
        let frame_pointer = if by_frame_pointer || saved == SavedFp::AtFp as u64 {
            self.word(self.frame_pointer)?
        } else if saved == SavedFp::AtCfa as u64 {
            self.word(cfa.wrapping_add(row.fp_offset_bytes()))?
        } else {
            self.frame_pointer
        };
        let return_address = self.word(cfa.wrapping_sub(WORD))?;
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
    fn canonical_frame_address(&self, row: Row) -> Result<u64, StackStatus> {
        let (kind, offset) = (row.kind(), row.offset_bytes());
        let is = |of: RowKind| kind == of as u64;
        if is(RowKind::Sp) {
            Ok(self.stack_pointer.wrapping_add(offset))
        } else if is(RowKind::Fp) {
            Ok(self.frame_pointer.wrapping_add(offset))
        } else if is(RowKind::FramePointer) || is(RowKind::None) {
            Ok(self.frame_pointer.wrapping_add(2 * WORD))
        } else if is(RowKind::Plt) {
            let pushed = if self.instruction_pointer & 15 >= offset >> 3 { WORD } else { 0 };
            Ok(self.stack_pointer.wrapping_add(WORD + pushed))
        } else if is(RowKind::Deref) {
            let at = self.frame_pointer.wrapping_add(row.fp_offset_bytes());
            Ok(self.word(at)?.wrapping_add(offset))
        } else if is(RowKind::FarSp) {
            Ok(self.stack_pointer.wrapping_add(row.far_offset_bytes()))
        } else if is(RowKind::Base) && self.base_saved != 0 {
            // The stack pointer is the CFA of the called frame.
            Ok(self.word(self.stack_pointer.wrapping_sub(self.base_saved))?.wrapping_add(offset))
        } else {
            Err(StackStatus::Unsupported)
        }
    }

    /// Continues with the frame that a signal interrupted; see the kernel side's walk for the layout.
    fn leave_signal(&mut self) -> Step {
        const RBP: u64 = 40 + 10 * 8;
        const RSP: u64 = 40 + 15 * 8;
        const RIP: u64 = 40 + 16 * 8;
        let frame = self.stack_pointer;
        let read = |at| self.word(frame.wrapping_add(at));
        (self.frame_pointer, self.stack_pointer, self.instruction_pointer) =
            (read(RBP)?, read(RSP)?, read(RIP)?);
        (self.after_call, self.by_frame_pointer, self.base_saved) = (false, false, 0);
        Ok(())
    }

    /// The word at an address of the copy.
    fn word(&self, at: u64) -> Result<u64, StackStatus> {
        if !at.is_multiple_of(WORD) || at > LAST_ADDRESS {
            return Err(StackStatus::BadFrame);
        }
        self.copy.word(at).ok_or(StackStatus::Fault)
    }

    fn is_on_stack(&self, address: u64) -> bool {
        let stack = self.copy.walk.stack_begin..=self.copy.walk.stack_end;
        stack.contains(&address)
    }

    const fn finished(&self) -> StackStatus {
        if self.unproven { StackStatus::FramePointers } else { StackStatus::Complete }
    }
}

#[cfg(test)]
mod tests;
