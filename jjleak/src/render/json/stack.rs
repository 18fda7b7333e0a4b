//! A stack of a report.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{TotalsDocument, milliseconds};
use crate::profile::{Block, Frame, FrameKind, FrameNumbers, Frames, SharedFrame, StackProfile, Thread};

/// Allocations of a stack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackDocument<F = Arc<FrameDocument>> {
    /// Identity of the stack: 16 hexadecimal digits.
    pub id: String,
    /// Live memory.
    pub live: TotalsDocument,
    /// Memory allocated since accounting began.
    pub allocated: TotalsDocument,
    /// Standard errors of `live`; absent if it is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_error: Option<TotalsDocument>,
    /// Change of live bytes since the previous report.
    #[serde(default)]
    pub growth_bytes: i64,
    /// The largest live blocks, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<Vec<AllocationDocument>>,
    /// Age of the oldest live block in milliseconds; 0 if there is none.
    pub oldest_ms: u64,
    /// Age of the newest live block in milliseconds; 0 if there is none.
    pub newest_ms: u64,
    /// End of the stack walk: a name of [`jjleak_common::stack::StackStatus`].
    pub status: String,
    /// The allocating thread; absent if threads are not distinguished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<ThreadDocument>,
    /// Frames, leaf first, in JSON as indices of the document's `frames`; the first is the allocation function.
    pub frames: Vec<F>,
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadDocument {
    /// Thread ID (TID).
    pub id: u32,
    /// Last known name.
    pub name: String,
    /// Position among the process's successive threads with this ID; absent for the first.
    #[serde(default = "first", skip_serializing_if = "is_first")]
    pub nth: u32,
}

const fn first() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_first(nth: &u32) -> bool {
    *nth <= 1
}

/// A live block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationDocument {
    /// Address: `0x` and hexadecimal digits.
    pub address: String,
    /// Requested bytes.
    pub size: u64,
    /// Age in milliseconds.
    pub age_ms: u64,
}

/// A frame; unknown fields are empty or 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameDocument {
    /// Address in the process: `0x` and hexadecimal digits.
    pub address: String,
    /// Demangled function name.
    pub symbol: String,
    /// Path of the mapped file.
    pub module: String,
    /// Build ID of the mapped file, hexadecimal.
    pub build_id: String,
    /// Source file.
    pub file: String,
    /// Source line.
    pub line: u32,
    /// A name of [`crate::profile::FrameKind`].
    pub kind: String,
    /// True if inlined into the next frame.
    pub inlined: bool,
    /// True if found by a frame pointer, which is no proof; absent if found by call frame information.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_frame_pointer: bool,
    /// True if not on the stack: the function ended with a tail call of the previous frame's function; absent if it is on the
    /// stack.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tail_call: bool,
}

impl StackDocument<u32> {
    pub(super) fn new(stack: &StackProfile, with_blocks: bool, numbers: &FrameNumbers<'_>) -> Self {
        Self {
            id: format!("{:016x}", stack.id),
            live: stack.live.into(),
            allocated: stack.allocated.into(),
            live_error: stack.live_error.totals().map(Into::into),
            growth_bytes: stack.details.growth,
            allocations: with_blocks.then(|| stack.details.blocks.iter().map(Into::into).collect()),
            oldest_ms: stack.details.ages.map_or(0, |ages| milliseconds(ages.oldest)),
            newest_ms: stack.details.ages.map_or(0, |ages| milliseconds(ages.newest)),
            status: stack.status.name().to_owned(),
            thread: stack.thread().map(Into::into),
            frames: code(&stack.frames).map(|frame| numbers.number(frame)).collect(),
        }
    }

    /// The stack with the frames that `frame` returns for its indices.
    pub(super) fn resolved<E>(
        self,
        frame: impl FnMut(u32) -> Result<Arc<FrameDocument>, E>,
    ) -> Result<StackDocument, E> {
        let Self { id, live, allocated, live_error, growth_bytes, allocations, oldest_ms, .. } = self;
        let frames = self.frames.into_iter().map(frame).collect::<Result<_, _>>()?;
        Ok(StackDocument {
            id,
            live,
            allocated,
            live_error,
            growth_bytes,
            allocations,
            oldest_ms,
            newest_ms: self.newest_ms,
            status: self.status,
            thread: self.thread,
            frames,
        })
    }
}

/// All frames but the one that represents the thread.
pub(super) fn code(frames: &Frames) -> impl Iterator<Item = &SharedFrame> {
    frames.iter().filter(|frame| frame.kind != FrameKind::Thread)
}

impl From<&Block> for AllocationDocument {
    fn from(&Block { address, size, age }: &Block) -> Self {
        Self { address: format!("{address:#x}"), size, age_ms: milliseconds(age) }
    }
}

impl From<&Frame> for FrameDocument {
    fn from(frame: &Frame) -> Self {
        Self {
            address: format!("{:#x}", frame.address),
            symbol: frame.symbol.clone(),
            module: frame.module.clone(),
            build_id: frame.build_id.clone(),
            file: frame.file.clone(),
            line: frame.line,
            kind: frame.kind.name().to_owned(),
            inlined: frame.inlined,
            by_frame_pointer: frame.by_frame_pointer,
            tail_call: frame.tail_call,
        }
    }
}

impl From<Thread> for ThreadDocument {
    fn from(Thread { number, name, nth }: Thread) -> Self {
        Self { id: number, name, nth }
    }
}
