//! Profiles the program, and compares the figures with what it allocates.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use jjleak_common::stack::StackStatus;
use serde::Serialize;
use tokio::sync::Notify;

use super::program::{EXPECTED, LEAKER, TABLE, VERB};
use crate::allocators::NamedAllocator;
use crate::attach::{Following, Programs, Settings};
use crate::processes::{Pid, Streams};
use crate::profile::{Coverage, Profile, StackProfile};
use crate::session::{
    self, AllocatorChoice, Error, Listing, Notice, Observer, Plan, Probed, Schedule, Target,
};

/// The trial's program: jjleak itself.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Maximum duration of the trial once the probes are in place. What comes before ends by itself, and takes the longer the slower the
/// kernel's verifier is.
const LIMIT: Duration = Duration::from_secs(10);
/// Longer than the trial: its only report is the last.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Bytes and blocks that the program allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// Bytes that it keeps.
    pub live_bytes: u64,
    /// Blocks that it keeps.
    pub live_objects: u64,
    /// All bytes that it allocates.
    pub allocated_bytes: u64,
    /// All blocks that it allocates.
    pub allocated_objects: u64,
}

/// Result of the profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    pub(super) expected: Expected,
    pub(super) counted: Expected,
    /// Number of stacks.
    pub(super) stacks: usize,
    /// Number of stacks that are complete.
    pub(super) complete_stacks: usize,
    /// True if the function that leaks has its name in the profile.
    pub(super) names_leaker: bool,
    /// Losses by name, without zeros.
    pub(super) lost: Vec<(String, u64)>,
    /// CPU time of the program per allocation or free, if known.
    pub(super) ns_per_call: Option<f64>,
    /// Time from the start to the end of the trial.
    pub(super) milliseconds: u64,
}

/// Profiles the program.
pub fn run() -> Result<Measured, Error> {
    let began = Instant::now();
    let interrupt = Arc::new(Notify::new());
    let mut last = Last { profile: None, interrupt: Arc::clone(&interrupt) };
    session::run(plan(), &mut last, &interrupt)?;
    Ok(Measured::of(last.profile.as_ref(), began.elapsed()))
}

/// Ends a trial that hangs. The thread ends with jjleak.
fn end_in_time(interrupt: Arc<Notify>) {
    thread::spawn(move || {
        thread::sleep(LIMIT);
        interrupt.notify_one();
    });
}

fn plan() -> Plan {
    let mut settings = Settings::new(Programs::Accounting);
    settings.capacity.processes = 1;
    Plan {
        target: Target::Command {
            words: vec![OWN_PROGRAM.into(), VERB.into()],
            streams: Streams::Silent,
            variables: Vec::new(),
        },
        settings,
        coverage: Coverage::default(),
        allocators: AllocatorChoice {
            probed: Probed::NamedOnly,
            // The table is a constant; a test parses it.
            named: NamedAllocator::parse_table(TABLE).unwrap_or_default(),
            ..AllocatorChoice::default()
        },
        cost_bound: None,
        agent: None,
        asks_for_perf_maps: false,
        baseline: None,
        listing: Listing::Always,
        schedule: Schedule {
            interval: INTERVAL,
            reports: None,
            has_verdicts: false,
            settle: Duration::ZERO,
            only_events: false,
            begins_early: false,
        },
    }
}

impl Measured {
    fn of(profile: Option<&Profile>, took: Duration) -> Self {
        let stacks = profile.map(|profile| &*profile.stacks).unwrap_or_default();
        let live = profile.map(Profile::live).unwrap_or_default();
        let allocated = profile.map(Profile::allocated).unwrap_or_default();
        let leaks = |stack: &&StackProfile| stack.live.bytes > 0;
        let is_named = |stack: &StackProfile| stack.frames.iter().any(|frame| frame.symbol == LEAKER);
        let lost = profile.iter().flat_map(|profile| &profile.lost);
        Self {
            expected: EXPECTED,
            counted: Expected {
                live_bytes: live.bytes,
                live_objects: live.objects,
                allocated_bytes: allocated.bytes,
                allocated_objects: allocated.objects,
            },
            stacks: stacks.len(),
            complete_stacks: stacks.iter().filter(|stack| stack.status == StackStatus::Complete).count(),
            names_leaker: stacks.iter().find(leaks).is_some_and(is_named),
            lost: lost.filter(|(_, count)| **count > 0).map(|(name, count)| (name.clone(), *count)).collect(),
            ns_per_call: profile.and_then(|profile| profile.cost?.ns_per_call()),
            milliseconds: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Deviations from the expected result, a line each.
    pub(super) fn problems(&self) -> Vec<String> {
        let Self { expected, counted, .. } = self;
        let mut problems = Vec::new();
        if counted != expected {
            problems.push(format!(
                "counted {} bytes live in {} blocks and {} allocated in {}, of {} in {} and {} in {}",
                counted.live_bytes,
                counted.live_objects,
                counted.allocated_bytes,
                counted.allocated_objects,
                expected.live_bytes,
                expected.live_objects,
                expected.allocated_bytes,
                expected.allocated_objects,
            ));
        }
        if self.stacks == 0 || self.complete_stacks < self.stacks {
            problems.push(format!("{} of {} stacks are complete", self.complete_stacks, self.stacks));
        }
        if !self.names_leaker {
            problems.push(format!("the function that leaks, {LEAKER}, is not named"));
        }
        problems.extend(self.lost.iter().map(|(name, count)| format!("lost: {count} {name}")));
        problems
    }
}

/// Keeps the last profile, and ends a trial that hangs.
struct Last {
    profile: Option<Profile>,
    interrupt: Arc<Notify>,
}

impl Observer for Last {
    type Error = Error;

    fn open(&mut self, _pid: Option<Pid>) -> Result<(), Error> {
        Ok(())
    }

    fn attached(&mut self) -> Result<(), Error> {
        end_in_time(Arc::clone(&self.interrupt));
        Ok(())
    }

    fn notify(&mut self, _notice: &Notice<'_>) {}

    fn snapshot(&mut self, _profiles: Vec<Profile>) -> bool {
        true
    }

    fn ended(&mut self, profiles: &[Profile], _following: Following) {
        self.profile = profiles.first().cloned();
    }

    fn last(&mut self, running: &[Profile], ended: &[Profile], _following: Following) {
        self.profile = ended.first().or(running.first()).cloned().or(self.profile.take());
    }

    fn finish(&mut self, _profiles: &[Profile]) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_the_functions_of_the_program() {
        let table = NamedAllocator::parse_table(TABLE).unwrap();
        assert_eq!(table.iter().map(|it| it.functions.len()).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn whatever_differs_is_a_problem() {
        let good = Measured {
            expected: EXPECTED,
            counted: EXPECTED,
            stacks: 2,
            complete_stacks: 2,
            names_leaker: true,
            lost: Vec::new(),
            ns_per_call: None,
            milliseconds: 300,
        };
        assert_eq!(good.problems(), [""; 0]);
        let bad = [
            Measured { counted: Expected { live_bytes: 1, ..EXPECTED }, ..good.clone() },
            Measured { complete_stacks: 1, ..good.clone() },
            Measured { stacks: 0, complete_stacks: 0, ..good.clone() },
            Measured { names_leaker: false, ..good.clone() },
            Measured { lost: vec![("live_table_full".to_owned(), 1)], ..good },
        ];
        assert!(bad.iter().all(|measured| measured.problems().len() == 1), "{bad:?}");
        assert_eq!(Measured::of(None, Duration::ZERO).problems().len(), 3);
    }
}
