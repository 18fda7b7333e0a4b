//! From addresses to frames.
//!
//! In: a [`RawStack`], the [`ModuleTable`] of its process, and names of the code that it has generated: [`JavaNames`] of a
//! JVM's, [`JitNames`] of others. Out: [`Frame`]s with names, files and lines. Names
//! are looked up when a stack is first seen and kept, so that they outlive the process and the mapping.

mod demangle;
mod frame;
mod java;
mod jit;
mod native;
mod signal;
mod tail_calls;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jjleak_common::stack::{StackFrame, StackStatus};

use crate::collect::RawStack;
use crate::processes::{Module, ModuleTable};
use native::NativeSymbols;

pub use frame::{Frame, FrameKind};
pub use java::{JavaNames, KnownJava};
pub use jit::JitNames;

/// Names stacks and remembers them.
#[derive(Default)]
pub struct StackNames {
    native: NativeSymbols,
    /// By row: thousands are asked for at every look, one row after the other.
    known: Vec<Option<NamedStack>>,
    /// Frames of generated code, by row and word, of stacks that nobody has asked for yet.
    generated: HashMap<u32, GeneratedFrames>,
}

/// Frames by the words of a stack that they stand for.
type GeneratedFrames = HashMap<StackFrame, Arc<[Frame]>>;

/// A stack with names.
#[derive(Debug, Clone)]
pub struct NamedStack {
    /// How the walk ended.
    pub status: StackStatus,
    /// Frames, leaf first.
    pub frames: Arc<[Frame]>,
}

impl StackNames {
    /// Says which function the code at an offset of a file is in.
    pub fn set_function(&mut self, module: &Module, offset: u64, name: &str) {
        self.native.set_function(module, offset, name);
    }

    /// Names what is generated code in a stack now, for it can be gone when the stack is asked for: `name` tells the frames
    /// of a word of the stack. What has a name keeps it.
    pub fn keep_generated(
        &mut self,
        row: u32,
        stack: &RawStack,
        mut name: impl FnMut(StackFrame) -> Option<Arc<[Frame]>>,
    ) {
        let known = self.generated.entry(row).or_default();
        for frame in stack.frames.iter().map(|frame| frame.however_found()) {
            if !known.contains_key(&frame)
                && let Some(named) = name(frame)
            {
                known.insert(frame, named);
            }
        }
    }

    /// Whether a word of a stack has a name that was kept.
    #[must_use]
    pub fn has_kept(&self, row: u32, frame: StackFrame) -> bool {
        self.generated.get(&row).is_some_and(|known| known.contains_key(&frame.however_found()))
    }

    /// Whether a stack has been asked for, and has the names that it will have.
    #[must_use]
    pub fn is_named(&self, row: u32) -> bool {
        self.known(row).is_some()
    }

    /// The stack in a row of the kernel's table: read by `read` and named the first time it is asked for. A
    /// stack that cannot be read (not kept, or just being written) comes without frames and is asked for again.
    pub fn name(
        &mut self,
        row: u32,
        modules: &ModuleTable,
        read: impl FnOnce() -> Option<RawStack>,
    ) -> NamedStack {
        if let Some(known) = self.known(row) {
            return known.clone();
        }
        let Some(raw) = read() else { return NamedStack::lost() };
        let generated = self.generated.remove(&row).unwrap_or_default();
        let frames = self.native.frames(&raw, modules, &generated).into();
        let named = NamedStack { status: raw.status, frames };
        let index = row as usize;
        if index >= self.known.len() {
            self.known.resize(index + 1, None);
        }
        self.known[index] = Some(named.clone());
        named
    }

    fn known(&self, row: u32) -> Option<&NamedStack> {
        self.known.get(row as usize)?.as_ref()
    }

    /// Forgets rows that are free for other stacks.
    pub fn forget(&mut self, rows: &BTreeSet<u32>) {
        for row in rows {
            if let Some(known) = self.known.get_mut(*row as usize) {
                *known = None;
            }
        }
        self.generated.retain(|row, _| !rows.contains(row));
    }
}

impl NamedStack {
    fn lost() -> Self {
        Self { status: StackStatus::Lost, frames: Arc::from([]) }
    }
}
