//! Stacks merged from one end, for flame graphs.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::label::{NO_STACK, label};
use crate::analyze::Difference;
use crate::profile::{Frame, FrameKind, Profile, SharedFrame, Totals};

/// A stack with its live memory in one profile, or in the first and the second of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlameStack<'a> {
    pub(super) frames: &'a [SharedFrame],
    /// Zero if there is one profile.
    pub(super) before: Totals,
    pub(super) live: Totals,
}

impl FlameStack<'_> {
    /// Width of the stack: the larger of both, so that freed memory is visible.
    fn width(&self) -> Totals {
        larger(self.before, self.live)
    }
}

fn larger(one: Totals, other: Totals) -> Totals {
    Totals { bytes: one.bytes.max(other.bytes), objects: one.objects.max(other.objects) }
}

/// Tree of frames by their path from the root.
pub(super) struct FlameTree<'a> {
    pub(super) nodes: Vec<Node<'a>>,
    /// Children of the root, in order.
    pub(super) roots: Children<'a>,
    /// Sum over all stacks.
    pub(super) width: Totals,
}

/// A frame with all stacks that pass through it.
pub(super) struct Node<'a> {
    /// Index of the node before it; `None` at the root.
    pub(super) parent: Option<usize>,
    pub(super) label: Cow<'a, str>,
    pub(super) kind: FrameKind,
    /// Known source files and lines of the stacks at this frame, sorted. Most frames have one.
    pub(super) places: Vec<(&'a str, u32)>,
    pub(super) before: Totals,
    pub(super) live: Totals,
    pub(super) width: Totals,
    /// Width of the stacks that end here.
    pub(super) own_width: Totals,
    pub(super) children: Children<'a>,
}

/// Nodes by label and kind.
pub(super) type Children<'a> = BTreeMap<(Cow<'a, str>, FrameKind), usize>;

impl<'a> FlameTree<'a> {
    /// Merges the outstanding stacks of a profile; if inverted, from the allocation function on.
    pub(super) fn of(profile: &'a Profile, inverted: bool) -> Self {
        let outstanding = profile.stacks.iter().filter(|stack| !stack.live.is_nothing());
        let stacks = outstanding.map(|stack| FlameStack {
            frames: &stack.frames,
            before: Totals::default(),
            live: stack.live,
        });
        Self::new(stacks, inverted)
    }

    /// Merges the stacks of two profiles.
    pub(super) fn of_difference(difference: &'a Difference<'_>, inverted: bool) -> Self {
        let stacks = difference.stacks.iter().map(|stack| FlameStack {
            frames: &stack.frames,
            before: stack.before,
            live: stack.after,
        });
        Self::new(stacks, inverted)
    }

    fn new(stacks: impl Iterator<Item = FlameStack<'a>>, inverted: bool) -> Self {
        let mut tree = Self { nodes: Vec::new(), roots: Children::new(), width: Totals::default() };
        for stack in stacks {
            let mut frames = root_first(stack.frames);
            if inverted {
                frames.reverse();
            }
            let mut last = None;
            for (label, kind, place) in frames {
                let index = tree.child(last, label, kind);
                let node = &mut tree.nodes[index];
                if let Some(place) = place
                    && let Err(at) = node.places.binary_search(&place)
                {
                    node.places.reserve_exact(1);
                    node.places.insert(at, place);
                }
                for (sum, more) in [
                    (&mut node.before, stack.before),
                    (&mut node.live, stack.live),
                    (&mut node.width, stack.width()),
                ] {
                    *sum = [*sum, more].into_iter().sum();
                }
                last = Some(index);
            }
            let own = last.map(|last| &mut tree.nodes[last].own_width);
            for sum in own.into_iter().chain([&mut tree.width]) {
                *sum = [*sum, stack.width()].into_iter().sum();
            }
        }
        tree
    }

    /// Finds or adds the child of a node, or of the root, with this label and kind.
    fn child(&mut self, parent: Option<usize>, label: Cow<'a, str>, kind: FrameKind) -> usize {
        let next = self.nodes.len();
        let children = match parent {
            Some(parent) => &mut self.nodes[parent].children,
            None => &mut self.roots,
        };
        let index = *children.entry((label.clone(), kind)).or_insert(next);
        if index == next {
            let nothing = Totals::default();
            let children = Children::new();
            let places = Vec::new();
            self.nodes.push(Node {
                parent,
                label,
                kind,
                places,
                before: nothing,
                live: nothing,
                width: nothing,
                own_width: nothing,
                children,
            });
        }
        index
    }

    /// Kinds of frame that occur.
    pub(super) fn kinds(&self) -> BTreeSet<FrameKind> {
        self.nodes.iter().map(|node| node.kind).collect()
    }
}

type Named<'a> = (Cow<'a, str>, FrameKind, Option<(&'a str, u32)>);

fn root_first(frames: &[SharedFrame]) -> Vec<Named<'_>> {
    if frames.is_empty() {
        return vec![(NO_STACK.into(), FrameKind::Unknown, None)];
    }
    frames.iter().rev().map(|frame| (label(frame), frame.kind, place(frame))).collect()
}

/// Name and line of a frame's source file.
fn place(frame: &Frame) -> Option<(&str, u32)> {
    let file = frame.file.rsplit('/').next().filter(|file| !file.is_empty())?;
    (frame.line != 0).then_some((file, frame.line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    #[test]
    fn stacks_with_a_common_path_share_its_frames() {
        let mut profile = sample::profile();
        profile.stacks = vec![profile.stacks[1].clone(), profile.stacks[1].clone()];
        let tree = FlameTree::of(&profile, false);
        assert_eq!(tree.nodes.len(), 5);
        assert_eq!((tree.nodes[0].live, tree.width), (profile.live(), profile.live()));
        assert_eq!(tree.nodes[0].label, "main");
    }

    #[test]
    fn inverted_trees_begin_with_the_allocation_function() {
        let profile = sample::profile();
        let tree = FlameTree::of(&profile, true);
        let roots: Vec<_> = tree.roots.keys().map(|(label, _)| label.as_ref()).collect();
        assert_eq!(roots, [NO_STACK, "malloc"]);
    }

    #[test]
    fn what_is_gone_is_as_wide_as_it_was() {
        let frames = sample::shared([Frame { symbol: "f".into(), ..Frame::default() }]);
        let totals = |bytes| Totals { bytes, objects: 1 };
        let stacks = [(7, 0), (2, 5)].map(|(before, live)| FlameStack {
            frames: &frames,
            before: totals(before),
            live: totals(live),
        });
        let tree = FlameTree::new(stacks.into_iter(), false);
        let node = &tree.nodes[0];
        assert_eq!((node.before.bytes, node.live.bytes, node.width.bytes), (9, 5, 12));
    }
}
