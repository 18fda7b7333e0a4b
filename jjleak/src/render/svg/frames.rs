//! Frames in the form that inferno needs: each has a unique name, by which its title and colour are looked up.

use std::collections::BTreeSet;
use std::io::{self, Write};

use inferno::flamegraph::FuncFrameAttrsMap;
use inferno::flamegraph::color::{Color, PaletteMap};

use super::super::Value;
use super::super::collapsed::frame_name;
use super::super::label::printable;
use super::super::marks::MARKS;
use super::super::tree::{FlameTree, Node, is_visible};
use super::super::units::{grouped, percent};
use super::legend::{EVERYTHING, color};
use super::{marks, shades};
use crate::analyze::{Change, delta};
use crate::profile::FrameKind;

/// Delimiter of the number that makes a frame's name unique. A private use character, which reasonable symbols do not contain.
pub(super) const MARK: char = '\u{e000}';

/// Inferno's name of the root frame.
const ROOT: &str = "";

/// Maximum number of source lines in a title.
const MAX_PLACES: usize = 3;

/// Content of colours and titles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// Kind of frame, and live memory.
    Kinds,
    /// The same, with the verdict on most of a frame's bytes.
    Judged,
    /// Change between two profiles.
    Changes,
}

/// A tree to draw.
pub(super) struct Frames<'a> {
    pub(super) tree: &'a FlameTree<'a>,
    pub(super) shown: Shown,
    pub(super) value: Value,
    /// Name of the objects.
    pub(super) objects: &'static str,
}

impl Frames<'_> {
    /// Collapsed lines with the marked names of the frames. Stacks that differ only in frames that are too narrow to be drawn share a
    /// line, which ends with the last frame that is drawn.
    pub(super) fn lines(&self) -> Vec<String> {
        let nodes = &self.tree.nodes;
        let mut widths = vec![0; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            let mut last = index;
            while let Some(parent) = nodes[last].parent.filter(|_| !self.is_drawn(last)) {
                last = parent;
            }
            widths[last] += self.value.of(node.own_width);
        }
        let line = |(index, width)| {
            let path = std::iter::successors(Some(index), |index: &usize| nodes[*index].parent);
            let mut names: Vec<_> = path.map(|index| self.marked_name(index)).collect();
            names.reverse();
            format!("{} {width}", names.join(";"))
        };
        widths.into_iter().enumerate().filter(|(_, width)| *width > 0).map(line).collect()
    }

    /// Returns true unless inferno leaves the frame out.
    fn is_drawn(&self, index: usize) -> bool {
        is_visible(self.value.of(self.tree.nodes[index].width), self.value.of(self.tree.width))
    }

    /// The frames in lines, with their names.
    fn named(&self) -> impl Iterator<Item = (&Node<'_>, String)> {
        let nodes = self.tree.nodes.iter().enumerate();
        let in_line = nodes.filter(|(index, node)| node.parent.is_none() || self.is_drawn(*index));
        in_line.map(|(index, node)| (node, self.marked_name(index)))
    }

    /// Colours of the frames.
    pub(super) fn palette(&self) -> PaletteMap {
        let mut palette = PaletteMap::default();
        palette.insert(ROOT, EVERYTHING);
        for (node, name) in self.named() {
            palette.insert(name, self.color(node));
        }
        palette
    }

    fn color(&self, node: &Node<'_>) -> Color {
        match self.shown {
            Shown::Kinds | Shown::Judged => color(node.kind),
            Shown::Changes => shades::shade(self.value.of(node.before), self.value.of(node.live)),
        }
    }

    /// Entries of the legend.
    pub(super) fn legend(&self) -> Vec<(Color, &'static str)> {
        match self.shown {
            Shown::Kinds | Shown::Judged => {
                let kinds: BTreeSet<FrameKind> = self.tree.kinds();
                super::legend::of_kinds(&kinds)
            }
            Shown::Changes => shades::legend(),
        }
    }

    /// Titles of the frames, which browsers show as tooltips.
    pub(super) fn attributes(&self) -> io::Result<FuncFrameAttrsMap> {
        let mut lines = Vec::new();
        for (node, name) in self.named() {
            write!(lines, "{name}\ttitle={}", self.title(node))?;
            if self.shown == Shown::Judged {
                write!(lines, "\tclass={}", marks::class(node.mark()))?;
            }
            writeln!(lines)?;
        }
        FuncFrameAttrsMap::from_reader(lines.as_slice())
    }

    fn title(&self, node: &Node<'_>) -> String {
        let label = node.label.replace(MARK, "\u{fffd}");
        match self.shown {
            Shown::Kinds => format!("{label} ({}{})", self.live(node), places(node)),
            Shown::Judged => {
                let (verdict, _) = MARKS[node.mark()];
                format!("{label} ({}; {verdict}{})", self.live(node), places(node))
            }
            Shown::Changes => format!("{label} ({})", changes(node)),
        }
    }

    fn live(&self, node: &Node<'_>) -> String {
        let (bytes, objects) = (grouped(node.live.bytes), grouped(node.live.objects));
        let figures = match self.value {
            Value::Bytes => format!("{bytes} bytes, {objects} {}", self.objects),
            Value::Objects => format!("{objects} {}, {bytes} bytes", self.objects),
        };
        let percent = percent(self.value.of(node.live), self.value.of(self.tree.width));
        format!("{figures}, {percent:.2}%")
    }

    /// Inferno's name of a frame.
    fn marked_name(&self, index: usize) -> String {
        let name = frame_name(&self.tree.nodes[index].label.replace(MARK, "\u{fffd}"));
        format!("{name}{MARK}{index}{MARK}")
    }
}

