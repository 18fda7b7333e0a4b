//! Log message at the end of a profiling run, always consistent with the finding that stays.

use super::profile::Finding;

/// Message about a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pid: u32,
    leaking: usize,
    /// The profile with the verdict; empty if it was not stored.
    profile: String,
    /// True if it needs attention.
    is_warning: bool,
    /// Summary of the finding.
    what: &'static str,
    why: String,
}

impl Outcome {
    /// Builds the message for a finding, after a run that may have been stopped for its cost.
    pub(super) fn of(finding: &Finding, was_too_costly: bool) -> Self {
        let (is_warning, what) = match finding {
            Finding { leaking: 1.., .. } => (true, "leaks"),
            // It was profiled because it grows, so an inconclusive last profile needs attention.
            Finding { judged: true, .. } => (finding.is_last_in_vain(), "was not found to leak"),
            _ if finding.is_final() => (true, "cannot be judged"),
            _ if was_too_costly => (
                true,
                "is not judged: profiling stopped early because it cost more than profile.max_overhead allows",
            ),
            _ => (false, "is not judged"),
        };
        let Finding { verdict, last_verdict, .. } = finding;
        let why = if finding.judged && !finding.is_last_judged {
            format!("{verdict} (from an earlier profile; the last one was inconclusive: {last_verdict})")
        } else {
            verdict.clone()
        };
        let profile = finding.verdict_profile.as_ref().map(ToString::to_string).unwrap_or_default();
        Self { pid: finding.pid.number().get(), leaking: finding.leaking, profile, is_warning, what, why }
    }

    /// Logs the message for the process with this name.
    pub(super) fn log(&self, name: &str) {
        let Self { pid, leaking, profile, is_warning, what, why } = self;
        if *leaking > 0 {
            tracing::warn!(pid, leaking, profile, "{name} {what}: {why}");
        } else if *is_warning {
            tracing::warn!(pid, profile, "{name} {what}: {why}");
        } else {
            tracing::info!(pid, profile, "{name} {what}: {why}");
        }
    }
}
