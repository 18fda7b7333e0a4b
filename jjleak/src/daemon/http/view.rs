//! What clients are told of a process.

use std::fs::File;
use std::io::Read;

use serde::Serialize;

use crate::daemon::core::{Core, Shared};
use crate::daemon::watch::Watched;
use crate::processes::Pid;
use crate::render::printable;

/// Longest command line that is shown.
const MAX_COMMAND_LINE: usize = 4096;

/// A process that is watched.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ProcessView {
    pub(super) pid: u32,
    pub(super) start_time: u64,
    pub(super) comm: String,
    pub(super) exe: String,
    pub(super) cgroup: String,
    /// Only if the configuration has it shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command_line: Option<String>,
    pub(super) state: &'static str,
    pub(super) reason: Option<&'static str>,
    /// The same in words.
    pub(super) why: Option<String>,
    pub(super) resident_bytes: u64,
    pub(super) limit_bytes: Option<u64>,
    pub(super) available_bytes: Option<u64>,
    pub(super) pressure_percent: Option<f64>,
    /// By how much it grows; nothing when it does not.
    pub(super) growth_bytes_per_s: f64,
    /// Seconds since the daemon's start, and resident bytes.
    pub(super) history: Vec<(f64, f64)>,
    pub(super) finding: Option<FindingView>,
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FindingView {
    pub(super) verdict: String,
    pub(super) judged: bool,
    pub(super) leaking: usize,
    pub(super) leak_bytes_per_s: f64,
    pub(super) live_bytes: u64,
    pub(super) lost: Vec<(String, u64)>,
    pub(super) profile: Option<String>,
}

/// All processes, those that leak first and then the largest.
pub(super) fn processes(shared: &Shared) -> Vec<ProcessView> {
    let (mut views, shows_command_lines) = {
        let core = shared.core();
        let views: Vec<_> = core.watcher.iter().map(|watched| process(&core, watched)).collect();
        (views, core.config.http.show_command_lines)
    };
    if shows_command_lines {
        // A process can make whoever reads its memory wait: nobody else is to wait, too.
        for view in &mut views {
            view.command_line = Pid::new(view.pid).map(command_line);
        }
    }
    let leaking = |view: &ProcessView| view.finding.as_ref().map_or(0, |finding| finding.leaking);
    views.sort_by_key(|view| std::cmp::Reverse((leaking(view), view.resident_bytes)));
    views
}

fn process(core: &Core, watched: &Watched) -> ProcessView {
    let (process, case, last) = (&watched.process, &watched.case, watched.case.last());
    let finding = core.findings.get(&process.pid).map(|finding| FindingView {
        verdict: finding.verdict.clone(),
        judged: finding.judged,
        leaking: finding.leaking,
        leak_bytes_per_s: finding.leak_rate,
        live_bytes: finding.live_bytes,
        lost: finding.lost.clone(),
        profile: finding.kept.as_ref().map(ToString::to_string),
    });
    let reason = case.state().reason();
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
        limit_bytes: last.limit.map(|(limit, _)| limit),
        available_bytes: last.limit.map(|(_, available)| available),
        pressure_percent: last.pressure,
        growth_bytes_per_s: case.course().rises().last().map_or(0., |rise| rise.rate.per_second),
        history: case.course().points(),
        finding,
    }
}

fn command_line(pid: Pid) -> String {
    let mut bytes = Vec::new();
    let file = File::open(pid.proc_file("cmdline"));
    // What cannot be read, of a process that has ended, is empty.
    let _ = file.and_then(|file| file.take(MAX_COMMAND_LINE as u64).read_to_end(&mut bytes));
    let words = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
    printable(words.trim_end()).chars().take(MAX_COMMAND_LINE).collect()
}
