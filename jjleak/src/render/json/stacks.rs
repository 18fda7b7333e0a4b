//! Stacks of a document: in JSON, `frames` has each frame once, and `stacks` refers to them by index.

use std::ops::Deref;
use std::slice;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::{FrameDocument, StackDocument};

/// Frames and stacks as they are in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tables<F, S> {
    /// The distinct frames.
    pub frames: F,
    /// The stacks, with indices of their frames.
    pub stacks: S,
}

/// Serializes the items of an iterator one by one, as an array.
pub(in crate::render) struct Each<I>(pub I);

impl<I> Serialize for Each<I>
where
    I: Iterator<Item: Serialize> + Clone,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

/// Stacks of a report that has been read, with frames in place of indices.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Tables<Vec<FrameDocument>, Vec<StackDocument<u32>>>")]
pub struct Stacks(Vec<StackDocument>);

impl TryFrom<Tables<Vec<FrameDocument>, Vec<StackDocument<u32>>>> for Stacks {
    type Error = String;

    fn try_from(
        Tables { frames, stacks }: Tables<Vec<FrameDocument>, Vec<StackDocument<u32>>>,
    ) -> Result<Self, String> {
        let frames: Vec<_> = frames.into_iter().map(Arc::new).collect();
        let frame =
            |index: u32| frames.get(index as usize).cloned().ok_or_else(|| format!("no frame {index}"));
        stacks.into_iter().map(|stack| stack.resolved(frame)).collect::<Result<_, _>>().map(Self)
    }
}

impl Deref for Stacks {
    type Target = [StackDocument];

    fn deref(&self) -> &[StackDocument] {
        &self.0
    }
}

impl<'a> IntoIterator for &'a Stacks {
    type Item = &'a StackDocument;
    type IntoIter = slice::Iter<'a, StackDocument>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
