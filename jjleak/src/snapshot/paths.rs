//! Paths of frames, each stored once.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::SharedFrame;
use crate::fast_map::FastMap;

/// A tree of frames with the outermost ones at the root: stacks share the frames that they have in common. A place in it
/// takes 8 bytes.
#[derive(Default)]
pub struct Paths {
    frames: Vec<SharedFrame>,
    places: Vec<Place>,
}

/// End of a path: the number of its place plus one; 0 for no frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Path(u32);

/// A frame and the path that it continues.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    outer: u32,
    frame: u32,
}

/// Paths to which others can be added, with an index that takes some 10 bytes a place.
#[derive(Default)]
pub struct PathsBuilder {
    paths: Paths,
    /// Index of a frame by its address.
    numbers: FastMap<usize, u32>,
    /// Indices of places.
    index: HashTable<u32>,
    hasher: RandomState,
}

impl Paths {
    /// Frames of a path, leaf first.
    pub fn frames(&self, path: Path) -> impl Iterator<Item = &SharedFrame> + Clone {
        let mut next = path.0;
        std::iter::from_fn(move || {
            let place = self.places.get(next.checked_sub(1)? as usize)?;
            next = place.outer;
            self.frames.get(place.frame as usize)
        })
    }
}

impl PathsBuilder {
    /// Number of places in the tree.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.paths.places.len()
    }

    /// Returns true if there are no paths but that without frames.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a path, leaf first. Equal frames count as one if they are shared.
    pub fn add(&mut self, frames: &[SharedFrame]) -> Path {
        let mut path = 0;
        for frame in frames.iter().rev() {
            let place = Place { outer: path, frame: self.number(frame) };
            path = self.number_of(place);
        }
        Path(path)
    }

    /// Frames of a path, leaf first.
    pub fn frames(&self, path: Path) -> impl Iterator<Item = &SharedFrame> + Clone {
        self.paths.frames(path)
    }

    /// The paths alone.
    #[must_use]
    pub fn finish(self) -> Arc<Paths> {
        let Self { mut paths, .. } = self;
        paths.places.shrink_to_fit();
        Arc::new(paths)
    }

    /// A tree of these paths alone, which are updated.
    #[must_use]
    pub fn rebuilt<'a>(&self, kept: impl Iterator<Item = &'a mut Path>) -> Self {
        let mut rebuilt = Self::default();
        let mut frames = Vec::new();
        for path in kept {
            frames.extend(self.frames(*path).cloned());
            *path = rebuilt.add(&frames);
            frames.clear();
        }
        rebuilt
    }

    fn number(&mut self, frame: &SharedFrame) -> u32 {
        let frames = &mut self.paths.frames;
        // The frame is kept, so that no other one gets its address.
        *self.numbers.entry(SharedFrame::as_ptr(frame).addr()).or_insert_with(|| {
            frames.push(SharedFrame::clone(frame));
            last_index(frames)
        })
    }

    fn number_of(&mut self, place: Place) -> u32 {
        let Self { paths: Paths { places, .. }, index, hasher, .. } = self;
        let hash = hasher.hash_one(place);
        if let Some(known) = index.find(hash, |at| places[*at as usize] == place) {
            return known + 1;
        }
        places.push(place);
        let at = last_index(places);
        index.insert_unique(hash, at, |at| hasher.hash_one(places[*at as usize]));
        at + 1
    }
}

/// Index of the last element. There is memory for fewer than 2^32.
fn last_index<T>(elements: &[T]) -> u32 {
    u32::try_from(elements.len()).unwrap_or(u32::MAX).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fast_map::fast_map;
    use crate::snapshot::Frame;

    fn frames(symbols: &[&str], known: &mut FastMap<String, SharedFrame>) -> Vec<SharedFrame> {
        let mut frame = |symbol: &&str| {
            let new = || Frame { symbol: (*symbol).to_owned(), ..Frame::default() }.into();
            SharedFrame::clone(known.entry((*symbol).to_owned()).or_insert_with(new))
        };
        symbols.iter().map(&mut frame).collect()
    }

    #[test]
    fn stacks_share_their_outer_frames_and_come_back_as_they_were() {
        let (mut paths, mut known) = (PathsBuilder::default(), fast_map(0));
        let stacks =
            [&["malloc", "a", "main"][..], &["malloc", "b", "main"], &["a", "main"], &[], &["malloc"]];
        let stacks = stacks.map(|symbols| frames(symbols, &mut known));
        let mut added: Vec<_> = stacks.iter().map(|stack| paths.add(stack)).collect();
        assert_eq!(paths.len(), 6, "main, a, b, and three times malloc");
        assert_eq!(paths.add(&stacks[0]), added[0]);
        let of = |paths: &PathsBuilder, path| paths.frames(path).cloned().collect::<Vec<_>>();
        for (stack, path) in stacks.iter().zip(&added) {
            assert_eq!(of(&paths, *path), *stack);
        }
        let rebuilt = paths.rebuilt(added[1..3].iter_mut());
        assert_eq!((of(&rebuilt, added[1]), of(&rebuilt, added[2])), (stacks[1].clone(), stacks[2].clone()));
        assert_eq!(rebuilt.len(), 4);
    }
}
