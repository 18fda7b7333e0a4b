//! Stacks that have the same frames up to a depth, by their next frame.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::ptr;
use std::rc::Rc;

use super::{FlameStack, Node, add, place};
use crate::fast_map::FastMap;
use crate::profile::{Frame, FrameKind, SharedFrame, Totals};
use crate::render::label::{NO_STACK, label};
use crate::render::marks::MARKS;

/// Stacks by their next frames.
pub(super) struct Merge<S> {
    /// Returns the stack with an index.
    stack: S,
    inverted: bool,
    /// Labels by address of the frame: stacks share frames.
    labels: FastMap<*const Frame, Rc<str>>,
    /// Indexes of the stacks. Those that have the same frames up to a depth stand together.
    order: Vec<u32>,
}

/// Stacks after a frame.
pub(super) struct Following<'a> {
    /// Nodes for their next frames, by label, each with the range of its stacks in [`Merge::order`].
    pub(super) children: Vec<(Node<'a>, Range<usize>)>,
    /// Width of those that have no next frame.
    pub(super) ended: Totals,
}

/// Sums of stacks with the same next frame.
struct Same<'a> {
    /// `None` for stacks without frames.
    frame: Option<&'a SharedFrame>,
    before: Totals,
    live: Totals,
    width: Totals,
    stacks: usize,
    /// Live bytes by verdict.
    marked: [u64; MARKS.len()],
}

impl<'a, S: Fn(u32) -> FlameStack<'a>> Merge<S> {
    pub(super) fn new(stack: S, stacks: Vec<u32>, inverted: bool) -> Self {
        Self { stack, inverted, labels: FastMap::default(), order: stacks }
    }

    /// Splits stacks that are the same for the first `depth` frames.
    pub(super) fn following(
        &mut self,
        parent: Option<usize>,
        depth: usize,
        stacks: Range<usize>,
    ) -> Following<'a> {
        let mut ended = Totals::default();
        let mut same: Vec<Same<'a>> = Vec::new();
        let mut numbers: FastMap<*const Frame, u32> = FastMap::default();
        // Numbers of the next frames, with the stacks.
        let mut followed = Vec::with_capacity(stacks.len());
        for index in &self.order[stacks.clone()] {
            let stack = (self.stack)(*index);
            let frame = if self.inverted { stack.frames.get(depth) } else { stack.frames.from_root(depth) };
            if frame.is_none() && parent.is_some() {
                add(&mut ended, stack.width());
                continue;
            }
            let number =
                *numbers.entry(frame.map_or(ptr::null(), SharedFrame::as_ptr)).or_insert_with(|| {
                    same.push(Same::of(frame));
                    u32::try_from(same.len() - 1).unwrap_or(u32::MAX)
                });
            same[number as usize].add(&stack);
            followed.push((number, *index));
        }
        // Ranks of the frames, so that those with one label stand together.
        let mut by_label: BTreeMap<(Rc<str>, FrameKind), Vec<usize>> = BTreeMap::new();
        for (number, same) in same.iter().enumerate() {
            by_label.entry(self.label(same.frame)).or_default().push(number);
        }
        let mut ranks = vec![0; same.len()];
        by_label.values().flatten().zip(0..).for_each(|(number, rank)| ranks[*number] = rank);
        for (number, _) in &mut followed {
            *number = ranks[*number as usize];
        }
        followed.sort_unstable();
        let mut begin = stacks.start;
        for (place, (_, index)) in self.order[stacks].iter_mut().zip(followed) {
            *place = index;
        }
        let child = |((label, kind), numbers): ((Rc<str>, FrameKind), Vec<usize>)| {
            let mut node = Node::new(parent, label, kind);
            let of_child = || numbers.iter().map(|number| &same[*number]);
            of_child().for_each(|same| same.add_to(&mut node));
            let end = begin + of_child().map(|same| same.stacks).sum::<usize>();
            (node, mem::replace(&mut begin, end)..end)
        };
        Following { children: by_label.into_iter().map(child).collect(), ended }
    }

    fn label(&mut self, frame: Option<&SharedFrame>) -> (Rc<str>, FrameKind) {
        let Some(frame) = frame else { return (NO_STACK.into(), FrameKind::Unknown) };
        let label = self.labels.entry(SharedFrame::as_ptr(frame)).or_insert_with(|| Rc::from(&*label(frame)));
        (Rc::clone(label), frame.kind)
    }
}

impl<'a> Same<'a> {
    const fn of(frame: Option<&'a SharedFrame>) -> Self {
        let nothing = Totals { bytes: 0, objects: 0 };
        Self { frame, before: nothing, live: nothing, width: nothing, stacks: 0, marked: [0; MARKS.len()] }
    }

    fn add(&mut self, stack: &FlameStack<'_>) {
        add(&mut self.before, stack.before);
        add(&mut self.live, stack.live);
        add(&mut self.width, stack.width());
        self.stacks += 1;
        if let Some(bytes) = self.marked.get_mut(stack.mark) {
            *bytes = bytes.saturating_add(stack.live.bytes);
        }
    }

    fn add_to(&self, node: &mut Node<'a>) {
        add(&mut node.before, self.before);
        add(&mut node.live, self.live);
        add(&mut node.width, self.width);
        for (sum, bytes) in node.marked.iter_mut().zip(self.marked) {
            *sum = sum.saturating_add(bytes);
        }
        if let Some(place) = self.frame.and_then(|frame| place(frame))
            && let Err(at) = node.places.binary_search(&place)
        {
            node.places.insert(at, place);
        }
    }
}
