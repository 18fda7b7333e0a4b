//! What can be said of a row.

use crate::profile::{Basis, NOT_JUDGED, TOO_EARLY, Verdict, VerdictKind};

/// What can be said of a row, what matters most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    Leaking,
    Growing,
    /// It has not been watched for long enough to say.
    TooEarly,
    CacheLike,
    StartUp,
    SteadyChurn,
    /// Nothing was judged, as figures are not of all that there is.
    Unjudged,
}

impl Standing {
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
            (Basis::ShortPast, _) => Self::TooEarly,
            (Basis::LongPast, VerdictKind::Leaking) => Self::Leaking,
            (Basis::LongPast, VerdictKind::Growing) => Self::Growing,
            (Basis::LongPast, VerdictKind::CacheLike) => Self::CacheLike,
            (Basis::LongPast, VerdictKind::StartUp) => Self::StartUp,
            (Basis::LongPast, VerdictKind::SteadyChurn) => Self::SteadyChurn,
        }
    }

    /// In a column's few cells.
    pub(super) const fn short(self) -> &'static str {
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

    /// After the number of those of which it is said.
    pub(super) const fn of_several(self) -> &'static str {
        match self {
            Self::TooEarly => TOO_EARLY,
            Self::Unjudged => NOT_JUDGED,
            other => other.short(),
        }
    }
}
