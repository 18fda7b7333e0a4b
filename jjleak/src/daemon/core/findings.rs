//! Messages of profiling threads: findings, and the ends of runs.

use std::time::Instant;

use super::next::{Next, announcement, step_after};
use super::{Core, since_boot};
use crate::daemon::history::Entry;
use crate::daemon::outcome::{self, Outcome};
use crate::daemon::profile::{Finding, Job, Kind, Message, Run};
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
            Message::Ended(run) => {
                if let Some(growth) =
                    run.growth.clone().filter(|_| self.watcher.same(run.pid, run.start_time).is_some())
                {
                    self.grown.insert(run.pid, growth);
                }
                self.end(run);
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
        if !finding.source.is_of_allocations() {
            self.others.insert((finding.pid, finding.source), finding.clone());
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
    pub(super) fn end(&mut self, run: Run) {
        let next = self.kind_after(&run);
        let Run { pid, start_time, kind, outcome, is_too_costly, runs, growth } = run;
        self.jobs.retain(|job| !job.is_of(pid, start_time));
        self.stuck.retain(|job| !job.is_of(pid, start_time));
        self.needs_handover = true;
        let may_go_on = !self.is_ending && self.may_profile(pid, start_time);
        let next = next.filter(|_| may_go_on);
        let step = next.and_then(announcement).map(str::to_owned).or_else(|| step_after(kind, pid));
        let growth = growth.as_ref().and_then(|growth| growth.in_words(step.as_deref()));
        let (now, config) = (since_boot(), &self.config);
        let name = match self.watcher.same(pid, start_time) {
            Some(watched) => {
                let is_done = matches!(&outcome, Ok(Some(finding)) if finding.is_final());
                if self.is_ending && !is_done {
                    watched.case.interrupt();
                } else if let Some(kind) = next {
                    // The process is still being profiled.
                    self.next.push(Next { pid, start_time, kind });
                } else {
                    // A run that was stopped for its cost has no verdict that would justify a longer back-off.
                    watched.case.end(now, outcome.is_ok() && (is_done || !is_too_costly), config);
                }
                outcome::name(watched, runs.as_deref())
            }
            None => format!("pid {pid}, which has ended"),
        };
        let of = match kind {
            Kind::JavaHeap => "the Java heap of ",
            Kind::Pages => "the pages of ",
            Kind::Allocations | Kind::Exact | Kind::MappedFiles => "",
        };
        match outcome {
            Err(error) => {
                // Some JVMs, such as those of JDK 8, never allow that: it is no failure to be alerted of.
                self.profiles_failed += u64::from(kind != Kind::JavaHeap);
                tracing::warn!("cannot profile {of}{name}: {error}");
            }
            Ok(None) => tracing::info!("{of}{name}: no profile was taken"),
            // Report the merged finding: an earlier profile may have had a verdict that this one lacks.
            Ok(Some(finding)) => {
                let finding = self.record(finding);
                self.tell(&finding, is_too_costly, &name, growth.as_deref());
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
