//! One profiling run: from the arguments to the final report.

mod begin;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::analyze::{Baseline, Pace};
use crate::attach::{self, Drained, Following, Hints, Told};
use crate::cli::Failure;
use crate::cli::args::Args;
use crate::cli::audience::{self, Audience};
use crate::cli::choice::Choice;
use crate::cli::failure::{LOSS, OTHER};
use crate::cli::notices::tell;
use crate::cli::outputs::{Outputs, Written};
use crate::cli::progress::Progress;
use crate::cli::saved;
use crate::cli::signals;
use crate::cli::trace::Trace;
use crate::cli::waiting::{at, every, readable, ready};
use crate::cli::watch::Watch;
use crate::profile::Profile;

/// Interval at which jjleak reads the mappings of the processes, to know their files when they end.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Time of the first profile for checking the cost of profiling if nothing else bounds it: little is spent by then.
const FIRST_LOOK_AT_COST: Duration = Duration::from_secs(5);
/// Number of snapshots within the settle time, after which allocations are judged.
const LOOKS_IN_SETTLE: u32 = 2;
/// Minimum time between snapshots: more frequent ones cost more than they are worth.
const SHORTEST_BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// Time without another snapshot after one that no report needs, as a multiple of its duration: such snapshots use at most 2 %
/// of a core.
const LEAST_REST: u32 = 50;
/// From `-vv` on, the kernel side's messages are shown.
const KERNEL_LOG_VERBOSITY: u8 = 2;
/// Maximum number of profiles of ended processes to keep for the files at the end; those with the most live bytes are kept.
const MAX_CLOSED: usize = 64;

/// Profiles the processes that the arguments name.
pub(super) fn profile(args: &Args, wanted: &audience::Wanted) -> Result<(), Failure> {
    let take_over = || signals::watch().map_err(|error| cannot_start("taking over signals", &error));
    profile_until(args, wanted, take_over)
}

/// Like `profile`, but also ends when `interrupt` is notified.
pub(super) fn profile_until(
    args: &Args,
    wanted: &audience::Wanted,
    interrupt: impl FnOnce() -> Result<Arc<Notify>, Failure>,
) -> Result<(), Failure> {
    let subject = args.subject()?;
    let settings = begin::settings(args, &subject)?;
    let choice = Choice::of(args)?;
    if args.max_overhead.is_some() && args.pid.len() > 1 {
        let what = "--max-overhead keeps one process below a bound: give one -p";
        return Err(Failure::usage(what.to_owned()));
    }
    let baseline = saved::baseline(args)?;
    args.coverage()?;
    attach::preflight().map_err(attach::Error::from)?;
    if settings.following != Following::Nobody {
        attach::preflight_following().map_err(attach::Error::from)?;
    }
    let interrupt = interrupt()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| cannot_start("starting the runtime", &error))?;
    runtime.block_on(async {
        let mut session = Session::begin(args, subject, settings, choice, wanted)?;
        session.baseline = baseline;
        session.run(args, &interrupt).await?;
        let _progress = Progress::start("writing files, and taking the probes out");
        session.finish(args)
    })
}

fn cannot_start(what: &str, error: &io::Error) -> Failure {
    Failure::new(OTHER, format!("{what} failed: {error}"), "check the limits of this session (ulimit -a)")
}

/// A profiling run.
struct Session {
    watch: Watch,
    outputs: Outputs,
    audience: Audience,
    hints: Hints,
    trace: Trace,
    /// Baseline that reports subtract.
    baseline: Option<Baseline>,
    /// Last profiles of ended processes, and the messages on them at the end.
    closed: Vec<Profile>,
    endings: Vec<String>,
    /// Number of other processes that have ended.
    ended: usize,
    /// Profiles at the end.
    last: Vec<Profile>,
    /// Losses, by name.
    losses: BTreeSet<String>,
}