/// `; list.c:12, list.c:20`, or nothing. Inferno's script omits everything from a parenthesis on in a frame's text, so file names
/// must not contain one.
fn places(node: &Node<'_>) -> String {
    let name = |(file, line): &(&str, u32)| {
        format!("{}:{line}", printable(file).replace(MARK, "\u{fffd}").replace('(', "["))
    };
    let named: Vec<_> = node.places.iter().take(MAX_PLACES).map(name).collect();
    match node.places.len().checked_sub(named.len()) {
        _ if named.is_empty() => String::new(),
        None | Some(0) => format!("; {}", named.join(", ")),
        Some(more) => format!("; {} and {more} more lines", named.join(", ")),
    }
}

/// `grew: +1,000 bytes, +10 objects; 500 bytes before, 1,500 after`.
fn changes(node: &Node<'_>) -> String {
    let Node { before, live, .. } = node;
    let signed = |before, after| {
        let delta: i64 = delta(before, after);
        format!("{}{}", if delta < 0 { '-' } else { '+' }, grouped(delta.unsigned_abs()))
    };
    format!(
        "{}: {} bytes, {} objects; {} bytes in {} objects before, {} in {} after",
        Change::of(*before, *live).name(),
        signed(before.bytes, live.bytes),
        signed(before.objects, live.objects),
        grouped(before.bytes),
        grouped(before.objects),
        grouped(live.bytes),
        grouped(live.objects),
    )
}

/// The picture without the marks in the texts of frames. A text may be truncated within a mark, which then ends with `..`.
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
    use crate::profile::{Frame, Profile, StackProfile};
    use crate::render::sample;

    #[test]
    fn titles_give_what_lives_below_a_frame() {
        let mut profile = sample::profile();
        profile.stacks = vec![profile.stacks[1].clone(), profile.stacks[1].clone()];
        let tree = FlameTree::of(&profile, false);
        let frames = Frames { tree: &tree, shown: Shown::Kinds, value: Value::Bytes, objects: "objects" };
        assert_eq!(frames.title(&tree.nodes[4]), "malloc (3,072,000 bytes, 24 objects, 100.00%)");
    }

    #[test]
    fn titles_give_the_lines_that_are_passed() {
        let at = |line| Frame { symbol: "f".into(), file: "src/a(b).c".into(), line, ..Frame::default() };
        let mut profile = sample::profile();
        let stack = profile.stacks.remove(1);
        let title = |lines: &[u32]| {
            let stacks = lines
                .iter()
                .map(|line| StackProfile { frames: sample::shared([at(*line)]), ..stack.clone() });
            let profile = Profile { stacks: stacks.collect(), ..profile.clone() };
            let tree = FlameTree::of(&profile, false);
            let frames = Frames { tree: &tree, shown: Shown::Kinds, value: Value::Bytes, objects: "objects" };
            frames.title(&tree.nodes[0])
        };
        assert!(title(&[0]).ends_with("100.00%)"));
        assert!(title(&[7, 5, 7]).ends_with("100.00%; a[b).c:5, a[b).c:7)"));
        assert!(title(&[1, 2, 3, 4, 5]).ends_with("; a[b).c:1, a[b).c:2, a[b).c:3 and 2 more lines)"));
    }

    #[test]
    fn frames_of_one_name_on_different_paths_are_known_apart() {
        let profile = sample::profile();
        let tree = FlameTree::of(&profile, false);
        let frames = Frames { tree: &tree, shown: Shown::Kinds, value: Value::Bytes, objects: "objects" };
        let names: BTreeSet<_> = (0..tree.nodes.len()).map(|index| frames.marked_name(index)).collect();
        assert_eq!(names.len(), tree.nodes.len());
    }

    #[test]
    fn stacks_that_are_too_narrow_share_the_line_of_their_drawn_frames() {
        let mut profile = sample::profile();
        let stack = profile.stacks.remove(1);
        let names = |names: &[&str]| {
            names
                .iter()
                .rev()
                .map(|name| Frame { symbol: (*name).to_owned(), ..Frame::default() })
                .collect::<Vec<_>>()
        };
        let with = |path: &[&str], bytes| StackProfile {
            frames: sample::shared(names(path)),
            live: crate::profile::Totals { bytes, objects: 1 },
            ..stack.clone()
        };
        // 0.01 % of the whole width is 100 bytes.
        let narrow = (0..50).map(|leaf| with(&["main", "many", &format!("leaf{leaf}")], 10));
        let others = [
            with(&["main", "large"], 999_250),
            with(&["main", "least"], 100),
            with(&["main", "narrow", "leaf"], 98),
            with(&["other", "leaf"], 52),
        ];
        profile.stacks = narrow.chain(others).collect();
        let tree = FlameTree::of(&profile, false);
        let frames = Frames { tree: &tree, shown: Shown::Kinds, value: Value::Bytes, objects: "objects" };
        let lines: BTreeSet<_> = frames.lines().iter().map(|line| without_marks(line)).collect();
        let expected = ["main;large 999250", "main;least 100", "main;many 500", "main 98", "other 52"]
            .map(str::to_owned);
        assert_eq!(lines, BTreeSet::from(expected));
        assert_eq!(frames.named().count(), 5);
    }

    #[test]
    fn marks_vanish_whole_or_cut() {
        let svg = format!("<text>main{MARK}12{MARK}</text><text>main{MARK}1..</text><text>ma..</text>");
        assert_eq!(without_marks(&svg), "<text>main</text><text>main</text><text>ma..</text>");
    }
}
