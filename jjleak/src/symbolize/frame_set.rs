//! Distinct frames, each stored once.

use std::collections::HashSet;
use std::sync::Arc;

use crate::snapshot::{Frame, SharedFrame};

/// Frames to which stacks refer.
#[derive(Default)]
pub(super) struct FrameSet(HashSet<SharedFrame>);

impl FrameSet {
    /// The frame of the set that equals this one, which is added if there is none.
    pub(super) fn share(&mut self, frame: Frame) -> SharedFrame {
        if let Some(known) = self.0.get(&frame) {
            return Arc::clone(known);
        }
        let frame = Arc::new(frame);
        self.0.insert(Arc::clone(&frame));
        frame
    }

    /// Removes frames to which nothing else refers.
    pub(super) fn forget_unused(&mut self) {
        self.0.retain(|frame| Arc::strong_count(frame) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_frames_are_one_until_nothing_refers_to_them() {
        let frame = |symbol: &str| Frame { symbol: symbol.to_owned(), ..Frame::default() };
        let mut set = FrameSet::default();
        let (one, same) = (set.share(frame("one")), set.share(frame("one")));
        assert!(Arc::ptr_eq(&one, &same));
        set.share(frame("other"));
        set.forget_unused();
        assert_eq!(set.0.iter().map(|frame| &*frame.symbol).collect::<Vec<_>>(), ["one"]);
    }
}
