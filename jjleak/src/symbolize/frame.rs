//! Frames: what an address means.

use std::fmt;

use crate::collect::Thread;

/// One symbolized frame. An inlined function is a frame of its own with the address of the frame it is
/// inlined in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Frame {
    /// Address in the process: of the probe site in the first frame, return addresses after it.
    pub address: u64,
    /// Demangled function name; empty when unknown.
    pub symbol: String,
    /// Path of the mapped file; empty when the address is in none.
    pub module: String,
    /// Build ID of the mapped file in hex; empty when it has none.
    pub build_id: String,
    /// Source file; empty when unknown.
    pub file: String,
    /// Source line; 0 when unknown.
    pub line: u32,
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Inlined into the next frame.
    pub inlined: bool,
    /// A frame pointer led here: code that keeps none can be missing between this frame and the one before.
    pub by_frame_pointer: bool,
    /// Not on the stack: the function has ended with a jump to the one in front of it. Code proves that it was called.
    pub tail_call: bool,
}

impl Frame {
    /// The frame that stands for the thread whose stack it is: outside of all code.
    #[must_use]
    pub fn of_thread(thread: &Thread) -> Self {
        Self {
            address: thread.number.into(),
            symbol: thread.name.clone(),
            line: thread.nth,
            kind: FrameKind::Thread,
            ..Self::default()
        }
    }

    /// The thread that it stands for, if it does.
    #[must_use]
    pub fn thread(&self) -> Option<Thread> {
        (self.kind == FrameKind::Thread).then(|| Thread {
            number: u32::try_from(self.address).unwrap_or_default(),
            name: self.symbol.clone(),
            nth: self.line,
        })
    }
}

impl fmt::Display for Thread {
    /// `worker (tid 42)`; of a number that threads have had one after the other, `worker (tid 42, no. 2)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "thread" } else { &self.name };
        match (self.number, self.nth) {
            (0, _) => formatter.write_str(name),
            (number, 0 | 1) => write!(formatter, "{name} (tid {number})"),
            (number, nth) => write!(formatter, "{name} (tid {number}, no. {nth})"),
        }
    }
}

/// What kind of code a frame is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum FrameKind {
    /// Machine code: C, C++, Rust and the like, and what a compiler other than a JVM's generates while the program runs.
    Native,
    /// A Java method.
    Java,
    /// A Java method inlined by the JIT compiler.
    JavaInlined,
    /// The JVM itself (libjvm).
    Jvm,
    /// Code the JVM generated for itself: interpreter, stubs.
    JvmGenerated,
    /// The kernel.
    Kernel,
    /// Nothing is known about the address.
    #[default]
    Unknown,
    /// None of the program's: the kernel called a signal handler here, and the next frame is what it interrupted.
    Signal,
    /// None: the frame stands for the thread that the stack is of, see [`Frame::of_thread`].
    Thread,
}

impl FrameKind {
    /// All kinds, in the order legends list them.
    pub const ALL: [Self; 9] = [
        Self::Native,
        Self::Java,
        Self::JavaInlined,
        Self::Jvm,
        Self::JvmGenerated,
        Self::Kernel,
        Self::Unknown,
        Self::Signal,
        Self::Thread,
    ];

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Java => "java",
            Self::JavaInlined => "java_inlined",
            Self::Jvm => "jvm",
            Self::JvmGenerated => "jvm_generated",
            Self::Kernel => "kernel",
            Self::Unknown => "unknown",
            Self::Signal => "signal",
            Self::Thread => "thread",
        }
    }
}
