//! Runs profiles: attaches to processes, takes snapshots of them, and delivers these to an observer.
//!
//! In: a [`Plan`]. Out: profiles, events and notices for an [`Observer`]; a [`Summary`], or an [`Error`].

mod agent_loading;
mod allocator_choice;
mod begin;
mod debuginfod;
mod dump_source;
mod error;
pub mod estimate;
mod fetch;
mod heap_frames;
mod heap_profile;
mod named_profile;
mod naming;
mod observer;
mod plan;
mod sample_choice;
mod saved_files;
mod saved_names;
mod saved_reader;
mod saved_series;
mod source;
pub mod waiting;
mod watch;
mod watched_files;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::analyze::{Baseline, Pace};
use crate::attach::{Drained, Events, Following, Hints, PendingHints};
use crate::processes::raise_descriptor_limit;
use crate::profile::Profile;
use waiting::{at, every, readable, ready};
use watch::Watch;

pub use agent_loading::NotLoaded;
pub use allocator_choice::{AllocatorChoice, Probed};
pub use debuginfod::{DebuginfodServers, NoDebuginfod};
pub use dump_source::{DumpSource, Dumps, MAX_DUMPED};
pub use error::{BoundError, Error, NoAllocator, NoJavaHeap, NoSamples, UnopenedFiles};
pub use fetch::{Header, is_address};
pub use naming::Naming;
pub use observer::{Notice, Observer, Step};
pub use plan::{CostBound, Listing, Plan, Schedule, Target};
pub use saved_files::SavedFiles;
pub use saved_reader::SavedFileError;
pub use source::Source;
pub use watched_files::WatchedFiles;

/// Interval at which jjleak reads the mappings of the processes, to know their files when they end.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Time of the first profile for an observer that checks the cost of profiling: little is spent by then.
const FIRST_CHECK_OF_COST: Duration = Duration::from_secs(5);
/// Time without another snapshot after one that no report needs, as a multiple of its duration: such snapshots use at most 2 %
/// of a core.
const LEAST_REST: u32 = 50;
/// Maximum number of profiles of ended processes to keep for the end; those with the most live bytes are kept.
const MAX_CLOSED: usize = 64;
/// Maximum number of stacks in all of these but the first.
const MAX_CLOSED_STACKS: usize = 1_000_000;

/// Outcome of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Names of the counters of lost or distorted data that are not zero.
    pub losses: BTreeSet<String>,
}

/// Profiles the target of the plan until it has ended, the observer leaves, or `interrupt` is notified. Blocks.
pub fn run<O: Observer>(plan: Plan, observer: &mut O, interrupt: &Notify) -> Result<Summary, O::Error> {
    begin::preflight(&plan)?;
    raise_descriptor_limit();
    let plan = sample_choice::prefer_samples(plan, observer);
    runtime()?.block_on(async {
        let between_snapshots = plan.between_snapshots();
        let mut session = begin::begin(plan, observer)?;
        session.run(between_snapshots, interrupt).await?;
        session.finish()
    })
}

fn runtime() -> Result<Runtime, Error> {
    Builder::new_current_thread().enable_all().build().map_err(Error::setup("starting the runtime"))
}

/// A run in progress.
struct Session<'observer, O> {
    watch: Watch,
    observer: &'observer mut O,
    hints: Hints,
    /// Individual allocations and frees.
    events: Events,
    /// Baseline that reports subtract.
    baseline: Option<Baseline>,
    schedule: Schedule,
    /// Last profiles of ended processes, and the messages on them at the end.
    closed: Vec<Profile>,
    endings: Vec<String>,
    /// Number of other processes that have ended.
    ended: usize,
    summary: Summary,
}