impl Session {
    /// Reports at every interval until the run ends.
    async fn run(&mut self, args: &Args, interrupt: &Notify) -> Result<(), Failure> {
        let mut reports = every(args.interval);
        // Long report intervals give too few snapshots for verdicts.
        let between_looks = (args.settle / LOOKS_IN_SETTLE).max(SHORTEST_BETWEEN_LOOKS);
        let shows_verdicts = args.wants_verdicts() || self.audience.shows_verdicts();
        let has_looks = shows_verdicts && args.interval > between_looks;
        let mut looks = every(between_looks);
        let mut housekeeping = every(HOUSEKEEPING);
        let mut pauses = self.first_pauses(args.interval).into_iter();
        pauses.next().into_iter().for_each(|first| reports.reset_after(first));
        let mut left = args.count.unwrap_or(u64::MAX);
        let waits =
            |descriptor| readable(descriptor).map_err(|error| cannot_start("waiting for stacks", &error));
        let frames = waits(self.watch.collector_mut().frames_waiting())?;
        let mappings = self.watch.mappings_waiting().map(waits).transpose()?;
        loop {
            // While probes are about to be detached, other work waits.
            let has_time = !self.watch.is_pressed();
            tokio::select! {
                biased;
                () = interrupt.notified() => break,
                () = self.audience.leaving() => break,
                // Ahead of all events that can happen at any rate, which would otherwise starve these timers.
                _ = housekeeping.tick(), if has_time => {
                    let begin = Instant::now();
                    self.tidy_up()?;
                    // On a busy host, this can take longer than its interval; other work must get its share.
                    housekeeping.reset_after(HOUSEKEEPING.max(begin.elapsed()));
                    if self.watch.is_over() && !self.audience.stays() {
                        break;
                    }
                }
                _ = reports.tick(), if has_time => {
                    left -= 1;
                    if left == 0 {
                        break;
                    }
                    if args.trace {
                        continue;
                    }
                    self.audience.begin_look();
                    let profiles = self.profiles(self.audience.pace())?;
                    if !self.audience.show(profiles, &mut self.outputs) {
                        break;
                    }
                    if let Some(pause) = self.audience.pause().or_else(|| pauses.next()) {
                        reports.reset_after(pause);
                    }
                }
                _ = looks.tick(), if has_looks && has_time => {
                    let begin = Instant::now();
                    self.catch_up()?;
                    if self.watch.look_at_past()? {
                        looks.reset_after(between_looks.max(begin.elapsed() * LEAST_REST));
                    }
                }
                () = yield_now(), if self.watch.has_to_attach() => self.watch.attach_some(),
                () = at(self.watch.next_turn()) => self.watch.turn(),
                () = at(self.watch.next_look_at_starting()) => self.watch.look_at_starting()?,
                () = self.watch.next_ending() => {
                    self.catch_up()?;
                    if self.watch.is_crowded() {
                        self.tidy_up()?;
                    }
                    // If processes come and go, their accounting is closed in batches.
                    if !self.watch.follows() || self.watch.have_all_ended() {
                        self.close()?;
                    }
                    if self.watch.is_over() && !self.audience.stays() {
                        break;
                    }
                }
                told = self.hints.wait() => {
                    self.follow(told)?;
                    if self.watch.is_crowded() {
                        self.tidy_up()?;
                    }
                }
                // Done even under time pressure: code that is discarded meanwhile would have no name.
                guard = frames.readable() => {
                    self.watch.name_new();
                    if let Ok(mut guard) = guard {
                        guard.clear_ready();
                    }
                }
                () = self.trace.wait(), if args.trace => {
                    if self.trace.print().is_err() {
                        break;
                    }
                }
                // Last: a process that constantly maps and unmaps must not block reports.
                guard = ready(mappings.as_ref()) => {
                    let drained = self.watch.receive_mappings();
                    match guard {
                        Ok(mut guard) if drained == Drained::Empty => guard.clear_ready(),
                        // More is always pending: give timers and signals a turn.
                        _ => yield_now().await,
                    }
                }
            }
        }
        // If the reader has gone away, this is no failure to report; the report will find out, too.
        let _ = self.trace.print();
        self.last = self.profiles(Pace::Thorough)?;
        let mentioned = self.watch.follows();
        self.audience.dismiss(&self.last, &self.closed, mentioned, &mut self.outputs);
        Ok(())
    }

