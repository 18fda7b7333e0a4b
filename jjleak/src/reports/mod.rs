//! Reports of a run: text and JSON at every interval, files at the end.
//!
//! In: what a run delivers ([`Observer`]), or saved profiles. Out: stdout, and files that are complete or absent.

mod error;
pub mod memory;
mod outputs;
mod stream;
mod trace;

use jjleak_common::trace::Event;

use crate::attach::Following;
use crate::notices::{Progress, print};
use crate::processes::Pid;
use crate::profile::Profile;
use crate::session::{Notice, Observer, Step};
use trace::Trace;

pub use error::Error;
pub use outputs::{OutputPlan, Outputs, Written, write_difference};

/// Writes the reports of a run.
#[derive(Debug)]
pub struct Reports {
    plan: OutputPlan,
    /// `None` until the run has begun.
    outputs: Option<Outputs>,
    trace: Trace,
    progress: Option<Progress>,
}

impl Reports {
    /// Nothing is opened before the run begins.
    #[must_use]
    pub fn new(plan: OutputPlan) -> Self {
        Self { plan, outputs: None, trace: Trace::new(), progress: None }
    }

    /// Appends profiles to the file of all reports, if there is one, and prints nothing.
    pub fn keep(&mut self, profiles: &[Profile]) {
        self.outputs.iter_mut().for_each(|outputs| outputs.keep(profiles));
    }

    /// Prints reports that were only kept so far.
    pub fn print_kept(&mut self, profiles: &[Profile]) {
        self.outputs.iter_mut().for_each(|outputs| outputs.print_kept(profiles));
    }

    /// Writes an interval's report.
    pub fn report(&mut self, profiles: &[Profile]) {
        self.outputs.iter_mut().for_each(|outputs| outputs.report(profiles));
    }
}

impl Observer for Reports {
    type Error = Error;

    fn open(&mut self, pid: Option<Pid>) -> Result<(), Error> {
        self.outputs = Some(Outputs::open(&self.plan, pid.map(|pid| pid.number().get()))?);
        Ok(())
    }

    fn progress(&mut self, step: Option<Step>) {
        self.progress = step.map(|step| Progress::start(&step.to_string()));
    }

    fn notify(&mut self, notice: &Notice<'_>) {
        let end = match notice {
            Notice::Attaching | Notice::Attached(_) => "; Ctrl-C for the final report",
            Notice::Ended(_) | Notice::RunsOn(..) | Notice::LeftOut(_) => "",
        };
        print(&format!("{notice}{end}"));
    }

    fn events(&mut self, events: &[Event]) -> bool {
        self.trace.print(events).is_ok()
    }

    fn snapshot(&mut self, profiles: Vec<Profile>) -> bool {
        self.report(&profiles);
        self.outputs.as_ref().is_some_and(Outputs::is_wanted)
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
