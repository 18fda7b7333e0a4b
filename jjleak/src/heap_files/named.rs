//! Files whose stacks have names: what they have in common.

use std::io::BufRead;
use std::time::Duration;

use super::jfr::{self, JfrEvents};
use super::lines::Lines;
use super::{Damage, Error, MAX_ADDRESSES, collapsed, heaptrack};

/// Stacks with names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NamedFile {
    /// Frames, each of which is that of many stacks.
    pub frames: Vec<NamedFrame>,
    /// All stacks.
    pub stacks: Vec<NamedStack>,
    /// Command line of the program; empty if the file does not have it.
    pub command: String,
    /// Time that the program ran; zero if the file does not have it.
    pub duration: Duration,
    /// The format, as a remark names it.
    pub format: NamedFormat,
    /// Lines that could not be read and are left out.
    pub damage: Option<Damage>,
    /// Number of frames in all stacks.
    total: u32,
    /// Memory of all frames, in bytes.
    frame_bytes: usize,
}

/// Maximum memory of the frames: a file can have a long name once, and refer to it in each line. A large program has some 100,000 frames
/// of 200 bytes.
const MAX_FRAME_BYTES: usize = 256 << 20;

/// Formats of files with names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NamedFormat {
    /// Stacks with a number, as for flame graphs.
    #[default]
    Collapsed,
    /// Files of heaptrack.
    Heaptrack,
    /// Recordings of Java Flight Recorder.
    Jfr(JfrEvents),
}

/// Kind of code of a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum NamedKind {
    /// The file does not say.
    #[default]
    Unsaid,
    /// A function.
    Native,
    /// A Java method.
    Java,
    /// A Java method inlined into the next frame.
    JavaInlined,
    /// A function of the kernel.
    Kernel,
    /// No code: the class of the objects.
    Class,
}

/// A frame.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct NamedFrame {
    /// Name of the function; may be empty.
    pub function: String,
    /// Source file; may be empty.
    pub file: String,
    /// Source line; 0 if unknown.
    pub line: u32,
    /// Path of the mapped file; may be empty.
    pub module: String,
    /// Address in the process; 0 if unknown.
    pub address: u64,
    /// True if the next frame is the function that it is inlined into.
    pub inlined: bool,
    /// Kind of code.
    pub kind: NamedKind,
}

/// A stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedStack {
    /// Indices of its frames, leaf first.
    pub frames: Vec<u32>,
    /// Memory in use.
    pub live: Amount,
    /// Memory allocated in all; `None` if the file does not have it.
    pub allocated: Option<Amount>,
}

/// Memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes.
    pub bytes: u64,
    /// Number of blocks; 0 if the file does not have it.
    pub objects: u64,
}

impl NamedFile {
    pub(super) fn of(format: NamedFormat) -> Self {
        Self { format, ..Self::default() }
    }

    /// Index of a new frame.
    pub(super) fn add_frame(&mut self, frame: NamedFrame) -> Result<u32, Error> {
        let index = u32::try_from(self.frames.len()).map_err(|_| Error::TooLarge)?;
        let text = frame.function.len() + frame.file.len() + frame.module.len();
        self.frame_bytes += size_of::<NamedFrame>() + text;
        if self.frame_bytes > MAX_FRAME_BYTES {
            return Err(Error::FrameBytes(MAX_FRAME_BYTES >> 20));
        }
        self.frames.push(frame);
        Ok(index)
    }

    pub(super) fn add_stack(&mut self, stack: NamedStack) -> Result<(), Error> {
        let count = u32::try_from(stack.frames.len()).unwrap_or(u32::MAX);
        self.total = self.total.saturating_add(count);
        if self.total > MAX_ADDRESSES {
            return Err(Error::TooLarge);
        }
        self.stacks.push(stack);
        Ok(())
    }

    pub(super) fn damaged(&mut self, line: u64, reason: &'static str) {
        self.damage.get_or_insert(Damage { lines: 0, first: line, reason }).lines += 1;
    }
}

/// Returns true if a file that begins with these bytes has stacks with names.
#[must_use]
pub fn is_named_file(begin: &[u8]) -> bool {
    heaptrack::is_heaptrack(begin) || jfr::is_recording(begin) || collapsed::is_collapsed(begin)
}

/// Reads a file whose stacks have names. Damaged lines are left out and counted.
pub fn read_named(mut file: impl BufRead) -> Result<NamedFile, Error> {
    let begin = file.fill_buf()?;
    if jfr::is_recording(begin) {
        return jfr::read(file);
    }
    let is_heaptrack = heaptrack::is_heaptrack(begin);
    let mut lines = Lines::new(file);
    if is_heaptrack { heaptrack::read(&mut lines) } else { collapsed::read(&mut lines) }
}