    /// Delays of reports within the first interval: if nothing else bounds the cost of profiling, the daemon gets early profiles
    /// to check it.
    fn first_pauses(&self, interval: Duration) -> Vec<Duration> {
        if self.audience.looks_at_cost() && !self.watch.is_bounded() { divided(interval) } else { Vec::new() }
    }

    /// Follows hints until they lead to nothing new. The number of rounds is bounded, to give other work a turn.
    fn follow(&mut self, mut told: Told) -> Result<(), Failure> {
        const ROUNDS: u32 = 8;
        for _ in 0..ROUNDS {
            if !self.watch.follow(told)? {
                self.hints.was_wrong();
                break;
            }
            // Hints that arrived meanwhile: loading a library loads its dependencies, too.
            told = self.hints.was_right();
            if told.slots.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Closes the accounting of ended processes and discards their remaining data.
    fn tidy_up(&mut self) -> Result<(), Failure> {
        self.catch_up()?;
        self.watch.look_at_all()?;
        self.close()
    }

    fn profiles(&mut self, pace: Pace) -> Result<Vec<Profile>, Failure> {
        self.catch_up()?;
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
    fn catch_up(&mut self) -> Result<(), Failure> {
        let told = self.hints.take();
        self.watch.follow(told)?;
        Ok(())
    }

    /// Closes the accounting of ended processes.
    fn close(&mut self) -> Result<(), Failure> {
        let profiles = self.watch.close()?;
        let profiles = self.since_baseline(profiles);
        if profiles.is_empty() {
            return Ok(());
        }
        self.losses.extend(profiles.iter().flat_map(losses));
        // If all processes of the host are followed, most ended ones are irrelevant.
        if self.watch.follows_everyone() {
            self.ended += profiles.len();
            self.audience.mention_ended(&profiles, &mut self.outputs);
            return Ok(());
        }
        for Profile { process, ended, .. } in &profiles {
            if self.endings.len() < MAX_CLOSED {
                let ended = ended.as_deref().unwrap_or_default();
                self.endings.push(format!("{} (pid {}) has ended: {ended}", process.comm, process.pid));
            }
        }
        if self.watch.follows() {
            self.audience.show_ended_child(&profiles, &mut self.outputs);
        } else {
            self.audience.show_ended(&profiles, &mut self.outputs);
        }
        self.closed.extend(profiles);
        self.closed.sort_by_key(|profile| Reverse(profile.live().bytes));
        self.ended += self.closed.len().saturating_sub(MAX_CLOSED);
        self.closed.truncate(MAX_CLOSED);
        Ok(())
    }

    /// Writes the files and returns the outcome. The probes cost next to nothing from now on and are detached last: the report
    /// does not wait for the kernel to finish that.
    fn finish(mut self, args: &Args) -> Result<(), Failure> {
        self.watch.disarm()?;
        self.endings.iter().for_each(|ending| tell(ending));
        for (comm, pid) in self.watch.commands() {
            tell(&format!("{comm} runs on as process {pid}"));
        }
        if self.ended > 0 {
            tell(&format!("{} processes that have ended are in no file but JSON reports", self.ended));
        }
        self.losses.extend(self.last.iter().flat_map(losses));
        let profiles: Vec<_> = self.last.into_iter().chain(self.closed).collect();
        let Written { files, failures } = self.outputs.finish(&profiles);
        for path in files {
            tell(&format!("wrote {}", path.display()));
        }
        Failure::all(failures)?;
        if args.strict { check(&self.losses) } else { Ok(()) }
    }
}

/// Divides an interval into parts, each twice as long as the one before, except the last.
fn divided(interval: Duration) -> Vec<Duration> {
    let (mut parts, mut part, mut left) = (Vec::new(), FIRST_LOOK_AT_COST, interval);
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

/// Fails if anything was lost, for `--strict`.
fn check(losses: &BTreeSet<String>) -> Result<(), Failure> {
    if losses.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = losses.iter().map(String::as_str).collect();
    let what = format!("the figures are not exact: {}", names.join(", "));
    Err(Failure::new(LOSS, what, "the report says what each loss means"))
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
