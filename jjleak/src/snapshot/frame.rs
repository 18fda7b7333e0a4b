//! Stack frames.

use std::fmt;
use std::sync::Arc;

use super::Thread;

/// A frame that stacks have in common. Stacks of a profile refer to the same frames, so that each is stored once.
pub type SharedFrame = Arc<Frame>;

/// A symbolized frame. An inlined function is a frame of its own, with the address of the frame that it is inlined into.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Frame {
    /// Address in the process: the probe site in the first frame, return addresses in the others.
    pub address: u64,
    /// Demangled function name; empty if unknown.
    pub symbol: String,
    /// Path of the mapped file; empty if the address is in none.
    pub module: String,
    /// Build ID of the mapped file in hex; empty if there is none.
    pub build_id: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Source line; 0 if unknown.
    pub line: u32,
    /// Kind of code.
    pub kind: FrameKind,
    /// True if inlined into the next frame.
    pub inlined: bool,
    /// True if found by a frame pointer: functions that do not maintain one can be missing between this frame and the previous
    /// one.
    pub by_frame_pointer: bool,
    /// True if not on the stack: the function ended with a tail call of the previous frame's function. Its code proves that it
    /// was called.
    pub tail_call: bool,
}

impl Frame {
    /// The outermost frame, which represents the thread of the stack.
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

    /// The innermost frame, which represents memory of this use.
    #[must_use]
    pub fn of_memory(name: String) -> Self {
        Self { symbol: name, kind: FrameKind::Memory, ..Self::default() }
    }

    /// The innermost frame, which represents objects of this Java class. Its loader may stand behind it, in brackets.
    #[must_use]
    pub fn of_class(name: String) -> Self {
        Self { symbol: name, kind: FrameKind::Class, ..Self::default() }
    }

    /// The Java class whose objects the frame represents, without its loader.
    #[must_use]
    pub fn class(&self) -> Option<&str> {
        let class = self.symbol.split_once(" [").map_or(self.symbol.as_str(), |(class, _)| class);
        (self.kind == FrameKind::Class).then_some(class)
    }

    /// The thread, if the frame represents one.
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
    /// Formats as `worker (tid 42)`, or `worker (tid 42, no. 2)` if successive threads had the same number.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "thread" } else { &self.name };
        match (self.number, self.nth) {
            (0, _) => formatter.write_str(name),
            (number, 0 | 1) => write!(formatter, "{name} (tid {number})"),
            (number, nth) => write!(formatter, "{name} (tid {number}, no. {nth})"),
        }
    }
}

/// Kind of code of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum FrameKind {
    /// Machine code of C, C++, Rust and the like, and code generated at run time, except by a JVM.
    Native,
    /// A Java method.
    Java,
    /// A Java method inlined by the JIT compiler.
    JavaInlined,
    /// The JVM itself (libjvm).
    Jvm,
    /// Code that the JVM generated for itself: interpreter, stubs.
    JvmGenerated,
    /// The kernel.
    Kernel,
    /// Unknown.
    #[default]
    Unknown,
    /// No code of the program: the kernel called a signal handler here, and the next frame was interrupted.
    Signal,
    /// No code: the frame represents the memory that the stack touched, see [`Frame::of_memory`].
    Memory,
    /// No code: the frame represents Java objects of a class, see [`Frame::of_class`].
    Class,
    /// No code: the frame represents the thread of the stack, see [`Frame::of_thread`].
    Thread,
}

impl FrameKind {
    /// All kinds, in the order of legends.
    pub const ALL: [Self; 11] = [
        Self::Native,
        Self::Java,
        Self::JavaInlined,
        Self::Jvm,
        Self::JvmGenerated,
        Self::Kernel,
        Self::Unknown,
        Self::Signal,
        Self::Memory,
        Self::Class,
        Self::Thread,
    ];

    /// Name in JSON.
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
            Self::Memory => "memory",
            Self::Class => "class",
            Self::Thread => "thread",
        }
    }
}
