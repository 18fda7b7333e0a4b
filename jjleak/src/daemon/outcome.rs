//! Log message at the end of a profiling run, always consistent with the finding that stays.

use std::time::Duration;

use super::config::ListenAddress;
use super::history::Id;
use super::profile::Finding;
use super::service;
use super::watch::Watched;
use crate::profile::{Rate, SourceKind};
use crate::render::{duration, humane_bytes, pace};

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
    /// Resident memory and the time left.
    memory: String,
    /// Where the report is.
    report: String,
}

impl Outcome {
    /// Builds the message for a finding, after a run that may have been stopped for its cost. `grows` is true if the process's
    /// resident memory does.
    pub(super) fn of(finding: &Finding, was_too_costly: bool, grows: bool) -> Self {
        let (is_warning, what) = match finding {
            // Both are profiled because they grew.
            Finding { source: SourceKind::JavaHeap, .. } => (true, "has a Java heap that grew"),
            Finding { source: SourceKind::Growth, .. } => {
                (true, "has grown by memory that its allocations do not explain")
            }
            Finding { leaking: 1.., .. } => (true, "leaks"),
            Finding { judged: true, .. } if grows => {
                (true, "grows, but was not found to leak what it allocates")
            }
            // It was profiled because it grew, so an inconclusive last profile needs attention.
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
        let why = match &finding.worst {
            Some(worst) if finding.leaking > 0 => format!("{worst}; {why}"),
            _ => why,
        };
        let profile = finding.verdict_profile.as_ref().map(ToString::to_string).unwrap_or_default();
        let (memory, report) = (String::new(), String::new());
        let pid = finding.pid.number().get();
        Self { pid, leaking: finding.leaking, profile, is_warning, what, why, memory, report }
    }

    /// Adds the process's resident memory, the time until its room is used up, and what grew while it was profiled.
    pub(super) fn with_memory(self, watched: &Watched, grew: Option<&str>) -> Self {
        let last = watched.case.last();
        let growth = watched.case.trend().growth();
        let resident = bytes(last.resident);
        let grew_by = grew.map_or_else(String::new, |grew| format!("; {grew}"));
        if growth <= 0. {
            let now = if grew.is_some() { "" } else { ", not growing now" };
            return Self { memory: format!("; resident memory {resident}{now}{grew_by}"), ..self };
        }
        let rate = Rate { per_second: growth, low: growth, high: growth };
        let left = last.limit.and_then(|limit| {
            let time: Duration = rate.time_to_fill(limit.available)?;
            let whose = if limit.is_cgroup { "its control group" } else { "the machine" };
            Some(format!(
                ": the {} that {whose} has left are used up in {}",
                bytes(limit.available),
                duration(time)
            ))
        });
        let left = left.unwrap_or_default();
        let memory = format!("; resident memory {resident}, {}{left}{grew_by}", pace(rate));
        Self { memory, ..self }
    }

    /// Adds the address of the report.
    pub(super) fn with_report(self, listen: &ListenAddress, profile: Option<&Id>) -> Self {
        let Some(id) = profile else { return self };
        Self { report: report_at(listen, id), ..self }
    }

    /// Logs the message for the process with this name.
    pub(super) fn log(&self, name: &str) {
        let Self { pid, leaking, profile, is_warning, what, why, memory, report } = self;
        if *leaking > 0 {
            tracing::warn!(pid, leaking, profile, "{name} {what}: {why}{memory}{report}");
        } else if *is_warning {
            tracing::warn!(pid, profile, "{name} {what}: {why}{memory}{report}");
        } else {
            tracing::info!(pid, profile, "{name} {what}: {why}{memory}{report}");
        }
    }
}

/// The address of a report, as the end of a message.
pub(super) fn report_at(listen: &ListenAddress, profile: &Id) -> String {
    let path = format!("/profiles/{profile}/report.html");
    match listen {
        ListenAddress::Tcp(address) => format!("; report: http://{address}{path}"),
        ListenAddress::Unix(socket) => {
            format!("; report: curl --unix-socket {} http://localhost{path}", socket.display())
        }
        ListenAddress::Off => String::new(),
    }
}

/// The name of a process to those who run it: `tomcat.service: java org.acme.Main (pid 42)`.
pub(super) fn name(watched: &Watched, runs: Option<&str>) -> String {
    let pid = watched.process.pid;
    let runs = runs.unwrap_or(&watched.process.comm);
    match service::of_control_group(&watched.group.path) {
        Some(service) => format!("{service}: {runs} (pid {pid})"),
        None => format!("{runs} (pid {pid})"),
    }
}

/// `1.5 MiB`, `300 bytes`.
fn bytes(bytes: u64) -> String {
    humane_bytes(bytes).unwrap_or_else(|| format!("{bytes} bytes"))
}
