//! The profile that follows another one of the same process.

use super::Core;
use crate::daemon::profile::{Finding, Kind, Order, Run};
use crate::diagnosis::NextProfile;
use crate::processes::Pid;
use crate::render::duration;

/// A profile of a process after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::daemon) struct Next {
    pub(in crate::daemon) pid: Pid,
    pub(in crate::daemon) start_time: u64,
    pub(in crate::daemon) kind: Kind,
}

impl Core {
    /// The kind of profile that follows a run, if any. What follows for another cause than `malloc` is the last one.
    pub(super) fn kind_after(&self, run: &Run) -> Option<Kind> {
        if !matches!(run.kind, Kind::Allocations | Kind::Exact) {
            return None;
        }
        let finding = run.outcome.as_ref().ok().and_then(Option::as_ref);
        let has_leaks = finding.is_some_and(|finding| finding.leaking > 0);
        let other = run.growth.as_ref().and_then(|growth| growth.next_profile(has_leaks));
        // In windows of time, mappings cannot be judged either. Page faults cost little.
        let is_estimate = finding.is_some_and(|finding| finding.estimate.is_some());
        if let Some(other) = other.filter(|_| self.config.profile.follow_up) {
            return Some(match other {
                NextProfile::JavaHeap => Kind::JavaHeap,
                NextProfile::MappedFiles if !is_estimate => Kind::MappedFiles,
                NextProfile::MappedFiles | NextProfile::Pages => Kind::Pages,
            });
        }
        let can_be_exact = run.kind == Kind::Allocations && self.config.profile.exact_for.0.is_some();
        (can_be_exact && is_left_open(finding?, run.is_too_costly)).then_some(Kind::Exact)
    }
}

/// Returns true if the bound of the cost has left a process without a verdict.
fn is_left_open(finding: &Finding, is_too_costly: bool) -> bool {
    // Profiles without a bound never lead here.
    let cannot_be_judged = finding.estimate.as_ref().is_some_and(|estimate| !estimate.can_be_judged);
    !finding.is_last_judged && (cannot_be_judged || is_too_costly)
}

/// The reason for a profile that follows another one, in words.
pub(super) fn reason(order: &Order) -> String {
    match order.kind {
        Kind::JavaHeap => "its Java heap grows".to_owned(),
        Kind::Pages => "memory grows that its allocations do not explain".to_owned(),
        Kind::MappedFiles => "the resident pages of mapped files grow".to_owned(),
        Kind::Allocations | Kind::Exact => format!(
            "counting everything for {}, which profile.exact_for permits, as profile.max_overhead leaves it without a verdict",
            duration(order.duration)
        ),
    }
}

/// End of the message of a run that a profile of this kind follows.
pub(super) const fn announcement(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::JavaHeap => Some("its Java heap is profiled next"),
        Kind::Pages => Some("the stacks that make memory resident are profiled next"),
        Kind::MappedFiles => Some("the stacks that map files are profiled next"),
        Kind::Allocations | Kind::Exact => None,
    }
}

/// The next step after a profile of this kind; `None` if the cause of the growth names it.
pub(super) fn step_after(kind: Kind, pid: Pid) -> Option<String> {
    match kind {
        Kind::JavaHeap => Some(format!("to do: jjleak heap -p {pid} --histogram")),
        Kind::Pages => Some("the report names the stacks that made it resident".to_owned()),
        Kind::MappedFiles => Some("the report names the stacks that map files".to_owned()),
        Kind::Allocations | Kind::Exact => None,
    }
}
