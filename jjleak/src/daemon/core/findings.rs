//! Messages of profiling threads: findings, and the ends of runs.

use std::time::Instant;

use super::{Core, since_boot};
use crate::daemon::history::Entry;
use crate::daemon::outcome::{self, Outcome};
use crate::daemon::profile::{Finding, Job, Message};
use crate::diagnosis::Grown;
use crate::processes::Pid;

impl Core {
    /// Handles a message from a profiling thread.
    pub(in crate::daemon) fn handle(&mut self, message: Message) {
        match message {
            Message::Found(finding) => {
                let now = Instant::now();
                let is_of = |job: &&mut Job| job.is_of(finding.pid, finding.start_time);
                if let Some(job) = self.jobs.iter_mut().find(is_of).filter(|_| finding.is_final()) {
                    job.set_conclusive(now);
                }
                self.record(finding);
            }
            Message::Ended { pid, start_time, outcome, is_too_costly, runs, growth } => {
                let words = growth.as_ref().and_then(Grown::in_words);
                if let Some(growth) = growth.filter(|_| self.watcher.same(pid, start_time).is_some()) {
                    self.grown.insert(pid, growth);
                }
                self.end(pid, start_time, outcome, is_too_costly, runs.as_deref(), words.as_deref());
            }
        }
    }

    /// Restores a finding from the history if the process is still the same.
    pub(super) fn restore_findings(&mut self, entry: &Entry) {
        let Some(pid) = Pid::new(entry.pid) else { return };
        let watched = self.watcher.same(pid, entry.start_time);
        if watched.is_some_and(|watched| watched.process.comm == entry.comm) {
            self.record(Finding::of(pid, entry));
        }
    }

    /// Records a finding, merged with the previous one; returns the result.
    fn record(&mut self, finding: Finding) -> Finding {
        if self.watcher.same(finding.pid, finding.start_time).is_none() {
            return finding;
        }
        let finding = match self.findings.get(&finding.pid) {
            Some(before) => finding.after(before),
            None => finding,
        };
        self.findings.insert(finding.pid, finding.clone());
        finding
    }

    /// Handles the end of a profiling run.
    pub(super) fn end(
        &mut self,
        pid: Pid,
        start_time: u64,
        outcome: Result<Option<Finding>, String>,
        is_too_costly: bool,
        runs: Option<&str>,
        growth: Option<&str>,
    ) {
        self.jobs.retain(|job| !job.is_of(pid, start_time));
        self.stuck.retain(|job| !job.is_of(pid, start_time));
        self.needs_handover = true;
        let (now, config) = (since_boot(), &self.config);
        let name = match self.watcher.same(pid, start_time) {
            Some(watched) => {
                let is_done = matches!(&outcome, Ok(Some(finding)) if finding.is_final());
                if self.is_ending && !is_done {
                    watched.case.interrupt();
                } else {
                    // A run that was stopped for its cost has no verdict that would justify a longer back-off.
                    watched.case.end(now, outcome.is_ok() && (is_done || !is_too_costly), config);
                }
                outcome::name(watched, runs)
            }
            None => format!("pid {pid}, which has ended"),
        };
        match outcome {
            Err(error) => {
                self.profiles_failed += 1;
                tracing::warn!("cannot profile {name}: {error}");
            }
            Ok(None) => tracing::info!("{name}: no profile was taken"),
            // Report the merged finding: an earlier profile may have had a verdict that this one lacks.
            Ok(Some(finding)) => {
                let finding = self.record(finding);
                self.tell(&finding, is_too_costly, &name, growth);
            }
        }
    }

    /// Logs the outcome of a run for the process with this name.
    fn tell(&mut self, finding: &Finding, is_too_costly: bool, name: &str, growth: Option<&str>) {
        let watched = self.watcher.same(finding.pid, finding.start_time);
        let is_rising = watched.as_ref().is_some_and(|watched| watched.case.trend().growth() > 0.);
        let grows = is_rising || growth.is_some();
        let outcome = Outcome::of(finding, is_too_costly, grows);
        let outcome = match watched {
            Some(watched) => outcome.with_memory(watched, growth),
            None => outcome,
        };
        outcome.with_report(&self.config.http.listen, finding.verdict_profile.as_ref()).log(name);
    }
}
