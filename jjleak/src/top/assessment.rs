//! Assessment of a row, shown in the verdict column.

use crate::profile::{Basis, NOT_JUDGED, TOO_EARLY, Verdict, VerdictKind};

/// Assessment of a row, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Assessment {
    Leaking,
    Growing,
    /// Not observed for long enough.
    TooEarly,
    CacheLike,
    StartUp,
    SteadyChurn,
    /// Not judged, because the figures are incomplete.
    Unjudged,
}

impl Assessment {
    pub(super) const ALL: [Self; 7] = [
        Self::Leaking,
        Self::Growing,
        Self::TooEarly,
        Self::CacheLike,
        Self::StartUp,
        Self::SteadyChurn,
        Self::Unjudged,
    ];

    pub(super) const fn of(verdict: &Verdict) -> Self {
        match (verdict.basis, verdict.kind) {
            (Basis::Nothing, _) => Self::Unjudged,
            (Basis::ShortHistory, _) => Self::TooEarly,
            (Basis::LongHistory, VerdictKind::Leaking) => Self::Leaking,
            (Basis::LongHistory, VerdictKind::Growing) => Self::Growing,
            (Basis::LongHistory, VerdictKind::CacheLike) => Self::CacheLike,
            (Basis::LongHistory, VerdictKind::StartUp) => Self::StartUp,
            (Basis::LongHistory, VerdictKind::SteadyChurn) => Self::SteadyChurn,
        }
    }

    /// Label for a narrow column.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Leaking => "leaking",
            Self::Growing => "growing",
            Self::TooEarly => "early",
            Self::CacheLike => "cache",
            Self::StartUp => "start-up",
            Self::SteadyChurn => "churn",
            Self::Unjudged => "-",
        }
    }

    /// Label after a number of call sites.
    pub(super) const fn plural_label(self) -> &'static str {
        match self {
            Self::TooEarly => TOO_EARLY,
            Self::Unjudged => NOT_JUDGED,
            other => other.label(),
        }
    }
}
