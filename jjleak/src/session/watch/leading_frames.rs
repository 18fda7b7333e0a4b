//! Frames that stand for memory, in front of the stacks that made it.

use std::collections::{HashMap, HashSet};

use jjleak_common::stack::StackStatus;

use crate::collect::CountedStack;
use crate::snapshot::{Frame, FrameKind, NamedStack, SharedFrame};

/// Frames of stacks, by identity.
#[derive(Default)]
pub(super) struct LeadingFrames {
    frames: HashMap<u64, SharedFrame>,
    without_stack: HashSet<u64>,
    /// Name of the only other frame of memory without a stack.
    nobody: Option<SharedFrame>,
}

impl LeadingFrames {
    /// Frames of counted stacks with their identities; `frame` makes one from the name of the memory, and `nobody` is in the place of a
    /// stack.
    pub(super) fn of<'a>(
        stacks: impl Iterator<Item = (u64, &'a CountedStack)>,
        frame: impl Fn(&str) -> Frame,
        nobody: Option<Frame>,
    ) -> Self {
        let mut leading = Self { nobody: nobody.map(SharedFrame::new), ..Self::default() };
        let mut by_name: HashMap<&str, SharedFrame> = HashMap::new();
        for (id, CountedStack { of, is_without_stack, .. }) in stacks {
            let frame = by_name.entry(of).or_insert_with_key(|name| SharedFrame::new(frame(name)));
            leading.frames.insert(id, SharedFrame::clone(frame));
            if *is_without_stack {
                leading.without_stack.insert(id);
            }
        }
        leading
    }

    /// Puts the frame in front of a stack. A Java class takes the place of the JVM's own frames.
    pub(super) fn put_before(&self, id: u64, mut stack: NamedStack) -> NamedStack {
        let Some(frame) = self.frames.get(&id) else { return stack };
        let mut frames = vec![SharedFrame::clone(frame)];
        if self.without_stack.contains(&id) {
            frames.extend(self.nobody.clone());
            stack.status = StackStatus::Complete;
        } else {
            let own = if frame.kind == FrameKind::Class { jvm_frames(&stack.frames.list()) } else { 0 };
            frames.extend(stack.frames.iter().skip(own).cloned());
        }
        stack.frames = frames.into();
        stack
    }
}

/// Number of innermost frames that are the JVM's own, before the first Java method; without one, only the function that announces objects.
fn jvm_frames(frames: &[SharedFrame]) -> usize {
    let is_java = |frame: &SharedFrame| matches!(frame.kind, FrameKind::Java | FrameKind::JavaInlined);
    frames.iter().position(is_java).unwrap_or(1)
}
