//! Blobs of machine code in the code cache.

use std::ops::Range;

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
