//! Files that lack unwind information.

use std::collections::BTreeMap;

use jjleak_common::stack::StackStatus;

use super::{FrameKind, Profile, StackProfile, Totals};

impl Profile {
    /// Files because of which live stacks are not proven complete, by path, with the live totals of these
    /// stacks. A stack can have several. Code outside of any file has an empty path.
    #[must_use]
    pub fn without_unwind_information(&self) -> BTreeMap<&str, Totals> {
        let mut files: BTreeMap<&str, Totals> = BTreeMap::new();
        for stack in self.stacks.iter().filter(|stack| !stack.live.is_nothing()) {
            let mut of_stack: Vec<_> = incomplete(stack).collect();
            of_stack.sort_unstable();
            of_stack.dedup();
            for file in of_stack {
                let totals = files.entry(file).or_default();
                *totals = [*totals, stack.live].into_iter().sum();
            }
        }
        files
    }
}

/// Files of frames that were unwound by frame pointer, and of the last frame of a stack that ended there.
fn incomplete(stack: &StackProfile) -> impl Iterator<Item = &str> {
    let outer = stack.frames.iter().skip(1);
    let by_frame_pointer =
        stack.frames.iter().zip(outer).filter(|(inner, outer)| outer.by_frame_pointer && !inner.inlined);
    let ended =
        matches!(stack.status, StackStatus::NoRow | StackStatus::BrokenChain | StackStatus::Unsupported);
    let last = stack.frames.iter().filter(|frame| frame.kind != FrameKind::Thread).last().filter(|_| ended);
    by_frame_pointer.map(|(inner, _)| inner).chain(last).map(|frame| frame.module.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Frame;
    use crate::render::sample;

    fn stack(status: StackStatus, frames: &[(&str, bool)], bytes: u64) -> StackProfile {
        let frame = |&(module, by_frame_pointer): &(&str, bool)| Frame {
            module: module.to_owned(),
            by_frame_pointer,
            ..Frame::default()
        };
        let live = Totals { bytes, objects: 1 };
        StackProfile {
            status,
            live,
            frames: sample::shared(frames.iter().map(frame)),
            ..sample::empty_stack()
        }
    }

    #[test]
    fn files_are_named_that_frame_pointers_were_used_for_or_that_stacks_ended_in() {
        let frames = [("libc", false), ("go", false), ("go", true), ("libc", true)];
        let stacks = vec![
            stack(StackStatus::FramePointers, &frames, 100),
            stack(StackStatus::NoRow, &[("libc", false), ("asm", false)], 20),
            stack(StackStatus::Complete, &[("libc", false), ("whole", false)], 3),
            stack(StackStatus::NoMapping, &[("libc", false), ("new", false)], 4),
        ];
        let profile = Profile { stacks, ..sample::empty_profile() };
        let bytes: Vec<_> =
            profile.without_unwind_information().iter().map(|(file, totals)| (*file, totals.bytes)).collect();
        assert_eq!(bytes, [("asm", 20), ("go", 100)]);
    }
}
