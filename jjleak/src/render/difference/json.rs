//! The difference as JSON: one document on one line, numbered like reports.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::super::json::{FrameDocument, ProcessDocument, SCHEMA, TotalsDocument};
use super::super::{Options, TOOL};
use crate::analyze::{Difference, StackDifference, delta};
use crate::profile::{Profile, Totals};

/// What is different between two profiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DifferenceDocument {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `jjleak` and its version.
    pub tool: String,
    /// The first profile.
    pub before: SideDocument,
    /// The second profile.
    pub after: SideDocument,
    /// What figures of the first were multiplied by; absent when they are as they were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalized_by: Option<f64>,
    /// What of the profiles is shown, when that is not everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown: Option<String>,
    /// What lives more in the second than in the first, or less.
    pub change: ChangeDocument,
    /// Every stack of which something lives in either, the largest change first.
    pub stacks: Vec<StackDifferenceDocument>,
}

/// One of two profiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SideDocument {
    /// The instant it describes, RFC 3339 in UTC.
    pub time: String,
    /// Seconds since accounting began.
    pub elapsed_s: f64,
    /// Whose it is.
    pub process: ProcessDocument,
    /// What lives, over all stacks, after normalization.
    pub live: TotalsDocument,
}

/// More, or less.
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
    /// What lives in the first, after normalization.
    pub before: TotalsDocument,
    /// What lives in the second.
    pub after: TotalsDocument,
    /// How much more that is.
    pub delta: ChangeDocument,
    /// Frames, leaf first.
    pub frames: Vec<FrameDocument>,
}

impl DifferenceDocument {
    fn new(difference: &Difference<'_>, options: &Options) -> Self {
        let (before, after) = difference.live();
        Self {
            schema: SCHEMA,
            tool: TOOL.to_owned(),
            before: side(difference.before, before),
            after: side(difference.after, after),
            normalized_by: difference.scale,
            shown: (!options.view.is_empty()).then(|| options.view.clone()),
            change: change(before, after),
            stacks: difference.stacks.iter().map(StackDifferenceDocument::new).collect(),
        }
    }
}

impl StackDifferenceDocument {
    fn new(stack: &StackDifference) -> Self {
        Self {
            change: stack.change().name().to_owned(),
            before: stack.before.into(),
            after: stack.after.into(),
            delta: change(stack.before, stack.after),
            frames: stack.frames.iter().map(FrameDocument::from).collect(),
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
    serde_json::to_writer(&mut *out, &DifferenceDocument::new(difference, options))?;
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
        assert_eq!(document, DifferenceDocument::new(&difference, &sample::options()));
        assert_eq!(document.change, ChangeDocument { bytes: -1_536_000, objects: -12 });
        assert_eq!((document.stacks[0].change.as_str(), document.stacks[0].frames.len()), ("gone", 5));
    }
}
