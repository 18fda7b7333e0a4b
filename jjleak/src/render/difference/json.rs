//! The difference as JSON: one document on one line, with the schema number of reports.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::super::json::{Each, FrameDocument, ProcessDocument, SCHEMA, Tables, TotalsDocument};
use super::super::{Options, TOOL};
use crate::analyze::{Difference, StackDifference, delta};
use crate::profile::{FrameNumbers, Profile, Totals};

/// Difference between two profiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DifferenceDocument<S = Tables<Vec<FrameDocument>, Vec<StackDifferenceDocument>>> {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `jjleak` and its version.
    pub tool: String,
    /// The first profile.
    pub before: SideDocument,
    /// The second profile.
    pub after: SideDocument,
    /// Factor that scaled the figures of the first profile; absent if they are unscaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_by: Option<f64>,
    /// The shown part of the profiles; absent if everything is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// Change of live memory from the first to the second profile.
    pub change: ChangeDocument,
    /// Every stack that is live in either profile, largest change first; before them, the distinct frames.
    #[serde(flatten)]
    pub stacks: S,
}

/// One of two profiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideDocument {
    /// Time of the profile, RFC 3339 in UTC.
    pub time: String,
    /// Seconds since accounting began.
    pub elapsed_s: f64,
    /// The process.
    pub process: ProcessDocument,
    /// Live memory of all stacks, normalized.
    pub live: TotalsDocument,
}

/// Increase, or decrease if negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeDocument {
    /// Requested bytes.
    pub bytes: i64,
    /// Blocks.
    pub objects: i64,
}

/// A stack in both profiles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackDifferenceDocument {
    /// `new`, `grew`, `shrank`, `gone` or `same`.
    pub change: String,
    /// Live memory in the first profile, normalized.
    pub before: TotalsDocument,
    /// Live memory in the second profile.
    pub after: TotalsDocument,
    /// Difference of both.
    pub delta: ChangeDocument,
    /// Frames, leaf first, as indices of the document's `frames`.
    pub frames: Vec<u32>,
}

impl<S> DifferenceDocument<S> {
    fn new(difference: &Difference<'_>, options: &Options, stacks: S) -> Self {
        let (before, after) = difference.live();
        Self {
            schema: SCHEMA,
            tool: TOOL.to_owned(),
            before: side(difference.before, before),
            after: side(difference.after, after),
            normalized_by: difference.scale,
            shown: (!options.view.is_empty()).then(|| options.view.clone()),
            change: change(before, after),
            stacks,
        }
    }
}

impl StackDifferenceDocument {
    fn new(stack: &StackDifference, numbers: &FrameNumbers<'_>) -> Self {
        Self {
            change: stack.change().name().to_owned(),
            before: stack.before.into(),
            after: stack.after.into(),
            delta: change(stack.before, stack.after),
            frames: stack.frames.iter().map(|frame| numbers.number(frame)).collect(),
        }
    }
}

fn side(profile: &Profile, live: Totals) -> SideDocument {
    SideDocument {
        time: profile.taken_at.to_string(),
        elapsed_s: profile.elapsed().as_secs_f64(),
        process: (&profile.process).into(),
        live: live.into(),
    }
}

fn change(before: Totals, after: Totals) -> ChangeDocument {
    ChangeDocument { bytes: delta(before.bytes, after.bytes), objects: delta(before.objects, after.objects) }
}

/// Writes the document.
pub(super) fn write(difference: &Difference<'_>, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let stacks = &difference.stacks;
    let numbers = FrameNumbers::new(stacks.iter().flat_map(|stack| stack.frames.iter()));
    let tables = Tables {
        frames: Each(numbers.frames().iter().map(|frame| FrameDocument::from(*frame))),
        stacks: Each(stacks.iter().map(|stack| StackDifferenceDocument::new(stack, &numbers))),
    };
    serde_json::to_writer(&mut *out, &DifferenceDocument::new(difference, options, tables))?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::Matching;
    use crate::render::sample;

    #[test]
    fn a_document_is_one_line_and_reads_back_as_it_was() {
        let before = sample::profile();
        let mut after = before.clone();
        after.stacks.remove(1);
        let difference = Difference::new(&before, &after, Matching::default(), false).unwrap();
        let mut out = Vec::new();
        write(&difference, &sample::options(), &mut out).unwrap();
        assert!(!out[..out.len() - 1].contains(&b'\n'));
        let document: DifferenceDocument = serde_json::from_slice(&out).unwrap();
        assert_eq!(document.change, ChangeDocument { bytes: -1_536_000, objects: -12 });
        let Tables { frames, stacks } = document.stacks;
        assert_eq!(stacks[0].change, "gone");
        let symbols = stacks[0].frames.iter().map(|index| &frames[*index as usize].symbol);
        assert!(symbols.eq(before.stacks[1].frames.iter().map(|frame| &frame.symbol)));
    }
}
