//! Stacks merged from one end, for flame graphs.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::label::{NO_STACK, label};
use crate::analyze::Difference;
use crate::fast_map::FastMap;
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
}

/// A frame of a stack: its number in [`Labels`] and the frame, or none for a stack without frames.
type Step<'a> = (u32, Option<&'a SharedFrame>);

impl<'a> FlameTree<'a> {
    /// Merges the outstanding stacks of a profile; if inverted, from the allocation function on.
    pub(super) fn of(profile: &'a Profile, inverted: bool) -> Self {
        let outstanding = profile.stacks.iter().filter(|stack| !stack.live.is_nothing());
        let stacks = outstanding.map(|stack| FlameStack {
            frames: &stack.frames,
            before: Totals::default(),
            live: stack.live,
        });
        Self::new(stacks.collect(), inverted)
    }

    /// Merges the stacks of two profiles.
    pub(super) fn of_difference(difference: &'a Difference<'_>, inverted: bool) -> Self {
        let stacks = difference.stacks.iter().map(|stack| FlameStack {
            frames: &stack.frames,
            before: stack.before,
            live: stack.after,
        });
        Self::new(stacks.collect(), inverted)
    }

    fn new(stacks: Vec<FlameStack<'a>>, inverted: bool) -> Self {
        let labels = Labels::of(&stacks);
        let width = stacks.iter().map(FlameStack::width).sum();
        let mut paths: Vec<_> =
            stacks.into_iter().map(|stack| (labels.path(stack.frames, inverted), stack)).collect();
        // What is common to two stacks is then common to all stacks between them.
        paths.sort_by(|(one, _), (other, _)| numbers(one).cmp(numbers(other)));
        let mut tree = Self { nodes: Vec::new(), width };
        // The last stack's nodes, and their labels.
        let mut open: Vec<(usize, u32)> = Vec::new();
        for (path, stack) in paths {
            let common = open.iter().zip(&path).take_while(|((_, open), (step, _))| open == step).count();
            open.drain(common..).rev().for_each(|(index, _)| tree.close(index));
            for (label, _) in &path[common..] {
                open.push((tree.nodes.len(), *label));
                let parent = open.len().checked_sub(2).map(|parent| open[parent].0);
                tree.nodes.push(labels.node(*label, parent));
            }
            for ((index, _), (_, frame)) in open.iter().zip(path) {
                tree.nodes[*index].add(&stack, frame);
            }
            if let Some((last, _)) = open.last() {
                add(&mut tree.nodes[*last].own_width, stack.width());
            }
        }
        open.into_iter().rev().for_each(|(index, _)| tree.close(index));
        tree
    }

    /// Drops a node whose stacks have all been added, with the nodes behind it, if it is too narrow to be seen.
    fn close(&mut self, index: usize) {
        let Node { parent: Some(parent), width, .. } = self.nodes[index] else { return };
        if is_visible(width.bytes, self.width.bytes) || is_visible(width.objects, self.width.objects) {
            return;
        }
        self.nodes.truncate(index);
        add(&mut self.nodes[parent].own_width, width);
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

fn numbers<'path>(path: &'path [Step<'_>]) -> impl Iterator<Item = u32> + 'path {
    path.iter().map(|(number, _)| *number)
}

impl<'a> Node<'a> {
    fn add(&mut self, stack: &FlameStack<'_>, frame: Option<&'a SharedFrame>) {
        if let Some(place) = frame.and_then(|frame| place(frame))
            && let Err(at) = self.places.binary_search(&place)
        {
            self.places.reserve_exact(1);
            self.places.insert(at, place);
        }
        add(&mut self.before, stack.before);
        add(&mut self.live, stack.live);
        add(&mut self.width, stack.width());
    }
}

/// Labels and kinds of all frames, numbered in their order.
struct Labels {
    sorted: Vec<(Rc<str>, FrameKind)>,
    /// Numbers by address of the frame: stacks share frames.
    numbers: FastMap<*const Frame, u32>,
    no_stack: u32,
}

impl Labels {
    fn of(stacks: &[FlameStack<'_>]) -> Self {
        let frames: FastMap<_, _> = stacks
            .iter()
            .flat_map(|stack| stack.frames)
            .map(|frame| (SharedFrame::as_ptr(frame), frame))
            .collect();
        let of = |frame: &Frame| (Rc::from(&*label(frame)), frame.kind);
        let labels: Vec<_> = frames.into_iter().map(|(address, frame)| (of(frame), address)).collect();
        let none = (Rc::from(NO_STACK), FrameKind::Unknown);
        let sorted: BTreeSet<_> = labels.iter().map(|(label, _)| label).chain([&none]).cloned().collect();
        let sorted: Vec<_> = sorted.into_iter().collect();
        let number = |label| u32::try_from(sorted.partition_point(|other| other < label)).unwrap_or(u32::MAX);
        let no_stack = number(&none);
        let numbers = labels.iter().map(|(label, address)| (*address, number(label))).collect();
        Self { sorted, numbers, no_stack }
    }

    /// The frames of a stack, root first unless it is inverted.
    fn path<'a>(&self, frames: &'a [SharedFrame], inverted: bool) -> Vec<Step<'a>> {
        if frames.is_empty() {
            return vec![(self.no_stack, None)];
        }
        let step = |frame: &'a SharedFrame| (self.numbers[&SharedFrame::as_ptr(frame)], Some(frame));
        let mut path: Vec<_> = frames.iter().map(step).collect();
        if !inverted {
            path.reverse();
        }
        path
    }

    fn node<'a>(&self, number: u32, parent: Option<usize>) -> Node<'a> {
        let (label, kind) = &self.sorted[number as usize];
        let nothing = Totals::default();
        Node {
            parent,
            label: Rc::clone(label),
            kind: *kind,
            places: Vec::new(),
            before: nothing,
            live: nothing,
            width: nothing,
            own_width: nothing,
        }
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
        assert_eq!(roots.map(|node| &*node.label).collect::<Vec<_>>(), [NO_STACK, "malloc"]);
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
        let tree = FlameTree::new(stacks.to_vec(), false);
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
        });
        let tree = FlameTree::new(stacks.to_vec(), false);
        let nodes: Vec<_> = tree.nodes.iter().map(|node| (&*node.label, node.own_width.bytes)).collect();
        assert_eq!(nodes, [("main", 2), ("wide", 1_000_000)]);
    }
}
