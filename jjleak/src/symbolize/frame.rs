//! Frames: what an address means.

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
}

impl FrameKind {
    /// All kinds, in the order legends list them.
    pub const ALL: [Self; 7] = [
        Self::Native,
        Self::Java,
        Self::JavaInlined,
        Self::Jvm,
        Self::JvmGenerated,
        Self::Kernel,
        Self::Unknown,
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
        }
    }
}
