//! The tree of call paths as tiles in rows of cells: each function below its caller, in proportion to its live value.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::text::safe;
use crate::profile::{Frame, FrameKind, StackProfile, Totals};
use crate::render::{NO_STACK, Value, label};

/// Path from the root of the tree: an ID for each frame.
pub(super) type Path = Vec<u64>;

/// A function on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) path: Path,
    pub(super) label: String,
    pub(super) kind: FrameKind,
    pub(super) live: Totals,
    /// First cell, and number of cells.
    pub(super) left: u16,
    pub(super) width: u16,
    /// Row, counted from the root's.
    pub(super) depth: usize,
}

/// The visible tiles, by row and from left to right.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Icicle {
    pub(super) tiles: Vec<Tile>,
    /// Total of all stacks in the tree.
    pub(super) live: Totals,
}

/// Layout of the tiles.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) width: u16,
    pub(super) rows: usize,
    pub(super) value: Value,
}

impl Icicle {
    /// Lays out the stacks below `zoom`. The first row is the root, or the last frame of `zoom`.
    pub(super) fn of<'a>(stacks: impl Iterator<Item = &'a StackProfile>, zoom: &[u64], place: Place) -> Self {
        let holds = |stack: &&StackProfile| place.value.of(stack.live) > 0 && is_below(stack, zoom);
        let stacks: Vec<_> = stacks.filter(holds).collect();
        let live = stacks.iter().map(|stack| stack.live).sum();
        let mut icicle = Self { tiles: Vec::new(), live };
        let Some(first) = stacks.first() else { return icicle };
        let (label, kind) = match zoom.len().checked_sub(1).and_then(|depth| frame_at(first, depth)) {
            Some(frame) => (name(frame), frame.kind),
            None => ("all".to_owned(), FrameKind::Unknown),
        };
        let root = Tile { path: zoom.to_vec(), label, kind, live, left: 0, width: place.width, depth: 0 };
        icicle.add(root, &stacks, place);
        icicle.tiles.sort_by_key(|it| (it.depth, it.left));
        icicle
    }

    fn add(&mut self, parent: Tile, stacks: &[&StackProfile], place: Place) {
        let (path, left, width, depth) = (parent.path.clone(), parent.left, parent.width, parent.depth);
        let whole = u128::from(place.value.of(parent.live)).max(1);
        self.tiles.push(parent);
        if depth + 1 >= place.rows {
            return;
        }
        let mut before = 0_u128;
        for group in children(stacks, path.len(), place.value) {
            let edge = |value: u128| u16::try_from(value * u128::from(width) / whole).unwrap_or(width);
            let (begin, end) = (edge(before), edge(before + u128::from(place.value.of(group.live))));
            before += u128::from(place.value.of(group.live));
            if end > begin {
                let mut path = path.clone();
                path.push(group.id);
                let child = Tile {
                    path,
                    label: group.label,
                    kind: group.kind,
                    live: group.live,
                    left: left + begin,
                    width: end - begin,
                    depth: depth + 1,
                };
                self.add(child, &group.stacks, place);
            }
        }
    }

    pub(super) fn find(&self, path: &[u64]) -> Option<&Tile> {
        self.tiles.iter().find(|it| it.path == path)
    }

    /// The widest tile directly below.
    pub(super) fn below(&self, of: &Tile) -> Option<&Tile> {
        let is_child = |it: &&Tile| it.depth == of.depth + 1 && it.path.starts_with(&of.path);
        // The first of equally wide ones.
        self.tiles.iter().filter(is_child).rev().max_by_key(|it| it.width)
    }

    /// The neighbouring tile in the same row.
    pub(super) fn beside(&self, of: &Tile, to_the_right: bool) -> Option<&Tile> {
        let mut row = self.tiles.iter().filter(|it| it.depth == of.depth);
        if to_the_right { row.find(|it| it.left > of.left) } else { row.rfind(|it| it.left < of.left) }
    }
}

/// Stacks with the same frame at a depth.
struct Group<'a> {
    id: u64,
    label: String,
    kind: FrameKind,
    live: Totals,
    stacks: Vec<&'a StackProfile>,
}

