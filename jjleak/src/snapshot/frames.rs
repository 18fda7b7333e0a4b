//! Frames of a stack.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Index;
use std::sync::Arc;

use super::SharedFrame;
use super::paths::{Path, Paths};

/// Frames of a stack, leaf first: a list, or a path in a tree of frames that stacks share. Takes 16 bytes; a clone shares the frames.
#[derive(Clone)]
pub struct Frames(Kept);

#[derive(Clone)]
enum Kept {
    List(Arc<List>),
    Path { frames: u16, path: Path, of: Arc<Paths> },
}

struct List(Box<[SharedFrame]>);

impl Frames {
    /// Frames of a path in a tree.
    #[must_use]
    pub fn of_path(of: &Arc<Paths>, path: Path) -> Self {
        let all = || of.frames(path);
        match all().count().try_into() {
            Ok(frames) => Self(Kept::Path { frames, path, of: Arc::clone(of) }),
            Err(_) => all().cloned().collect(),
        }
    }

    /// Number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kept::List(list) => list.0.len(),
            Kept::Path { frames, .. } => (*frames).into(),
        }
    }

    /// Returns true if there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The frames, leaf first.
    pub fn iter(&self) -> impl Iterator<Item = &SharedFrame> + Clone {
        let (list, path) = match &self.0 {
            Kept::List(list) => (&*list.0, None),
            Kept::Path { path, of, .. } => (&[][..], Some(of.frames(*path))),
        };
        list.iter().chain(path.into_iter().flatten())
    }

    /// All frames as a list, which is a copy of those of a path.
    #[must_use]
    pub fn list(&self) -> Cow<'_, [SharedFrame]> {
        match &self.0 {
            Kept::List(list) => Cow::Borrowed(&list.0),
            Kept::Path { .. } => Cow::Owned(self.iter().cloned().collect()),
        }
    }

    /// The frame at an index from the leaf.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&SharedFrame> {
        match &self.0 {
            Kept::List(list) => list.0.get(index),
            Kept::Path { .. } => self.iter().nth(index),
        }
    }

    /// The frame at an index from the root.
    #[must_use]
    pub fn from_root(&self, index: usize) -> Option<&SharedFrame> {
        self.get(self.len().checked_sub(index + 1)?)
    }

    /// The innermost frame.
    #[must_use]
    pub fn first(&self) -> Option<&SharedFrame> {
        self.get(0)
    }

    /// The outermost frame.
    #[must_use]
    pub fn last(&self) -> Option<&SharedFrame> {
        self.from_root(0)
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self::from_iter([])
    }
}

impl FromIterator<SharedFrame> for Frames {
    fn from_iter<I: IntoIterator<Item = SharedFrame>>(frames: I) -> Self {
        Self(Kept::List(Arc::new(List(frames.into_iter().collect()))))
    }
}

impl From<Vec<SharedFrame>> for Frames {
    fn from(frames: Vec<SharedFrame>) -> Self {
        frames.into_iter().collect()
    }
}

impl From<&[SharedFrame]> for Frames {
    fn from(frames: &[SharedFrame]) -> Self {
        frames.iter().cloned().collect()
    }
}

impl Index<usize> for Frames {
    type Output = SharedFrame;

    fn index(&self, index: usize) -> &SharedFrame {
        match self.get(index) {
            Some(frame) => frame,
            None => panic!("frame {index} of {}", self.len()),
        }
    }
}

impl PartialEq for Frames {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl Eq for Frames {}

impl Hash for Frames {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_usize(self.len());
        self.iter().for_each(|frame| frame.hash(hasher));
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::paths::PathsBuilder;
    use super::*;
    use crate::snapshot::Frame;

    fn symbols(frames: &Frames) -> Vec<&str> {
        frames.iter().map(|frame| frame.symbol.as_str()).collect()
    }

    #[test]
    fn a_path_is_the_list_of_its_frames() {
        let frame = |symbol: &str| SharedFrame::new(Frame { symbol: symbol.to_owned(), ..Frame::default() });
        let list = ["malloc", "a", "main"].map(frame);
        let mut paths = PathsBuilder::default();
        let [path, nothing] = [paths.add(&list), paths.add(&[])];
        let paths = paths.finish();
        let [path, nothing] = [path, nothing].map(|path| Frames::of_path(&paths, path));
        let list = Frames::from(&list[..]);
        for frames in [&list, &path] {
            assert_eq!((symbols(frames), frames.len()), (vec!["malloc", "a", "main"], 3));
            assert_eq!((frames.first(), frames.last()), (list.get(0), list.get(2)));
            assert_eq!((frames.from_root(1), frames.from_root(3), frames.get(3)), (list.get(1), None, None));
            assert_eq!(frames[1].symbol, "a");
            assert_eq!((frames, frames.list()), (&list, list.list()));
        }
        assert!(nothing.is_empty() && nothing == Frames::default() && nothing != list);
        assert_eq!(nothing.last(), None);
    }

    #[test]
    fn a_path_with_too_many_frames_for_its_length_is_a_list() {
        let mut paths = PathsBuilder::default();
        let list = vec![SharedFrame::default(); usize::from(u16::MAX) + 1];
        let path = paths.add(&list);
        assert_eq!(Frames::of_path(&paths.finish(), path).len(), list.len());
    }

    #[test]
    fn frames_take_little_memory() {
        assert_eq!(size_of::<Frames>(), 16);
    }
}
