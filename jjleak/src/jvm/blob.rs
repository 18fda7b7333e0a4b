//! Blobs of machine code in the code cache.

use std::ops::Range;

use jjleak_common::jvm::id_in_frame;
use jjleak_common::unwind::{Row, RowKind, SavedFp, layer};

/// Machine code and its purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Address of its header.
    pub(super) at: u64,
    pub(super) size: u64,
    /// Address range of its code.
    pub code: Range<u64>,
    /// Kind of code.
    pub kind: BlobKind,
    /// HotSpot's name for it; of a stub, its purpose.
    pub name: String,
    /// Address of the compiled code's `Method`.
    pub(super) method: u64,
    pub(super) compile_id: u64,
    /// Size of its frames in words; 0 or less if they have none of their own.
    pub(super) frame_words: i32,
    /// Addresses to which the frames of discarded code return instead.
    pub(super) deopt_handlers: [Option<u64>; 2],
}

impl Blob {
    /// Returns whether the code is a method's: compiled, or the wrapper of a native one.
    #[must_use]
    pub const fn is_method(&self) -> bool {
        self.kind.is_method()
    }

    /// Compilation ID of a method; 0 for other code.
    #[must_use]
    pub fn compile_id(&self) -> u32 {
        let id = if self.is_method() { self.compile_id } else { 0 };
        u32::try_from(id).unwrap_or_default()
    }
}

/// How frames of generated code are unwound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JavaCode {
    /// By a row.
    By(Row),
    /// As a native method's wrapper: by the frame pointer if that is the frame's, otherwise by the size in words.
    Wrapper(u64),
    /// As the interpreter's.
    Interpreted,
}

impl Blob {
    /// How to unwind a frame with this instruction pointer, as the kernel side does; `None` if it takes memory that is not on the
    /// stack.
    #[must_use]
    pub fn unwinding(&self, instruction_pointer: u64) -> Option<JavaCode> {
        /// Place of the caller's frame pointer in a frame of fixed size, in words from the CFA.
        const SAVED_FP: i64 = -2;
        let words = u64::try_from(self.frame_words).unwrap_or_default();
        let of_size = || {
            let row = Row::new(0, RowKind::Sp, words, SavedFp::AtCfa, SAVED_FP);
            JavaCode::By(row.unwrap_or(Row::plain(0, RowKind::Unsupported)))
        };
        match self.kind {
            BlobKind::Compiled if self.deopt_handlers.contains(&Some(instruction_pointer)) => None,
            BlobKind::Native => Some(JavaCode::Wrapper(words)),
            BlobKind::Interpreter => Some(JavaCode::Interpreted),
            BlobKind::Continuation => None,
            BlobKind::Stub if words == 0 => Row::new(0, RowKind::Fp, 2, SavedFp::AtFp, 0).map(JavaCode::By),
            BlobKind::Compiled | BlobKind::Stub => Some(of_size()),
        }
    }

    /// Layer of its frames.
    #[must_use]
    pub fn layer(&self) -> u16 {
        layer::GENERATED | id_in_frame(self.compile_id())
    }
}

/// Kind of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobKind {
    /// A compiled method.
    Compiled,
    /// The wrapper that calls a native method from Java.
    Native,
    /// The interpreter.
    Interpreter,
    /// The stub that a virtual thread's frames return to while their callers are in the Java heap.
    Continuation,
    /// Any other code.
    Stub,
}

impl BlobKind {
    pub(super) const fn is_method(self) -> bool {
        matches!(self, Self::Compiled | Self::Native)
    }

    pub(super) fn of(name: &str) -> Self {
        match name {
            "nmethod" => Self::Compiled,
            "native nmethod" => Self::Native,
            "Interpreter" => Self::Interpreter,
            // The spelling differs by a space between JDK 21 and 25.
            name if name.starts_with("StubRoutines (continuation") => Self::Continuation,
            _ => Self::Stub,
        }
    }
}
