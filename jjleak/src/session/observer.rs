//! Results of a run, and the observers that receive them: reports, the live view, and the daemon.

use std::fmt;
use std::future::{Future, pending};
use std::time::Duration;

use jjleak_common::trace::Event;

use super::Error;
use crate::analyze::Pace;
use crate::attach::Following;
use crate::processes::Pid;
use crate::profile::Profile;
use crate::render::share_in_words;

/// Receiver of what a run yields. A failure of the observer ends the run.
pub trait Observer {
    /// Failures of the run and of the observer.
    type Error: From<Error>;

    /// Begins, before anything is attached. `pid` is the only process, if there is one.
    fn open(&mut self, pid: Option<Pid>) -> Result<(), Self::Error>;

    /// The processes are attached; counting has begun.
    fn attached(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Returns true if the first snapshot may lack processes that are not attached yet.
    fn shows_some_first(&self) -> bool {
        false
    }

    /// A step that may take seconds begins; with `None`, it has ended.
    fn progress(&mut self, _step: Option<Step>) {}

    /// Something happened that the user should know.
    fn notify(&mut self, notice: &Notice<'_>);

    /// Allocations and frees, as they happen. Returns false if nobody will see the next ones.
    fn events(&mut self, _events: &[Event]) -> bool {
        true
    }

    /// A snapshot begins.
    fn begin_snapshot(&mut self) {}

    /// Which verdicts each snapshot has to update.
    fn pace(&self) -> Pace {
        Pace::Thorough
    }

    /// Time until the next snapshot, if that differs from the interval.
    fn pause(&self) -> Option<Duration> {
        None
    }

    /// The profiles of a snapshot. Returns false if nobody will see the next one.
    fn snapshot(&mut self, profiles: Vec<Profile>) -> bool;

    /// The last profiles of running processes, before they are delivered: an observer adds what it knows of the processes.
    fn complete(&mut self, _running: &mut [Profile]) {}

    /// The last profiles of processes that have ended, and which processes the run follows.
    fn ended(&mut self, profiles: &[Profile], following: Following);

    /// Returns true if the observer reads the stacks of ended processes. Otherwise their profiles have totals only: to name the
    /// stacks of many that nobody reads leaves no time for the rest.
    fn reads_ended(&self, _following: Following) -> bool {
        true
    }

    /// There is nothing left to profile. Returns true if the observer stays, and ends the run itself.
    fn stays(&mut self) -> bool {
        false
    }

    /// Completes when the observer wants the run to end. Can be dropped and called again.
    fn leaving(&mut self) -> impl Future<Output = ()> {
        pending()
    }

    /// The last profiles: of running processes, and of ended ones.
    fn last(&mut self, running: &[Profile], ended: &[Profile], following: Following);

    /// All profiles at the end, when nothing is counted any more.
    fn finish(&mut self, profiles: &[Profile]) -> Result<(), Self::Error>;
}

/// A step of a run that may take seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Probes are attached.
    Attaching,
    /// Files are written, and probes detached.
    Finishing,
}

/// An event that the user should know.
#[derive(Debug, Clone, PartialEq)]
pub enum Notice<'a> {
    /// Probes are being attached, to more processes than can be named.
    Attaching,
    /// Probes are attached; the text says to what.
    Attached(String),
    /// A process is asked to load a library.
    Loading(Pid, &'a str),
    /// It has, and this many places that call malloc are sampled, and others are not.
    Loaded(Pid, u32, u32),
    /// The samples that a process draws itself are used: counting everything would take this share of its CPU time, which is more than
    /// the bound.
    Samples {
        /// The process.
        pid: Pid,
        /// The file that announces them.
        file: &'a str,
        /// The share.
        share: f64,
        /// The bound.
        bound: f64,
    },
    /// A process has ended.
    Ended(&'a str),
    /// A command goes on when the run ends.
    RunsOn(&'a str, Pid),
    /// Processes that have ended are in no file, apart from JSON reports: there were too many.
    LeftOut(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Attaching => "attaching",
            Self::Finishing => "writing files and detaching probes",
        })
    }
}

impl fmt::Display for Notice<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attaching => formatter.write_str("attaching to all matching processes"),
            Self::Attached(what) => write!(formatter, "attached to {what}"),
            Self::Loading(pid, library) => write!(
                formatter,
                "asking process {pid} to load {library}, which stays until it ends; JDK 21 and later print a warning (JEP 451)"
            ),
            Self::Loaded(pid, sampled, 0) => {
                write!(
                    formatter,
                    "process {pid} samples all {sampled} imports of malloc's functions in its libraries"
                )
            }
            Self::Loaded(pid, sampled, others) => write!(
                formatter,
                "process {pid} samples {sampled} imports of malloc's functions in its libraries; {others} that lead elsewhere are not sampled"
            ),
            Self::Samples { pid, file, share, bound } => write!(
                formatter,
                "process {pid} draws samples itself ({file}): they are used, because counting everything would take {} of its CPU time, and \
                 the limit is {}",
                share_in_words(*share),
                share_in_words(*bound)
            ),
            Self::Ended(what) => formatter.write_str(what),
            Self::RunsOn(comm, pid) => write!(formatter, "{comm} keeps running as process {pid}"),
            Self::LeftOut(number) => {
                write!(formatter, "{number} ended processes are in JSON reports only, not in other files")
            }
        }
    }
}
