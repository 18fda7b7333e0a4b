//! JSON view of a process.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::Served;
use crate::daemon::core::{Core, Shared, since_boot};
use crate::daemon::history::{Estimate, History};
use crate::daemon::metrics::limit_of;
use crate::daemon::watch::Watched;
use crate::processes::Pid;
use crate::profile::SourceKind;

/// Maximum number of profiles of a process in [`ProcessView::live_history`].
const LIVE_POINTS: usize = 64;

/// A watched process.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ProcessView {
    pub(super) pid: u32,
    pub(super) start_time: u64,
    pub(super) comm: String,
    pub(super) exe: String,
    pub(super) cgroup: String,
    /// Only if enabled in the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command_line: Option<String>,
    pub(super) state: &'static str,
    pub(super) reason: Option<&'static str>,
    /// The reason in words.
    pub(super) why: Option<String>,
    pub(super) resident_bytes: u64,
    /// Memory of the whole control group.
    pub(super) cgroup_bytes: Option<u64>,
    pub(super) limit_bytes: Option<u64>,
    /// Kind of the limit: `cgroup` or `ram`.
    pub(super) limit_of: Option<&'static str>,
    pub(super) available_bytes: Option<u64>,
    pub(super) pressure_percent: Option<f64>,
    /// Growth; zero if it does not grow.
    pub(super) growth_bytes_per_s: f64,
    /// Times in seconds since the daemon's start, negative before it, and resident bytes.
    pub(super) history: Vec<(f64, f64)>,
    /// Times, as in [`Self::history`], and live bytes, by profile.
    pub(super) live_history: Vec<(f64, u64)>,
    pub(super) finding: Option<FindingView>,
    /// The last profile of its Java heap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) java_heap: Option<OtherView>,
    /// The last profile of pages that became resident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) growth: Option<OtherView>,
}

/// A profile of another source than allocations.
#[derive(Debug, Clone, Serialize)]
pub(super) struct OtherView {
    /// The functions with most bytes, and the classes, or the memory.
    pub(super) summary: String,
    /// Objects of a Java heap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allocated_bytes_per_s: Option<f64>,
    /// Pages that became resident.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resident_bytes: Option<u64>,
    pub(super) lost: Vec<(String, u64)>,
    pub(super) profile: Option<String>,
}

/// Findings about a process.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FindingView {
    pub(super) verdict: String,
    pub(super) judged: bool,
    pub(super) leaking: usize,
    pub(super) leak_bytes_per_s: f64,
    pub(super) live_bytes: u64,
    pub(super) estimate: Option<Estimate>,
    pub(super) lost: Vec<(String, u64)>,
    pub(super) profile: Option<String>,
}

/// All processes, leaking ones first, then by size.
pub(super) fn processes(served: &Served) -> Vec<ProcessView> {
    let shared = &served.shared;
    let (mut views, shows_command_lines, began) = {
        let (core, history) = (shared.core(), shared.history());
        let views: Vec<_> = core.watcher.iter().map(|watched| process(&core, &history, watched)).collect();
        (views, core.config.http.show_command_lines, core.began)
    };
    add_live(&mut views, shared, began);
    if shows_command_lines {
        // Reading a process's memory can block, so do it without holding any locks.
        let known = views.iter().filter_map(|view| Some((Pid::new(view.pid)?, view.start_time)));
        let mut lines = served.command_lines.read(known);
        for view in &mut views {
            view.command_line = Pid::new(view.pid).and_then(|pid| lines.remove(&pid));
        }
    }
    let leaking = |view: &ProcessView| view.finding.as_ref().map_or(0, |finding| finding.leaking);
    views.sort_by_key(|view| std::cmp::Reverse((leaking(view), view.resident_bytes)));
    views
}

/// Adds the live bytes of each process's last profiles.
fn add_live(views: &mut [ProcessView], shared: &Shared, began: Duration) {
    let began = Timestamp::now().saturating_sub(since_boot().saturating_sub(began)).unwrap_or(Timestamp::MIN);
    let index: HashMap<_, _> =
        views.iter().enumerate().map(|(index, view)| ((view.pid, view.start_time), index)).collect();
    for entry in shared.history().entries().rev() {
        let Some(index) = index.get(&(entry.pid, entry.start_time)) else { continue };
        if !entry.source().is_of_allocations() {
            continue;
        }
        let live = &mut views[*index].live_history;
        if live.len() < LIVE_POINTS {
            live.push((entry.time.duration_since(began).as_secs_f64(), entry.live_bytes));
        }
    }
    for view in views {
        view.live_history.reverse();
    }
}

fn process(core: &Core, history: &History, watched: &Watched) -> ProcessView {
    let (process, case, last) = (&watched.process, &watched.case, watched.case.last());
    let finding = core.findings.get(&process.pid).map(|finding| FindingView {
        verdict: finding.verdict.clone(),
        judged: finding.judged,
        leaking: finding.leaking,
        leak_bytes_per_s: finding.leak_rate,
        live_bytes: finding.live_bytes,
        estimate: finding.estimate.clone(),
        lost: finding.lost.clone(),
        profile: finding.shown(history).map(ToString::to_string),
    });
    let other = |source| {
        let finding = core.others.get(&(process.pid, source))?;
        Some(OtherView {
            summary: finding.verdict.clone(),
            allocated_bytes_per_s: (source == SourceKind::JavaHeap).then_some(finding.allocation_rate),
            resident_bytes: (source == SourceKind::Growth).then_some(finding.live_bytes),
            lost: finding.lost.clone(),
            profile: finding.shown(history).map(ToString::to_string),
        })
    };
    let (java_heap, growth) = (other(SourceKind::JavaHeap), other(SourceKind::Growth));
    let (reason, began) = (case.state().reason(), core.began.as_secs_f64());
    ProcessView {
        pid: process.pid.number().get(),
        start_time: process.start_time,
        comm: process.comm.clone(),
        exe: process.exe.to_string_lossy().into_owned(),
        cgroup: watched.group.path.clone(),
        command_line: None,
        state: case.state().name(),
        reason: reason.map(super::super::decide::Reason::name),
        why: reason.map(|reason| reason.to_string()),
        resident_bytes: last.resident,
        cgroup_bytes: last.group,
        limit_bytes: last.limit.map(|limit| limit.limit),
        limit_of: last.limit.map(|limit| limit_of(limit.is_cgroup)),
        available_bytes: last.limit.map(|limit| limit.available),
        pressure_percent: last.pressure,
        growth_bytes_per_s: case.trend().growth(),
        history: case.trend().points().into_iter().map(|(at, bytes)| (at - began, bytes)).collect(),
        live_history: Vec::new(),
        finding,
        java_heap,
        growth,
    }
}