impl<O: Observer> Session<'_, O> {
    /// Attaches to the running processes, unless the observer shows some before all are attached. Processes that have begun and
    /// ended meanwhile leave room for others.
    fn attach_to_running(&mut self) -> Result<(), O::Error> {
        while !self.observer.shows_some_first() && self.watch.has_to_attach() {
            self.watch.attach_some()?;
            self.tidy_up()?;
        }
        self.observer.progress(None);
        self.observer.notify(&if self.watch.has_to_attach() {
            Notice::Attaching
        } else {
            Notice::Attached(self.watch.describe())
        });
        self.observer.attached()
    }

    /// Reports at every interval until the run ends.
    ///
    /// `between_snapshots` is the time between snapshots for the history, if reports give too few of them for verdicts.
    async fn run(&mut self, between_snapshots: Option<Duration>, interrupt: &Notify) -> Result<(), O::Error> {
        let mut reports = every(self.schedule.interval);
        let mut snapshots = every(between_snapshots.unwrap_or(self.schedule.interval));
        let mut housekeeping = every(HOUSEKEEPING);
        let mut pauses = self.first_pauses().into_iter();
        pauses.next().into_iter().for_each(|first| reports.reset_after(first));
        let mut left = self.schedule.reports.unwrap_or(u64::MAX);
        let waits = |descriptor| readable(descriptor).map_err(Error::setup("waiting for stacks"));
        let frames = waits(self.watch.collector_mut().frames_waiting())?;
        let mappings = self.watch.memory_waiting().map(waits).transpose()?;
        loop {
            // While probes are about to be detached, other work waits.
            let has_time = !self.watch.is_pressed();
            // In each turn: on a busy host, something else is always due.
            let attaches = has_time && self.watch.has_to_attach();
            if attaches {
                self.watch.attach_some()?;
            }
            tokio::select! {
                biased;
                () = interrupt.notified() => break,
                () = self.observer.leaving() => break,
                // Ahead of all events that can happen at any rate, which would otherwise starve these timers.
                _ = housekeeping.tick(), if has_time => {
                    housekeeping.reset_after(self.keep_house()?);
                    if self.is_over() {
                        break;
                    }
                }
                _ = reports.tick(), if has_time => {
                    left -= 1;
                    if left == 0 || !self.report()? {
                        break;
                    }
                    if !self.schedule.only_events
                        && let Some(pause) = self.observer.pause().or_else(|| pauses.next())
                    {
                        reports.reset_after(pause);
                    }
                }
                _ = snapshots.tick(), if has_time && between_snapshots.is_some() => {
                    if let Some(rest) = self.take_history()? {
                        snapshots.reset_after(between_snapshots.unwrap_or_default().max(rest));
                    }
                }
                () = at(self.watch.next_turn()) => self.watch.turn(),
                () = at(self.watch.next_check_of_starting()) => self.watch.check_starting()?,
                () = self.watch.next_ending() => {
                    self.note_ending()?;
                    if self.is_over() {
                        break;
                    }
                }
                pending = self.hints.wait() => {
                    self.follow(pending)?;
                    self.make_room()?;
                }
                // Done even under time pressure: code that is discarded meanwhile would have no name.
                guard = frames.readable() => {
                    self.watch.name_new();
                    self.watch.make_room_for_stacks()?;
                    if let Ok(mut guard) = guard {
                        guard.clear_ready();
                    }
                }
                () = self.events.wait(), if self.schedule.only_events => {
                    if !self.deliver_events() {
                        break;
                    }
                }
                // Last: a process that constantly maps and unmaps must not block reports.
                guard = ready(mappings.as_ref()) => {
                    let drained = self.watch.receive_memory();
                    match guard {
                        Ok(mut guard) if drained == Drained::Empty => guard.clear_ready(),
                        // More is always pending: give timers and signals a turn.
                        _ => yield_now().await,
                    }
                }
                // Gives the timers above a turn.
                () = yield_now(), if attaches => {}
            }
        }
        Ok(())
    }

    /// Returns true if the run ends because its processes have ended.
    fn is_over(&mut self) -> bool {
        self.watch.is_over() && !self.observer.stays()
    }

    /// Does what is due now and then; returns the time until the next time. On a busy host, this can take longer than its
    /// interval; other work must get its share.
    fn keep_house(&mut self) -> Result<Duration, O::Error> {
        let begin = Instant::now();
        self.tidy_up()?;
        self.watch.read_symbols_ahead();
        Ok(HOUSEKEEPING.max(begin.elapsed()))
    }

    /// Delivers a snapshot, unless only events are delivered. Returns false if the observer wants no more.
    fn report(&mut self) -> Result<bool, O::Error> {
        if self.schedule.only_events {
            return Ok(true);
        }
        self.observer.begin_snapshot();
        let profiles = self.profiles(self.observer.pace())?;
        Ok(self.observer.snapshot(profiles))
    }

    /// Takes a snapshot for the history; returns the minimum time until the next one if it was taken.
    fn take_history(&mut self) -> Result<Option<Duration>, O::Error> {
        let begin = Instant::now();
        self.catch_up()?;
        self.close_those_of_no_interest()?;
        Ok(self.watch.take_history()?.then(|| begin.elapsed() * LEAST_REST))
    }

    /// A process has ended.
    fn note_ending(&mut self) -> Result<(), O::Error> {
        self.catch_up()?;
        self.make_room()?;
        // If processes come and go, their accounting is closed in batches.
        if self.watch.following() == Following::Nobody || self.watch.have_all_ended() {
            self.close()?;
        }
        Ok(())
    }

    /// Makes room for further processes if there is little.
    fn make_room(&mut self) -> Result<(), O::Error> {
        if self.watch.is_crowded() {
            self.tidy_up()?;
        }
        Ok(())
    }

    /// Delays of reports within the first interval, for an observer that checks the cost of profiling if nothing else bounds it.
    fn first_pauses(&self) -> Vec<Duration> {
        let Schedule { interval, begins_early, .. } = self.schedule;
        if begins_early && !self.watch.is_bounded() { divided(interval) } else { Vec::new() }
    }

    /// Returns false if nobody will see the next events.
    fn deliver_events(&mut self) -> bool {
        let mut events = Vec::new();
        self.events.drain(|event| events.push(event));
        self.observer.events(&events)
    }

    /// Follows hints until they lead to nothing new. The number of rounds is bounded, to give other work a turn.
    fn follow(&mut self, mut pending: PendingHints) -> Result<(), Error> {
        const ROUNDS: u32 = 8;
        for _ in 0..ROUNDS {
            if !self.watch.follow(pending)? {
                self.hints.was_wrong();
                break;
            }
            // Hints that arrived meanwhile: loading a library loads its dependencies, too.
            pending = self.hints.was_right();
            if pending.slots.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Closes the accounting of ended processes and discards their remaining data.
    fn tidy_up(&mut self) -> Result<(), Error> {
        self.catch_up()?;
        self.watch.update_all()?;
        self.close()
    }

    fn profiles(&mut self, pace: Pace) -> Result<Vec<Profile>, Error> {
        self.catch_up()?;
        self.close_those_of_no_interest()?;
        let profiles = self.watch.profiles(pace)?;
        Ok(self.since_baseline(profiles))
    }

    /// Subtracts the baseline from the profiles.
    fn since_baseline(&self, mut profiles: Vec<Profile>) -> Vec<Profile> {
        if let Some(baseline) = &self.baseline {
            for profile in &mut profiles {
                baseline.subtract_from(profile);
            }
        }
        profiles
    }

    /// Processes all pending events.
    fn catch_up(&mut self) -> Result<(), Error> {
        let pending = self.hints.take();
        self.watch.follow(pending)?;
        Ok(())
    }

    /// If all processes of a host are followed, most that have ended since the last report are in none: a snapshot of hundreds would
    /// take seconds.
    fn close_those_of_no_interest(&mut self) -> Result<(), Error> {
        if self.watch.following() == Following::Everyone { self.close() } else { Ok(()) }
    }

    /// Closes the accounting of ended processes.
    fn close(&mut self) -> Result<(), Error> {
        let following = self.watch.following();
        let profiles = self.watch.close(self.observer.reads_ended(following))?;
        let profiles = self.since_baseline(profiles);
        if profiles.is_empty() {
            return Ok(());
        }
        self.summary.losses.extend(profiles.iter().flat_map(losses));
        self.observer.ended(&profiles, following);
        // If all processes of the host are followed, most ended ones are irrelevant.
        if following == Following::Everyone {
            self.ended += profiles.len();
            return Ok(());
        }
        for Profile { process, ended, .. } in &profiles {
            if self.endings.len() < MAX_CLOSED {
                let ended = ended.as_deref().unwrap_or_default();
                self.endings.push(format!("{} (pid {}) has ended: {ended}", process.comm, process.pid));
            }
        }
        self.closed.extend(profiles);
        self.closed.sort_by_key(|profile| Reverse(profile.live().bytes));
        let mut stacks = 0;
        let beyond = self.closed.iter().skip(1).take(MAX_CLOSED - 1).take_while(|profile| {
            stacks += profile.stacks.len();
            stacks <= MAX_CLOSED_STACKS
        });
        let kept = self.closed.len().min(1 + beyond.count());
        self.ended += self.closed.len() - kept;
        self.closed.truncate(kept);
        Ok(())
    }

    /// Takes the last profiles, and ends counting. The probes cost next to nothing from then on and are detached last: the
    /// observer does not wait for the kernel to finish that.
    fn finish(mut self) -> Result<Summary, O::Error> {
        // If the reader has gone away, the last profiles find out, too.
        let _ = self.deliver_events();
        self.watch.list_last();
        let mut last = self.profiles(Pace::Thorough)?;
        self.observer.complete(&mut last);
        self.watch.forget_stacks();
        self.observer.last(&last, &self.closed, self.watch.following());
        self.observer.progress(Some(Step::Finishing));
        self.watch.disarm()?;
        self.endings.iter().for_each(|ending| self.observer.notify(&Notice::Ended(ending)));
        for (comm, pid) in self.watch.commands() {
            self.observer.notify(&Notice::RunsOn(comm, pid));
        }
        if self.ended > 0 {
            self.observer.notify(&Notice::LeftOut(self.ended));
        }
        self.summary.losses.extend(last.iter().flat_map(losses));
        let profiles: Vec<_> = last.into_iter().chain(self.closed).collect();
        self.observer.finish(&profiles)?;
        drop(self.watch);
        self.observer.progress(None);
        Ok(self.summary)
    }
}

/// Divides an interval into parts, each twice as long as the one before, except the last.
fn divided(interval: Duration) -> Vec<Duration> {
    let (mut parts, mut part, mut left) = (Vec::new(), FIRST_CHECK_OF_COST, interval);
    while part < left {
        parts.push(part);
        left -= part;
        part *= 2;
    }
    parts.push(left);
    parts
}

/// Losses of a profile, by name.
fn losses(profile: &Profile) -> impl Iterator<Item = String> {
    profile.lost.iter().filter(|(_, count)| **count > 0).map(|(name, _)| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_interval_is_divided_and_as_long_as_before() {
        let seconds = |of: &[u64]| of.iter().map(|part| Duration::from_secs(*part)).collect::<Vec<_>>();
        assert_eq!(divided(Duration::from_secs(60)), seconds(&[5, 10, 20, 25]));
        assert_eq!(divided(Duration::from_secs(1)), seconds(&[1]));
        assert_eq!(divided(Duration::from_secs(5)), seconds(&[5]));
    }
}
