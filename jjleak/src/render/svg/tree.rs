//! Stacks merged from the root: what inferno draws, with the figures it cannot compute.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use inferno::flamegraph::FuncFrameAttrsMap;
use inferno::flamegraph::color::PaletteMap;

use super::super::Value;
use super::super::collapsed::frame_name;
use super::super::label::{NO_STACK, label};
use super::super::units::{grouped, percent};
use super::legend::{EVERYTHING, color};
use crate::profile::{FrameKind, Profile, StackProfile, Totals};

/// Opens and closes the number that makes a frame's name its alone. Of the private use area, so that no symbol in
/// its right mind has it.
pub(super) const MARK: char = '\u{e000}';

/// The name that inferno gives the frame of everything.
const ROOT: &str = "";

/// Frames by the path from the root that leads to them.
pub(super) struct FlameTree<'a> {
    nodes: Vec<Node<'a>>,
    /// Live totals and path of every outstanding stack: indexes into `nodes`, root first.
    stacks: Vec<(Totals, Vec<usize>)>,
    total: Totals,
}

struct Node<'a> {
    label: Cow<'a, str>,
    kind: FrameKind,
    live: Totals,
    children: Children<'a>,
}

type Children<'a> = BTreeMap<(Cow<'a, str>, FrameKind), usize>;

impl<'a> FlameTree<'a> {
    /// Merges the outstanding stacks; inverted, from the allocation function on.
    pub(super) fn new(profile: &'a Profile, inverted: bool) -> Self {
        let mut tree = Self { nodes: Vec::new(), stacks: Vec::new(), total: profile.live() };
        let mut roots = Children::new();
        for stack in profile.stacks.iter().filter(|stack| !stack.live.is_nothing()) {
            let mut path: Vec<usize> = Vec::with_capacity(stack.frames.len());
            let mut frames = root_first(stack);
            if inverted {
                frames.reverse();
            }
            for (label, kind) in frames {
                let index = tree.child(path.last().copied(), &mut roots, label, kind);
                let node = &mut tree.nodes[index];
                node.live = [node.live, stack.live].into_iter().sum();
                path.push(index);
            }
            tree.stacks.push((stack.live, path));
        }
        tree
    }

    /// The child of a node, or of the root, that has this label and kind.
    fn child(
        &mut self,
        parent: Option<usize>,
        roots: &mut Children<'a>,
        label: Cow<'a, str>,
        kind: FrameKind,
    ) -> usize {
        let next = self.nodes.len();
        let children = match parent {
            Some(parent) => &mut self.nodes[parent].children,
            None => roots,
        };
        let index = *children.entry((label.clone(), kind)).or_insert(next);
        if index == next {
            self.nodes.push(Node { label, kind, live: Totals::default(), children: Children::new() });
        }
        index
    }

    /// The kinds of frame that occur.
    pub(super) fn kinds(&self) -> BTreeSet<FrameKind> {
        self.nodes.iter().map(|node| node.kind).collect()
    }

    /// A collapsed line for each stack, with the frames' marked names.
    pub(super) fn lines(&self, value: Value) -> Vec<String> {
        let line = |(live, path): &(Totals, Vec<usize>)| {
            let names: Vec<_> = path.iter().map(|&index| self.marked_name(index)).collect();
            format!("{} {}", names.join(";"), value.of(*live))
        };
        self.stacks.iter().map(line).collect()
    }

    /// The colour of each frame.
    pub(super) fn palette(&self) -> PaletteMap {
        let mut palette = PaletteMap::default();
        palette.insert(ROOT, EVERYTHING);
        for (index, node) in self.nodes.iter().enumerate() {
            palette.insert(self.marked_name(index), color(node.kind));
        }
        palette
    }

    /// The title of each frame, as a browser shows it when the pointer rests on it.
    pub(super) fn attributes(&self, value: Value) -> io::Result<FuncFrameAttrsMap> {
        let mut lines = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            writeln!(lines, "{}\ttitle={}", self.marked_name(index), self.title(node, value))?;
        }
        FuncFrameAttrsMap::from_reader(lines.as_slice())
    }

    fn title(&self, node: &Node<'_>, value: Value) -> String {
        let (bytes, objects) = (grouped(node.live.bytes), grouped(node.live.objects));
        let figures = match value {
            Value::Bytes => format!("{bytes} bytes, {objects} objects"),
            Value::Objects => format!("{objects} objects, {bytes} bytes"),
        };
        let percent = percent(value.of(node.live), value.of(self.total));
        format!("{} ({figures}, {percent:.2}%)", node.label.replace(MARK, "\u{fffd}"))
    }

    /// The name under which inferno knows the frame.
    fn marked_name(&self, index: usize) -> String {
        let name = frame_name(&self.nodes[index].label.replace(MARK, "\u{fffd}"));
        format!("{name}{MARK}{index}{MARK}")
    }
}

fn root_first(stack: &StackProfile) -> Vec<(Cow<'_, str>, FrameKind)> {
    if stack.frames.is_empty() {
        return vec![(NO_STACK.into(), FrameKind::Unknown)];
    }
    stack.frames.iter().rev().map(|frame| (label(frame), frame.kind)).collect()
}

/// The picture without the marks in the texts of frames. A text may be cut within a mark, which `..` then ends.
pub(super) fn without_marks(svg: &str) -> String {
    let mut pieces = svg.split(MARK);
    let mut clean = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit());
        clean.push_str(rest.strip_prefix("..").unwrap_or(rest));
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::sample;

    #[test]
    fn stacks_with_a_common_path_share_its_frames() {
        let mut profile = sample::profile();
        profile.stacks = vec![profile.stacks[1].clone(), profile.stacks[1].clone()];
        let tree = FlameTree::new(&profile, false);
        assert_eq!(tree.nodes.len(), 5);
        assert_eq!(tree.nodes[0].live, profile.live());
        let titles: Vec<_> = tree.nodes.iter().map(|node| tree.title(node, Value::Bytes)).collect();
        assert_eq!(titles[4], "malloc (3,072,000 bytes, 24 objects, 100.00%)");
    }

    #[test]
    fn frames_of_one_name_on_different_paths_are_known_apart() {
        let profile = sample::profile();
        let tree = FlameTree::new(&profile, false);
        let names: BTreeSet<_> = (0..tree.nodes.len()).map(|index| tree.marked_name(index)).collect();
        assert_eq!(names.len(), tree.nodes.len());
    }

    #[test]
    fn marks_vanish_whole_or_cut() {
        let svg = format!("<text>main{MARK}12{MARK}</text><text>main{MARK}1..</text><text>ma..</text>");
        assert_eq!(without_marks(&svg), "<text>main</text><text>main</text><text>ma..</text>");
    }
}
