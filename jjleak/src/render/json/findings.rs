//! Findings in the JSON report.

use serde::{Deserialize, Serialize};

use super::{RateDocument, TotalsDocument};
use crate::analyze::{Finding, Rules, findings};
use crate::profile::{FrameNumbers, Profile, VerdictKind};
use crate::render::findings::{place, sentences_of, to_do};
use crate::render::label::label;

/// A cause of growth: call sites with the same function of the application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FindingDocument {
    /// `leak`, `growth` (it is too early to say more), or `threads` (they are started and do not end).
    pub cause: String,
    /// Function, module, file and line of the application.
    pub call_site: String,
    /// The function that it calls; absent if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<String>,
    /// Index of the application's frame in the report's `frames`; absent if no stack with it is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<u32>,
    /// IDs of its stacks.
    pub stacks: Vec<String>,
    /// IDs of its call sites, as in `verdicts`.
    pub sites: Vec<String>,
    /// Live memory of all stacks.
    pub live: TotalsDocument,
    /// Growth of all stacks; 0 if it is not known.
    pub bytes_per_s: f64,
    /// The same with its interval; absent if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateDocument>,
    /// Number of live threads, if it is about threads that can be counted; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_threads: Option<u64>,
    /// True if it does not matter, compared with all growth, the process's size and its room.
    pub small: bool,
    /// Range 0 to 1.
    pub confidence: f64,
    /// Evidence, as in the text report.
    pub evidence: Vec<String>,
    /// The next step.
    pub to_do: String,
}

/// All findings of a profile, worst first; none before there are verdicts.
pub(super) fn documents(
    profile: &Profile,
    rules: &Rules,
    numbers: &FrameNumbers<'_>,
) -> Vec<FindingDocument> {
    if !profile.is_judged() {
        return Vec::new();
    }
    findings(profile, rules).iter().map(|finding| document(finding, numbers)).collect()
}

fn document(finding: &Finding<'_>, numbers: &FrameNumbers<'_>) -> FindingDocument {
    let verdicts = &finding.verdicts;
    let hexadecimal = |id: u64| format!("{id:016x}");
    let cause = match finding.kind {
        _ if finding.is_threads => "threads",
        VerdictKind::Leaking => "leak",
        _ => "growth",
    };
    FindingDocument {
        cause: cause.to_owned(),
        call_site: place(finding),
        calls: finding.called().map(|frame| label(frame).into_owned()),
        frame: verdicts[0].frames.get(finding.frame).and_then(|frame| numbers.find(frame)),
        stacks: verdicts.iter().flat_map(|verdict| verdict.stacks.iter().copied()).map(hexadecimal).collect(),
        sites: verdicts.iter().map(|verdict| hexadecimal(verdict.site)).collect(),
        live: finding.live.into(),
        bytes_per_s: finding.rate.map_or(0., |rate| rate.per_second),
        rate: finding.rate.map(Into::into),
        live_threads: finding.threads().map(|(threads, _)| threads),
        small: finding.is_small,
        confidence: finding.confidence,
        evidence: sentences_of(finding),
        to_do: to_do(finding),
    }
}
