//! From addresses to frames.
//!
//! In: a [`RawStack`], the [`ModuleTable`] of its process, and [`GeneratedNames`] of a JVM's. Out: [`Frame`]s with names, files and lines. Names
//! are looked up when a stack is first seen and kept, so that they outlive the process and the mapping.

mod frame;
mod java;
mod native;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jjleak_common::stack::StackStatus;

use crate::collect::RawStack;
use crate::processes::{Module, ModuleTable};
use native::NativeSymbols;

pub use frame::{Frame, FrameKind};
pub use java::{GeneratedNames, JavaNames};

/// Names stacks and remembers them.
#[derive(Default)]
pub struct StackNames {
    native: NativeSymbols,
    known: HashMap<u32, NamedStack>,
}

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

    /// The stack in a row of the kernel's table: read by `read` and named the first time it is asked for. A
    /// stack that cannot be read (not kept, or just being written) comes without frames and is asked for again.
    pub fn name(
        &mut self,
        row: u32,
        modules: &ModuleTable,
        generated: Option<&mut dyn GeneratedNames>,
        read: impl FnOnce() -> Option<RawStack>,
    ) -> NamedStack {
        if let Some(known) = self.known.get(&row) {
            return known.clone();
        }
        let Some(raw) = read() else { return NamedStack::lost() };
        let frames = self.native.frames(&raw.addresses, modules, generated).into();
        let named = NamedStack { status: raw.status, frames };
        self.known.insert(row, named.clone());
        named
    }

    /// Forgets rows that are free for other stacks.
    pub fn forget(&mut self, rows: &BTreeSet<u32>) {
        self.known.retain(|row, _| !rows.contains(row));
    }
}

impl NamedStack {
    fn lost() -> Self {
        Self { status: StackStatus::Lost, frames: Arc::from([]) }
    }
}
