//! What the log says of a process when profiling it has ended: never anything else than what is known of it from then on.

use super::profile::Finding;

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    pid: u32,
    leaking: usize,
    /// The profile that tells it; nothing if it is not kept.
    profile: String,
    /// Whether somebody is to look at it.
    is_warning: bool,
    /// What is to be thought of the process.
    what: &'static str,
    why: String,
}

impl Outcome {
    /// Of what holds when profiling has ended, perhaps because it cost too much.
    pub(super) fn of(finding: &Finding, was_too_dear: bool) -> Self {
        let (is_warning, what) = match finding {
            Finding { leaking: 1.., .. } => (true, "leaks"),
            // It was profiled because it grows: that nothing could be told this time is for somebody to know.
            Finding { judged: true, .. } => (finding.is_last_in_vain(), "was not found to leak"),
            _ if finding.is_final() => (true, "cannot be judged"),
            _ if was_too_dear => (
                true,
                "is not judged: profiling it ended early, because it cost more than profile.max_overhead allows",
            ),
            _ => (false, "is not judged"),
        };
        let Finding { verdict, last_verdict, .. } = finding;
        let why = if finding.judged && !finding.is_last_judged {
            format!(
                "{verdict} (an earlier profile tells that; the last one could judge nothing: {last_verdict})"
            )
        } else {
            verdict.clone()
        };
        let profile = finding.told_in.as_ref().map(ToString::to_string).unwrap_or_default();
        Self { pid: finding.pid.number().get(), leaking: finding.leaking, profile, is_warning, what, why }
    }

    /// Says it of the process with this name.
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
