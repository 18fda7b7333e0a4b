//! Stacks merged from one end, for flame graphs.

mod merge;

use std::collections::BTreeSet;
use std::rc::Rc;

use super::marks::{MARKS, NOT_JUDGED, StackMarks};
use crate::analyze::Difference;
use crate::profile::{Frame, FrameKind, Frames, Profile, Totals};
use merge::{Following, Merge};

/// A stack with its live memory in one profile, or in the first and the second of two.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlameStack<'a> {
    pub(super) frames: &'a Frames,
    /// Zero if there is one profile.
    pub(super) before: Totals,
    pub(super) live: Totals,
    /// Index into [`MARKS`].
    pub(super) mark: usize,
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
    /// In the order of a depth-first walk, the children of a node by label.
    pub(super) nodes: Vec<Node<'a>>,
    /// Sum over all stacks.
    pub(super) width: Totals,
}

/// A frame with all stacks that pass through it.
pub(super) struct Node<'a> {
    /// Index of the node before it; `None` at the root.
    pub(super) parent: Option<usize>,
    pub(super) label: Rc<str>,
    pub(super) kind: FrameKind,
    /// Known source files and lines of the stacks at this frame, sorted. Most frames have one.
    pub(super) places: Vec<(&'a str, u32)>,
    pub(super) before: Totals,
    pub(super) live: Totals,
    pub(super) width: Totals,
    /// Width of the stacks that end here, or in frames that are too narrow.
    pub(super) own_width: Totals,
    /// Live bytes by verdict: see [`MARKS`].
    pub(super) marked: [u64; MARKS.len()],
}

impl<'a> FlameTree<'a> {
    /// Merges the outstanding stacks of a profile; if inverted, from the allocation function on.
    pub(super) fn of(profile: &'a Profile, inverted: bool) -> Self {
        let marks = StackMarks::of(profile);
        let stack = |index: usize| {
            let stack = &profile.stacks[index];
            let mark = marks.of_stack(stack.id);
            FlameStack { frames: &stack.frames, before: Totals::default(), live: stack.live, mark }
        };
        Self::new(profile.stacks.len(), stack, inverted)
    }

    /// Merges the stacks of two profiles.
    pub(super) fn of_difference(difference: &'a Difference<'_>, inverted: bool) -> Self {
        let stack = |index: usize| {
            let stack = &difference.stacks[index];
            FlameStack { frames: &stack.frames, before: stack.before, live: stack.after, mark: NOT_JUDGED }
        };
        Self::new(difference.stacks.len(), stack, inverted)
    }

    fn new(count: usize, stack: impl Fn(usize) -> FlameStack<'a>, inverted: bool) -> Self {
        let stack = |index: u32| stack(index as usize);
        let mut stacks: Vec<_> = (0..u32::try_from(count).unwrap_or(u32::MAX)).collect();
        stacks.retain(|index| !stack(*index).width().is_nothing());
        let mut tree =
            Self { nodes: Vec::new(), width: stacks.iter().map(|index| stack(*index).width()).sum() };
        let all = 0..stacks.len();
        let mut merge = Merge::new(stack, stacks, inverted);
        // Nodes that are not in the tree yet, with their depth and stacks, the next one last.
        let roots = merge.following(None, 0, all).children;
        let mut waiting: Vec<_> = roots.into_iter().rev().map(|(root, stacks)| (root, 0, stacks)).collect();
        while let Some((mut node, depth, stacks)) = waiting.pop() {
            let depth = depth + 1;
            let Following { children, ended } = merge.following(Some(tree.nodes.len()), depth, stacks);
            node.own_width = ended;
            for (child, stacks) in children.into_iter().rev() {
                if tree.is_visible(&child) {
                    waiting.push((child, depth, stacks));
                } else {
                    add(&mut node.own_width, child.width);
                }
            }
            tree.nodes.push(node);
        }
        tree
    }

    fn is_visible(&self, Node { width, .. }: &Node<'_>) -> bool {
        is_visible(width.bytes, self.width.bytes) || is_visible(width.objects, self.width.objects)
    }

    /// Kinds of frame that occur.
    pub(super) fn kinds(&self) -> BTreeSet<FrameKind> {
        self.nodes.iter().map(|node| node.kind).collect()
    }
}

/// Returns false for a frame that is too narrow to be seen beside the whole width.
pub(super) fn is_visible(width: u64, of: u64) -> bool {
    u128::from(width) * LEAST_VISIBLE >= u128::from(of)
}

/// Inferno draws frames from 0.01 % of the whole width on. The limit here is a bit lower, so that rounding leaves out no frame.
const LEAST_VISIBLE: u128 = 10_100;

fn add(sum: &mut Totals, more: Totals) {
    *sum = [*sum, more].into_iter().sum();
}

impl Node<'_> {
    /// A node without stacks.
    const fn new(parent: Option<usize>, label: Rc<str>, kind: FrameKind) -> Self {
        let nothing = Totals { bytes: 0, objects: 0 };
        let (before, live, width, own_width) = (nothing, nothing, nothing, nothing);
        let marked = [0; MARKS.len()];
        Self { parent, label, kind, places: Vec::new(), before, live, width, own_width, marked }
    }

    /// Index into [`MARKS`] of the verdict on most of the bytes; the worse one of two.
    pub(super) fn mark(&self) -> usize {
        let most = self.marked.iter().max().copied().unwrap_or(0);
        self.marked.iter().position(|bytes| *bytes == most && most > 0).unwrap_or(NOT_JUDGED)
    }
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
        assert_eq!(&*tree.nodes[0].label, "main");
    }

    #[test]
    fn inverted_trees_begin_with_the_allocation_function() {
        let profile = sample::profile();
        let tree = FlameTree::of(&profile, true);
        let roots = tree.nodes.iter().filter(|node| node.parent.is_none());
        assert_eq!(roots.map(|node| &*node.label).collect::<Vec<_>>(), ["[no stack]", "malloc"]);
    }

    #[test]
    fn what_is_gone_is_as_wide_as_it_was() {
        let frames = sample::shared([Frame { symbol: "f".into(), ..Frame::default() }]);
        let totals = |bytes| Totals { bytes, objects: 1 };
        let stacks = [(7, 0), (2, 5)].map(|(before, live)| FlameStack {
            frames: &frames,
            before: totals(before),
            live: totals(live),
            mark: NOT_JUDGED,
        });
        let tree = FlameTree::new(stacks.len(), |index| stacks[index], false);
        let node = &tree.nodes[0];
        assert_eq!((node.before.bytes, node.live.bytes, node.width.bytes), (9, 5, 12));
    }

    #[test]
    fn frames_too_narrow_to_be_seen_count_for_the_frame_that_leads_to_them() {
        let path = |symbols: &[&str]| {
            let frame = |symbol: &&str| Frame { symbol: (*symbol).to_owned(), ..Frame::default() };
            sample::shared(symbols.iter().map(frame))
        };
        let stacks =
            [(path(&["wide", "main"]), 1_000_000), (path(&["b", "a", "main"]), 1), (path(&["c", "main"]), 1)];
        let stacks = stacks.each_ref().map(|(frames, bytes)| FlameStack {
            frames,
            before: Totals::default(),
            live: Totals { bytes: *bytes, objects: *bytes },
            mark: NOT_JUDGED,
        });
        let tree = FlameTree::new(stacks.len(), |index| stacks[index], false);
        let nodes: Vec<_> = tree.nodes.iter().map(|node| (&*node.label, node.own_width.bytes)).collect();
        assert_eq!(nodes, [("main", 2), ("wide", 1_000_000)]);
    }
}
