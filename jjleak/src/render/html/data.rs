//! Data for the page's script: the outstanding stacks, with each name once.

use std::borrow::Cow;
use std::collections::HashMap;

use maud::PreEscaped;
use serde::Serialize;

use super::super::label::{NO_STACK, label, module};
use super::super::marks::{MARKS, NOT_JUDGED, StackMarks};
use super::super::svg;
use super::super::{Options, Value, live_or_allocated};
use crate::analyze::{Change, Difference};
use crate::profile::{FrameKind, Frames, Profile, SharedFrame, Totals};

/// Name of a measure in the script.
const fn name_of(value: Value) -> &'static str {
    match value {
        Value::Bytes => "bytes",
        Value::Objects => "objects",
    }
}

#[derive(Serialize)]
struct Data<'a> {
    /// Names and colours of kinds of frames.
    kinds: Vec<(&'static str, String)>,
    /// Label, index of the kind, file name of the module.
    names: Vec<(Cow<'a, str>, usize, Cow<'a, str>)>,
    /// Indices of names, leaf first; bytes and objects, which are the larger ones of two profiles; index of the verdict.
    stacks: Vec<(Vec<usize>, u64, u64, usize)>,
    /// Verdicts and their colours, worst first.
    verdicts: [(&'static str, &'static str); MARKS.len()],
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Changes>,
    everything: &'static str,
    /// Colour of the root frame.
    root: String,
    /// Name of the figures: live or allocated.
    figure: &'static str,
    by: &'static str,
    inverted: bool,
}

/// Stacks in the first and the second of two profiles.
#[derive(Serialize)]
struct Changes {
    /// Bytes and objects of each stack before and after.
    stacks: Vec<[u64; 4]>,
    /// Weakest and strongest colours of what is new, grew, shrank, is gone, and is the same.
    shades: [[(u8, u8, u8); 2]; Change::ALL.len()],
    names: [&'static str; Change::ALL.len()],
}

/// Distinct names of frames.
#[derive(Default)]
struct Names<'a> {
    names: Vec<(Cow<'a, str>, usize, Cow<'a, str>)>,
    indexes: HashMap<(Cow<'a, str>, FrameKind), usize>,
}

impl<'a> Names<'a> {
    fn index(&mut self, label: Cow<'a, str>, kind: FrameKind, module: Cow<'a, str>) -> usize {
        let next = self.names.len();
        *self.indexes.entry((label.clone(), kind)).or_insert_with(|| {
            let position = FrameKind::ALL.iter().position(|known| *known == kind).unwrap_or_default();
            self.names.push((label, position, module));
            next
        })
    }

    /// Indices of a stack's frames.
    fn path(&mut self, frames: &'a Frames) -> Vec<usize> {
        if frames.is_empty() {
            return vec![self.index(NO_STACK.into(), FrameKind::Unknown, "".into())];
        }
        let index =
            |frame: &'a SharedFrame| self.index(label(frame), frame.kind, module(frame).unwrap_or_default());
        frames.iter().map(index).collect()
    }
}

/// The stacks of a profile.
pub(super) fn json(profile: &Profile, options: &Options) -> serde_json::Result<PreEscaped<String>> {
    let mut names = Names::default();
    let marks = StackMarks::of(profile);
    let outstanding = profile.stacks.iter().filter(|stack| !stack.live.is_nothing());
    let stacks = outstanding.map(|stack| {
        let Totals { bytes, objects } = stack.live;
        (names.path(&stack.frames), bytes, objects, marks.of_stack(stack.id))
    });
    let stacks = stacks.collect();
    written(&data(names, stacks, None, live_or_allocated(&profile.coverage), options))
}

/// The stacks of two profiles.
pub(super) fn json_of_difference(
    difference: &Difference<'_>,
    options: &Options,
) -> serde_json::Result<PreEscaped<String>> {
    let mut names = Names::default();
    let stacks = difference.stacks.iter().map(|stack| {
        let (before, after) = (stack.before, stack.after);
        (
            names.path(&stack.frames),
            before.bytes.max(after.bytes),
            before.objects.max(after.objects),
            NOT_JUDGED,
        )
    });
    let stacks = stacks.collect();
    let figures = difference
        .stacks
        .iter()
        .map(|stack| [stack.before.bytes, stack.before.objects, stack.after.bytes, stack.after.objects]);
    let changes = Changes {
        stacks: figures.collect(),
        shades: Change::ALL.map(svg::shades),
        names: Change::ALL.map(Change::name),
    };
    let figure = live_or_allocated(&difference.after.coverage);
    written(&data(names, stacks, Some(changes), figure, options))
}

fn data<'a>(
    Names { names, .. }: Names<'a>,
    stacks: Vec<(Vec<usize>, u64, u64, usize)>,
    changes: Option<Changes>,
    figure: &'static str,
    options: &Options,
) -> Data<'a> {
    Data {
        kinds: FrameKind::ALL.map(|kind| (svg::kind_name(kind), svg::kind_color(kind))).to_vec(),
        names,
        stacks,
        verdicts: MARKS,
        changes,
        everything: "all",
        root: svg::everything_color(),
        figure,
        by: name_of(options.value),
        inverted: options.inverted,
    }
}

/// The data as JSON that is safe in a `script` element: nothing in it can end the element.
fn written(data: &Data<'_>) -> serde_json::Result<PreEscaped<String>> {
    // In JSON these characters occur only in strings, where any character can be escaped by its number.
    let json = serde_json::to_string(data)?;
    Ok(PreEscaped(json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")))
}
