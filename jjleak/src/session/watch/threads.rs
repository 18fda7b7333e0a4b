//! Threads of stacks.

use std::collections::{BTreeSet, HashMap};

use crate::processes::{Pid, thread_name};
use crate::snapshot::{Frame, Frames, NamedStack, SharedFrame, Thread};

/// Stacks below their threads, by row of the kernel's table: built once, and shared by all profiles.
#[derive(Default)]
pub(super) struct ThreadRoots(HashMap<u32, Frames>);

impl ThreadRoots {
    /// Puts the stack in a row below its thread.
    pub(super) fn put_below(&mut self, row: u32, thread: &Thread, stack: &mut NamedStack) {
        let root = SharedFrame::new(Frame::of_thread(thread));
        let known = self.0.get(&row).filter(|frames| frames.last() == Some(&root));
        stack.frames = known.cloned().unwrap_or_else(|| {
            let frames: Frames = stack.frames.iter().cloned().chain([root]).collect();
            self.0.insert(row, frames.clone());
            frames
        });
    }

    /// Puts a stack that has no row below its thread.
    pub(super) fn below(thread: Option<&Thread>, mut stack: NamedStack) -> NamedStack {
        if let Some(thread) = thread {
            let root = SharedFrame::new(Frame::of_thread(thread));
            stack.frames = stack.frames.iter().cloned().chain([root]).collect();
        }
        stack
    }

    /// Forgets rows that other stacks may use now.
    pub(super) fn forget(&mut self, rows: &BTreeSet<u32>) {
        for row in rows {
            self.0.remove(row);
        }
    }
}

/// Current name of a thread, for [`crate::collect::Collector::rename_threads`].
pub(super) fn name_of(pid: Pid) -> impl Fn(u32) -> Option<String> {
    move |thread| thread_name(pid, thread)
}
