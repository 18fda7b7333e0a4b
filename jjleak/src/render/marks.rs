//! Verdicts in flame graphs: each stack has that of its call site.

use crate::fast_map::FastMap;
use crate::profile::{Basis, Profile, Verdict, VerdictKind};

/// Verdicts on stacks, worst first, and their colours.
pub(super) const MARKS: [(&str, &str); 4] =
    [("leaking", "#f2776b"), ("growing", "#f0a030"), ("does not grow", "#8fb3d9"), ("not judged", "#d3d3d3")];

/// Index into [`MARKS`] of what leaks.
pub(super) const LEAKING: usize = 0;

/// Index into [`MARKS`] of what has no verdict.
pub(super) const NOT_JUDGED: usize = MARKS.len() - 1;

/// The colour of what leaks at the edge of frames.
pub(super) const LEAKING_EDGE: &str = "#8c0f0f";

/// Verdicts by stack.
#[derive(Default)]
pub(super) struct StackMarks(FastMap<u64, usize>);

impl StackMarks {
    pub(super) fn of(profile: &Profile) -> Self {
        let stacks = |verdict: &Verdict| {
            let mark = mark(verdict);
            verdict.stacks.iter().map(move |stack| (*stack, mark)).collect::<Vec<_>>()
        };
        Self(profile.verdicts.iter().flat_map(stacks).collect())
    }

    /// Index into [`MARKS`] of a stack by its ID.
    pub(super) fn of_stack(&self, id: u64) -> usize {
        self.0.get(&id).copied().unwrap_or(NOT_JUDGED)
    }
}

fn mark(verdict: &Verdict) -> usize {
    match (verdict.basis, verdict.kind) {
        (Basis::Nothing, _) => NOT_JUDGED,
        (_, VerdictKind::Leaking) => LEAKING,
        (_, VerdictKind::Growing) => 1,
        (Basis::ShortHistory, _) => NOT_JUDGED,
        _ => 2,
    }
}
