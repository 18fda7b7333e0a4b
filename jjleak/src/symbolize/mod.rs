//! Converts addresses to frames.
//!
//! In: a [`RawStack`], the [`ModuleTable`] of its process, and names of its generated code: [`JavaNames`] for a JVM's,
//! [`JitNames`] for others. Out: [`crate::snapshot::Frame`]s with names, files and lines. Names are looked up when a
//! stack is first seen and then kept, so that they outlive the process and the mapping.

pub mod child;
mod demangle;
mod evicted;
mod frame_set;
mod java;
mod jit;
mod native;
mod sampler;
mod signal;
mod tail_calls;

use std::collections::BTreeSet;
use std::sync::Arc;

use jjleak_common::stack::{StackFrame, StackStatus};

use crate::fast_map::{FastMap, fast_map};
use crate::processes::{Module, ModuleTable};
use crate::snapshot::{Frame, Frames, NamedStack, RawStack, SharedFrame};
use frame_set::FrameSet;
use native::{KnownWords, NativeSymbols, WithGenerated};

pub use child::Symbolizer;
pub use evicted::{Evicted, EvictedStacks};
pub use java::{JavaNames, KnownJava};
pub use jit::{JitNames, generated};

/// Symbolizes stacks and caches the result.
pub struct StackNames {
    native: NativeSymbols,
    /// Stacks by row. A vector, because thousands of consecutive rows are read per snapshot.
    known: Vec<Option<NamedStack>>,
    /// Frames of generated code, by row and word, for stacks not symbolized yet.
    generated: FastMap<u32, GeneratedFrames>,
    /// The distinct frames of all stacks.
    distinct: FrameSet,
}

/// Frames by word of the stack.
type GeneratedFrames = FastMap<StackFrame, Arc<[SharedFrame]>>;

impl StackNames {
    /// No names yet. Symbols of native code come from `symbolizer`.
    #[must_use]
    pub fn new(symbolizer: Symbolizer) -> Self {
        Self {
            native: NativeSymbols::new(symbolizer),
            known: Vec::new(),
            generated: fast_map(0),
            distinct: FrameSet::default(),
        }
    }

    /// Sets the function name of the code at a file offset.
    pub fn set_function(&mut self, module: &Module, offset: u64, name: &str) {
        self.native.set_function(module, offset, name);
    }

    /// Names the generated code in a stack now, because it can be discarded before the stack is symbolized: `name` returns the
    /// frames of a word of the stack. Existing names are kept.
    pub fn keep_generated(
        &mut self,
        row: u32,
        stack: &RawStack,
        mut name: impl FnMut(StackFrame) -> Option<Arc<[SharedFrame]>>,
    ) {
        let known = self.generated.entry(row).or_default();
        let distinct = &mut self.distinct;
        for frame in stack.frames.iter().map(|frame| frame.however_found()) {
            if !known.contains_key(&frame)
                && let Some(named) = name(frame)
            {
                known.insert(frame, named.iter().map(|frame| distinct.share(Frame::clone(frame))).collect());
            }
        }
    }

    /// Returns true if a word of a stack has a kept name.
    #[must_use]
    pub fn has_kept(&self, row: u32, frame: StackFrame) -> bool {
        self.generated.get(&row).is_some_and(|known| known.contains_key(&frame.however_found()))
    }

    /// Returns true if a stack has been symbolized; its names are final.
    #[must_use]
    pub fn is_named(&self, row: u32) -> bool {
        self.known(row).is_some()
    }

    /// Reads symbols that are expected to be needed, for a short while.
    pub fn read_ahead(&mut self) {
        self.native.read_ahead();
    }

    /// Ends the child that reads symbols, and with it what it knows of the files. It starts again when it is needed.
    pub fn end_child(&mut self) {
        self.native.end_child();
    }

    /// Symbolizes stacks of a process with these modules.
    pub fn of_process<'names>(&'names mut self, modules: &'names ModuleTable) -> ProcessNames<'names> {
        ProcessNames { names: self, modules, words: KnownWords::default() }
    }

    fn known(&self, row: u32) -> Option<&NamedStack> {
        self.known.get(row as usize)?.as_ref()
    }

    /// Removes rows that are free for other stacks, and what only their stacks had.
    pub fn forget(&mut self, rows: &BTreeSet<u32>) {
        if !rows.is_empty() {
            self.forget_rows(rows);
            self.forget_unused();
        }
    }