/// Groups stacks by their frame at this depth, largest first.
fn children<'a>(stacks: &[&'a StackProfile], depth: usize, value: Value) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut index_of: HashMap<u64, usize> = HashMap::new();
    for stack in stacks {
        let Some(id) = id_at(stack, depth) else { continue };
        let index = *index_of.entry(id).or_insert_with(|| {
            let frame = frame_at(stack, depth);
            groups.push(Group {
                id,
                label: frame.map_or_else(|| NO_STACK.to_owned(), name),
                kind: frame.map_or(FrameKind::Unknown, |frame| frame.kind),
                live: Totals::default(),
                stacks: Vec::new(),
            });
            groups.len() - 1
        });
        let group = &mut groups[index];
        group.live = [group.live, stack.live].into_iter().sum();
        group.stacks.push(stack);
    }
    groups.sort_by(|a, b| value.of(b.live).cmp(&value.of(a.live)).then_with(|| a.label.cmp(&b.label)));
    groups
}

/// The frame at this distance from the root.
fn frame_at(stack: &StackProfile, depth: usize) -> Option<&Frame> {
    stack.frames.from_root(depth).map(|frame| &**frame)
}

/// ID of the frame at this distance from the root. Frames of one name are the same, except threads: those of a pool often
/// share a name.
fn id_at(stack: &StackProfile, depth: usize) -> Option<u64> {
    let Some(frame) = frame_at(stack, depth) else {
        return (stack.frames.is_empty() && depth == 0).then_some(0);
    };
    let mut hasher = DefaultHasher::new();
    if let Some(thread) = frame.thread() {
        (frame.kind, thread.number, thread.nth).hash(&mut hasher);
        return Some(hasher.finish());
    }
    (&frame.symbol, frame.kind).hash(&mut hasher);
    if frame.symbol.is_empty() {
        (frame.address, &frame.module).hash(&mut hasher);
    }
    Some(hasher.finish())
}

/// Returns true if the stack begins with this path.
pub(super) fn is_below(stack: &StackProfile, path: &[u64]) -> bool {
    path.iter().enumerate().all(|(depth, id)| id_at(stack, depth) == Some(*id))
}

fn name(frame: &Frame) -> String {
    safe(&label(frame)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Thread;
    use crate::render::sample;

    fn icicle(zoom: &[u64], width: u16) -> Icicle {
        let profile = sample::profile();
        Icicle::of(profile.stacks.iter(), zoom, Place { width, rows: 9, value: Value::Objects })
    }

    #[test]
    fn tiles_are_as_wide_as_their_share_and_stand_below_their_callers() {
        let icicle = icicle(&[], 26);
        let tiles = |depth| {
            let row = icicle.tiles.iter().filter(move |it| it.depth == depth);
            row.map(|it| (it.label.as_str(), it.width)).collect::<Vec<_>>()
        };
        assert_eq!(tiles(0), [("all", 26)]);
        assert_eq!(tiles(1), [("main", 22), ("0x7f0066660456 [unknown]", 3), ("[no stack]", 1)]);
        assert_eq!(tiles(2)[0], ("grow_list", 12));
        for it in &icicle.tiles {
            let inside =
                |parent: &Tile| parent.left <= it.left && it.left + it.width <= parent.left + parent.width;
            assert!(it.path.is_empty() || icicle.find(&it.path[..it.path.len() - 1]).is_some_and(inside));
        }
    }

    #[test]
    fn threads_of_one_name_are_separate() {
        let stack = |number| {
            let thread = Thread { number, name: "http-nio-8080-e".to_owned(), nth: 1 };
            StackProfile {
                live: Totals { bytes: 8, objects: 1 },
                frames: sample::shared([Frame::of_thread(&thread)]),
                ..sample::empty_stack()
            }
        };
        let stacks = [stack(41), stack(42)];
        let icicle = Icicle::of(stacks.iter(), &[], Place { width: 70, rows: 9, value: Value::Bytes });
        let threads = icicle.tiles.iter().filter(|it| it.depth == 1).map(|it| it.label.as_str());
        assert_eq!(threads.collect::<Vec<_>>(), ["http-nio-8080-e (tid 41)", "http-nio-8080-e (tid 42)"]);
    }

    #[test]
    fn zooming_in_leaves_what_is_called_from_there() {
        let all = icicle(&[], 26);
        let path = all.tiles.iter().find(|it| it.label == "grow_list").unwrap().path.clone();
        let zoomed = icicle(&path, 26);
        assert_eq!((&*zoomed.tiles[0].label, zoomed.live.objects), ("grow_list", 12));
        assert!(zoomed.tiles.iter().all(|it| it.width == 26));
    }

    #[test]
    fn tiles_have_neighbours() {
        let icicle = icicle(&[], 26);
        let root = icicle.find(&[]).unwrap();
        let main = icicle.below(root).unwrap();
        assert_eq!(main.label, "main");
        let right = icicle.beside(main, true).unwrap();
        assert_eq!(icicle.beside(right, false), Some(main));
        assert_eq!(icicle.beside(main, false), None);
    }
}
