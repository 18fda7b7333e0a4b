//! Reports of a run: text and JSON at every interval, files at the end.
//!
//! In: what a run delivers ([`Observer`]), or saved profiles. Out: stdout, and files that are complete or absent.

mod error;
mod graphviz;
mod kept;
pub mod memory;
mod outputs;
mod sources;
mod stream;
mod trace;

use std::time::{Duration, Instant};

use jjleak_common::trace::Event;

use crate::attach::Following;
use crate::diagnosis::{Cause, Growing, Grown};
use crate::notices::{Progress, print};
use crate::processes::Pid;
use crate::profile::{Profile, SourceKind};
use crate::render::Format;
use crate::session::{Notice, Observer, Step};
use kept::Kept;
use trace::Trace;

pub use error::Error;
pub use outputs::{OutputPlan, Outputs, Written, write_difference};
pub use sources::source_lines;

/// Writes the reports of a run.
#[derive(Debug)]
pub struct Reports {
    plan: OutputPlan,
    /// `None` until the run has begun.
    outputs: Option<Outputs>,
    trace: Trace,
    progress: Option<Progress>,
    /// The only process, if the run is of one that runs already and somebody reads what grows in it.
    pid: Option<Pid>,
    /// Its growth.
    growing: Option<Growing>,
    /// Its growth at the last scan.
    grown: Option<Grown>,
    /// Time of the next scan of its memory.
    rests_until: Option<Instant>,
    /// True to ask the only process, a JVM, for class histograms.
    asks_jvm: bool,
    /// Its histograms, if it gives any.
    kept: Option<Kept>,
}

/// Maximum time for reading the arenas of malloc during a run, which waits for it.
const ARENA_TIME: Duration = Duration::from_millis(100);
/// Minimum time between scans, as a multiple of what one takes.
const REST: u32 = 100;

impl Reports {
    /// Nothing is opened before the run begins.
    #[must_use]
    pub fn new(plan: OutputPlan) -> Self {
        Self {
            plan,
            outputs: None,
            trace: Trace::new(),
            progress: None,
            pid: None,
            growing: None,
            grown: None,
            rests_until: None,
            asks_jvm: false,
            kept: None,
        }
    }

    /// Also asks the only process, a JVM, for histograms of its classes.
    #[must_use]
    pub fn with_histograms(self) -> Self {
        Self { asks_jvm: true, ..self }
    }

    /// Appends profiles to the file of all reports, if there is one, and prints nothing.
    pub fn keep(&mut self, profiles: &[Profile]) {
        self.outputs.iter_mut().for_each(|outputs| outputs.keep(profiles));
    }

    /// Returns true if there is a destination that gets the reports of all processes.
    pub fn omits_nothing(&self) -> bool {
        self.outputs.as_ref().is_some_and(Outputs::omits_nothing)
    }

    /// Prints reports that were only kept so far.
    pub fn print_kept(&mut self, profiles: &[Profile]) {
        self.outputs.iter_mut().for_each(|outputs| outputs.print_kept(profiles));
    }

    /// Adds what grows in the only process to its profile. Its memory is scanned, unless that was done just now.
    fn add_growth(&mut self, profiles: &mut [Profile], is_last: bool) {
        if let (Some(kept), [profile]) = (&mut self.kept, &mut *profiles) {
            profile.kept = kept.classes(is_last).to_vec();
        }
        let (Some(growing), [profile]) = (&self.growing, profiles) else { return };
        if is_last || self.rests_until.is_none_or(|until| Instant::now() >= until) {
            let begun = Instant::now();
            self.grown = growing.grown().or(self.grown.take());
            self.rests_until = Some(Instant::now() + REST * begun.elapsed());
        }
        let Some(grown) = &self.grown else { return };
        profile.growth = match profile.coverage.source {
            SourceKind::Growth => grown.beside_source(Cause::leads_to_pages),
            SourceKind::JavaHeap => grown.beside_source(Cause::leads_to_java_heap),
            SourceKind::Malloc | SourceKind::Sampled | SourceKind::File => {
                grown.beside(comparable_live(profile, grown))
            }
        };
    }

    /// Writes an interval's report.
    pub fn report(&mut self, profiles: &[Profile]) {
        self.outputs.iter_mut().for_each(|outputs| outputs.report(profiles));
    }
}

/// Live bytes of all that was allocated since the first scan; `None` if a profile has only a part of it, or does not know it.
fn comparable_live(profile: &Profile, grown: &Grown) -> Option<u64> {
    /// Larger difference between the two starts than attaching and a scan make.
    const APART: Duration = Duration::from_secs(2);
    let coverage = &profile.coverage;
    let is_whole = coverage.knows_live()
        && coverage.older.is_zero()
        && !coverage.some_sizes
        && !coverage.settle.is_zero()
        && profile.elapsed().abs_diff(grown.elapsed) <= APART;
    is_whole.then(|| profile.live().bytes)
}

impl Observer for Reports {
    type Error = Error;

    fn open(&mut self, pid: Option<Pid>) -> Result<(), Error> {
        self.outputs = Some(Outputs::open(&self.plan, pid.map(|pid| pid.number().get()))?);
        let is_read = [Format::Text, Format::Html].iter().any(|format| self.plan.formats.contains(format));
        self.pid = pid.filter(|_| is_read);
        // Before anything counts: the collection stops the JVM.
        self.kept = pid.filter(|_| self.asks_jvm).and_then(Kept::begin);
        Ok(())
    }

    fn attached(&mut self) -> Result<(), Error> {
        self.growing = self.pid.and_then(|pid| Growing::begin(pid, ARENA_TIME));
        Ok(())
    }

    fn progress(&mut self, step: Option<Step>) {
        self.progress = step.map(|step| Progress::start(&step.to_string()));
    }

    fn notify(&mut self, notice: &Notice<'_>) {
        let end = match notice {
            Notice::Attaching | Notice::Attached(_) => "; Ctrl-C for the final report",
            Notice::Loading(..)
            | Notice::Loaded(..)
            | Notice::Samples { .. }
            | Notice::Ended(_)
            | Notice::RunsOn(..)
            | Notice::LeftOut(_) => "",
        };
        print(&format!("{notice}{end}"));
    }

    fn events(&mut self, events: &[Event]) -> bool {
        self.trace.print(events).is_ok()
    }

    fn snapshot(&mut self, mut profiles: Vec<Profile>) -> bool {
        self.add_growth(&mut profiles, false);
        self.report(&profiles);
        self.outputs.as_ref().is_some_and(Outputs::is_wanted)
    }

    fn complete(&mut self, running: &mut [Profile]) {
        self.add_growth(running, true);
    }

    fn ended(&mut self, profiles: &[Profile], following: Following) {
        let Some(outputs) = &mut self.outputs else { return };
        match following {
            Following::Nobody => outputs.report(profiles),
            // Their reports follow at the end.
            Following::Children => outputs.mention_ended(profiles),
            // Most of them are of no interest.
            Following::Everyone => outputs.report_ended(profiles),
        }
    }

    fn reads_ended(&self, following: Following) -> bool {
        following != Following::Everyone || self.omits_nothing()
    }

    fn last(&mut self, running: &[Profile], ended: &[Profile], following: Following) {
        let Some(outputs) = &mut self.outputs else { return };
        if following != Following::Nobody {
            outputs.print_ended(ended);
        }
        outputs.report(running);
    }

    fn finish(&mut self, profiles: &[Profile]) -> Result<(), Error> {
        let Some(outputs) = self.outputs.take() else { return Ok(()) };
        outputs.finish(profiles).print()
    }
}
