//! Accuracy table.

use std::collections::BTreeMap;
use std::fmt;

use super::kinds::Kind;
use crate::analyze::statistics::real;
use crate::profile::VerdictKind;

/// Counts of verdicts.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// By expected and actual verdict.
    judged: BTreeMap<(VerdictKind, VerdictKind), usize>,
    /// By kind and actual verdict.
    kinds: BTreeMap<&'static str, BTreeMap<VerdictKind, usize>>,
}

impl Table {
    pub(super) fn add(&mut self, kind: &Kind, verdict: VerdictKind) {
        // Where two verdicts are accepted, either counts as expected.
        let label = if kind.labels.contains(&verdict) { verdict } else { kind.labels[0] };
        *self.judged.entry((label, verdict)).or_default() += 1;
        *self.kinds.entry(kind.name).or_default().entry(verdict).or_default() += 1;
    }

    fn count(&self, which: impl Fn(VerdictKind, VerdictKind) -> bool) -> f64 {
        real(self.judged.iter().filter(|((is, taken), _)| which(*is, *taken)).map(|(_, count)| count).sum())
    }

    /// Share of these verdicts that are right.
    pub(super) fn precision(&self, verdict: VerdictKind) -> f64 {
        self.count(|is, taken| is == verdict && taken == verdict)
            / self.count(|_, taken| taken == verdict).max(1.)
    }

    /// Share of these sites that get this verdict.
    pub(super) fn recall(&self, verdict: VerdictKind) -> f64 {
        self.count(|is, taken| is == verdict && taken == verdict) / self.count(|is, _| is == verdict).max(1.)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<44}{:>6}  judged", "past", "runs")?;
        for (name, judged) in &self.kinds {
            let words = judged.iter().map(|(verdict, count)| format!("{} {count}", verdict.name()));
            let words = words.collect::<Vec<_>>().join(", ");
            writeln!(formatter, "{name:<44}{:>6}  {words}", judged.values().sum::<usize>())?;
        }
        writeln!(formatter, "\n{:<16}{:>6}{:>12}{:>9}", "verdict", "runs", "precision", "recall")?;
        for verdict in VerdictKind::ALL {
            let (precision, recall) = (self.precision(verdict), self.recall(verdict));
            let runs = self.count(|is, _| is == verdict);
            writeln!(formatter, "{:<16}{runs:>6}{precision:>12.3}{recall:>9.3}", verdict.name())?;
        }
        Ok(())
    }
}
