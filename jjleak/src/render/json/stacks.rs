//! Stacks of a document: in JSON, `frames` has each frame once, and `stacks` refers to them by index.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::FrameDocument;
use crate::profile::{FrameNumbers, SharedFrame};

/// A stack in a document.
pub trait Stack: Sized {
    /// The stack with indices in place of frames.
    type Indexed: Serialize + DeserializeOwned;

    /// Frames, leaf first.
    fn frames(&self) -> &[Arc<FrameDocument>];

    /// This stack with these indices of its frames.
    fn indexed(&self, frames: Vec<u32>) -> Self::Indexed;

    /// The stack with the frames that `frame` returns for its indices.
    fn resolved<E>(
        indexed: Self::Indexed,
        frame: impl FnMut(u32) -> Result<Arc<FrameDocument>, E>,
    ) -> Result<Self, E>;
}

/// Stacks that refer to common frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stacks<S>(Vec<S>);

impl<S> Stacks<S> {
    /// Converts stacks of a profile; `new` converts one, with a function that converts its frames.
    pub(in crate::render) fn new<'a, T: 'a>(
        stacks: impl IntoIterator<Item = &'a T>,
        mut new: impl FnMut(&'a T, &mut dyn FnMut(&'a SharedFrame) -> Arc<FrameDocument>) -> S,
    ) -> Self {
        let mut numbers = FrameNumbers::default();
        let mut documents: Vec<Arc<FrameDocument>> = Vec::new();
        let mut document = |frame: &'a SharedFrame| {
            let number = numbers.of(frame) as usize;
            if number == documents.len() {
                documents.push(Arc::new((&**frame).into()));
            }
            Arc::clone(&documents[number])
        };
        Self(stacks.into_iter().map(|stack| new(stack, &mut document)).collect())
    }
}

impl<S> Deref for Stacks<S> {
    type Target = [S];

    fn deref(&self) -> &[S] {
        &self.0
    }
}

impl<'a, S> IntoIterator for &'a Stacks<S> {
    type Item = &'a S;
    type IntoIter = slice::Iter<'a, S>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<S: Stack> Serialize for Stacks<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        let mut indices = HashMap::new();
        let mut frames = Vec::new();
        for frame in self.0.iter().flat_map(Stack::frames) {
            indices.entry(Arc::as_ptr(frame)).or_insert_with(|| {
                frames.push(&**frame);
                // More than 2^32 frames fit into no memory.
                u32::try_from(frames.len() - 1).unwrap_or(u32::MAX)
            });
        }
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("frames", &frames)?;
        map.serialize_entry("stacks", &Indexed(&self.0, &indices))?;
        map.end()
    }
}

/// Serializes stacks one by one, with indices in place of frames.
struct Indexed<'a, S>(&'a [S], &'a HashMap<*const FrameDocument, u32>);

impl<S: Stack> Serialize for Indexed<'_, S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        serializer.collect_seq(self.0.iter().map(|stack| {
            let index = |frame| self.1.get(&Arc::as_ptr(frame)).copied().unwrap_or_default();
            stack.indexed(stack.frames().iter().map(index).collect())
        }))
    }
}

impl<'de, S: Stack> Deserialize<'de> for Stacks<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(bound = "")]
        struct Tables<S: Stack> {
            frames: Vec<FrameDocument>,
            stacks: Vec<S::Indexed>,
            #[serde(skip)]
            kind: PhantomData<S>,
        }
        let Tables::<S> { frames, stacks, .. } = Tables::deserialize(deserializer)?;
        let frames: Vec<_> = frames.into_iter().map(Arc::new).collect();
        let frame = |index: u32| {
            frames.get(index as usize).cloned().ok_or_else(|| D::Error::custom(format!("no frame {index}")))
        };
        stacks.into_iter().map(|stack| S::resolved(stack, frame)).collect::<Result<_, _>>().map(Self)
    }
}
