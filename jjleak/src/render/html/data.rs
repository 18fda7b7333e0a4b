//! Data for the page's script: the outstanding stacks, with each name once.

use std::borrow::Cow;
use std::collections::HashMap;

use maud::PreEscaped;
use serde::Serialize;

use super::super::label::{NO_STACK, label, module};
use super::super::svg;
use super::super::{Options, Value, live_or_allocated};
use crate::profile::{Basis, FrameKind, Profile, Verdict, VerdictKind};

/// Name of a measure in the script.
const fn name_of(value: Value) -> &'static str {
    match value {
        Value::Bytes => "bytes",
        Value::Objects => "objects",
    }
}

/// Verdicts on stacks, worst first, and their colours.
pub(super) const VERDICTS: [(&str, &str); 4] =
    [("leaking", "#f2776b"), ("growing", "#f0a030"), ("does not grow", "#8fb3d9"), ("not judged", "#d3d3d3")];

/// Index into [`VERDICTS`] by the stack's ID.
fn verdicts_of_stacks(profile: &Profile) -> HashMap<u64, usize> {
    let of = |verdict: &Verdict| match (verdict.basis, verdict.kind) {
        (Basis::Nothing, _) => 3,
        (_, VerdictKind::Leaking) => 0,
        (_, VerdictKind::Growing) => 1,
        (Basis::ShortHistory, _) => 3,
        _ => 2,
    };
    let stacks = |verdict: &Verdict| {
        let index = of(verdict);
        verdict.stacks.iter().map(move |stack| (*stack, index)).collect::<Vec<_>>()
    };
    profile.verdicts.iter().flat_map(stacks).collect()
}

#[derive(Serialize)]
struct Data<'a> {
    /// Names and colours of kinds of frames.
    kinds: Vec<(&'static str, String)>,
    /// Label, index of the kind, file name of the module.
    names: Vec<(Cow<'a, str>, usize, Cow<'a, str>)>,
    /// Indices of names, leaf first; live bytes and objects; index of the verdict.
    stacks: Vec<(Vec<usize>, u64, u64, usize)>,
    /// Verdicts and their colours, worst first.
    verdicts: [(&'static str, &'static str); VERDICTS.len()],
    everything: &'static str,
    /// Colour of the root frame.
    root: String,
    /// Name of the figures: live or allocated.
    figure: &'static str,
    by: &'static str,
    inverted: bool,
}

/// The data as JSON that is safe in a `script` element: nothing in it can end the element.
pub(super) fn json(profile: &Profile, options: &Options) -> serde_json::Result<PreEscaped<String>> {
    let mut names = Vec::new();
    let mut indexes: HashMap<(Cow<'_, str>, FrameKind), usize> = HashMap::new();
    let mut index = |label: Cow<'_, str>, kind, module: Cow<'_, str>| -> usize {
        let next = names.len();
        *indexes.entry((Cow::Owned(label.clone().into_owned()), kind)).or_insert_with(|| {
            let position = FrameKind::ALL.iter().position(|known| *known == kind).unwrap_or_default();
            names.push((Cow::Owned(label.into_owned()), position, Cow::Owned(module.into_owned())));
            next
        })
    };
    let verdicts = verdicts_of_stacks(profile);
    let outstanding = profile.stacks.iter().filter(|stack| !stack.live.is_nothing());
    let stacks = outstanding.map(|stack| {
        let frames = stack.frames.iter();
        let mut path: Vec<_> =
            frames.map(|frame| index(label(frame), frame.kind, module(frame).unwrap_or_default())).collect();
        if path.is_empty() {
            path.push(index(NO_STACK.into(), FrameKind::Unknown, "".into()));
        }
        let verdict = verdicts.get(&stack.id).copied().unwrap_or(VERDICTS.len() - 1);
        (path, stack.live.bytes, stack.live.objects, verdict)
    });
    let stacks = stacks.collect();
    let data = Data {
        kinds: FrameKind::ALL.map(|kind| (svg::kind_name(kind), svg::kind_color(kind))).to_vec(),
        names,
        stacks,
        verdicts: VERDICTS,
        everything: "all",
        root: svg::everything_color(),
        figure: live_or_allocated(&profile.coverage),
        by: name_of(options.value),
        inverted: options.inverted,
    };
    // In JSON these characters occur only in strings, where any character can be escaped by its number.
    let json = serde_json::to_string(&data)?;
    Ok(PreEscaped(json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")))
}