    /// Removes what no stack has any more.
    pub fn forget_unused(&mut self) {
        self.native.forget_stacks();
        self.distinct.forget_unused();
    }

    /// Removes rows that are free for other stacks.
    pub fn forget_rows(&mut self, rows: &BTreeSet<u32>) {
        for row in rows {
            if let Some(known) = self.known.get_mut(*row as usize) {
                *known = None;
            }
            self.generated.remove(row);
        }
    }
}

/// Symbolizes the stacks of one process.
pub struct ProcessNames<'names> {
    names: &'names mut StackNames,
    modules: &'names ModuleTable,
    words: KnownWords,
}

impl ProcessNames<'_> {
    /// Reads the symbols that the stacks in these rows need, unless they are symbolized. `stack` returns the stack in a row.
    pub fn look_up<'stacks>(
        &mut self,
        rows: impl Iterator<Item = u32>,
        stack: impl Fn(u32) -> Option<&'stacks RawStack>,
    ) {
        let StackNames { native, known, generated, .. } = &mut *self.names;
        native.look_up(unnamed(rows, known, generated, stack), self.modules);
    }

    /// The same as [`StackNames::end_child`].
    pub fn end_child(&mut self) {
        self.names.end_child();
    }

    /// Like [`Self::look_up`], but the symbols are read later, by [`StackNames::read_ahead`].
    pub fn expect<'stacks>(
        &mut self,
        rows: impl Iterator<Item = u32>,
        stack: impl Fn(u32) -> Option<&'stacks RawStack>,
    ) {
        let StackNames { native, known, generated, .. } = &mut *self.names;
        native.expect(unnamed(rows, known, generated, stack), self.modules);
    }

    /// Number of files of the process whose symbols could not be read.
    #[must_use]
    pub fn lost_files(&self) -> u64 {
        self.names.native.lost_files(self.modules)
    }

    /// The stack in a row of the kernel's table, read by `read` and symbolized on first use. A stack that cannot be read
    /// (missing, or being written) has no frames and is read again next time.
    pub fn name(&mut self, row: u32, read: impl FnOnce() -> Option<RawStack>) -> NamedStack {
        if let Some(known) = self.names.known(row) {
            return known.clone();
        }
        let Some(raw) = read() else { return NamedStack::lost() };
        let generated = self.names.generated.remove(&row).unwrap_or_default();
        let frames = self.frames_of(&raw, &generated);
        let named = NamedStack { status: raw.status, frames: frames.into() };
        let (known, index) = (&mut self.names.known, row as usize);
        if index >= known.len() {
            known.resize(index + 1, None);
        }
        known[index] = Some(named.clone());
        named
    }

    /// Reads the symbols that stacks need which are in no row.
    pub fn look_up_all<'stacks>(&mut self, stacks: impl Iterator<Item = &'stacks RawStack>) {
        self.names.native.look_up(stacks.map(|stack| (stack, None)), self.modules);
    }

    /// Frames of a stack that is in no row.
    pub fn frames(&mut self, stack: &RawStack) -> Vec<SharedFrame> {
        self.frames_of(stack, &fast_map(0))
    }

    fn frames_of(&mut self, stack: &RawStack, generated: &GeneratedFrames) -> Vec<SharedFrame> {
        let StackNames { native, distinct, .. } = &mut *self.names;
        let mut frames = native.frames(stack, self.modules, generated, &mut self.words, distinct);
        sampler::remove(&mut frames);
        frames
    }
}

/// Stacks in rows that are not symbolized.
fn unnamed<'names, 'stacks: 'names>(
    rows: impl Iterator<Item = u32>,
    known: &[Option<NamedStack>],
    generated: &'names FastMap<u32, GeneratedFrames>,
    stack: impl Fn(u32) -> Option<&'stacks RawStack>,
) -> impl Iterator<Item = WithGenerated<'names>> {
    let is_new = |row: &u32| known.get(*row as usize).is_none_or(Option::is_none);
    rows.filter(is_new).filter_map(move |row| Some((stack(row)?, generated.get(&row))))
}

impl NamedStack {
    /// A stack without frames.
    #[must_use]
    pub fn lost() -> Self {
        Self { status: StackStatus::Lost, frames: Frames::default() }
    }
}
