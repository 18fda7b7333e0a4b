//! Numbers of frames, for files in which each frame is stored once.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Frame, SharedFrame};

/// The distinct frames of some stacks, numbered from 0 in order of their first appearance.
#[derive(Debug, Default)]
pub struct FrameNumbers<'a> {
    frames: Vec<&'a Frame>,
    /// Numbers by address in memory. Stacks of a process refer to the same frames, and most need no comparison.
    by_address: HashMap<*const Frame, u32>,
    by_content: HashMap<&'a Frame, u32>,
}

impl<'a> FrameNumbers<'a> {
    /// Numbers these frames.
    pub fn new(frames: impl IntoIterator<Item = &'a SharedFrame>) -> Self {
        let mut numbers = Self::default();
        for frame in frames {
            numbers.add(frame);
        }
        numbers
    }

    /// Number of a frame, which is added if it is new.
    pub fn add(&mut self, frame: &'a SharedFrame) -> u32 {
        *self.by_address.entry(Arc::as_ptr(frame)).or_insert_with(|| {
            *self.by_content.entry(frame).or_insert_with(|| {
                self.frames.push(frame);
                // More than 2^32 frames fit into no memory.
                u32::try_from(self.frames.len() - 1).unwrap_or(u32::MAX)
            })
        })
    }

    /// Number of a frame that was added, or of one equal to it.
    ///
    /// # Panics
    ///
    /// If neither was added.
    #[must_use]
    pub fn number(&self, frame: &SharedFrame) -> u32 {
        self.by_address.get(&Arc::as_ptr(frame)).copied().unwrap_or_else(|| self.by_content[&**frame])
    }

    /// Number of a frame; `None` if neither it nor one equal to it was added.
    #[must_use]
    pub fn find(&self, frame: &SharedFrame) -> Option<u32> {
        let by_content = || self.by_content.get(&**frame);
        self.by_address.get(&Arc::as_ptr(frame)).or_else(by_content).copied()
    }

    /// Frames by number.
    #[must_use]
    pub fn frames(&self) -> &[&'a Frame] {
        &self.frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_frames_have_one_number() {
        let frame = |symbol: &str| Arc::new(Frame { symbol: symbol.to_owned(), ..Frame::default() });
        let (one, other, same) = (frame("one"), frame("other"), frame("one"));
        let mut numbers = FrameNumbers::default();
        assert_eq!([&one, &other, &same, &one].map(|frame| numbers.add(frame)), [0, 1, 0, 0]);
        assert_eq!(numbers.frames(), [&*one, &*other]);
    }
}
