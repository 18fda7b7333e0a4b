//! The live view of a run, on a terminal.
//!
//! In: what a run delivers ([`Observer`]), and keys. Out: the cells of [`crate::top`] on the terminal, files on request, and the
//! reports of the run when it is over.

mod error;
mod keyboard;
mod memory_scans;
mod terminal;
mod view;
mod viewer;

use std::time::Duration;

use crate::analyze::Pace;
use crate::attach::Following;
use crate::processes::Pid;
use crate::profile::Profile;
use crate::reports::{OutputPlan, Reports};
use crate::session::{Notice, Observer, Step};
use crate::top::About;
use viewer::Viewer;

pub use error::Error;
pub use terminal::{give_back, restore};
pub use view::ViewPlan;

/// Shows a run live.
pub struct Live {
    about: About,
    plan: ViewPlan,
    /// `None` until counting has begun.
    viewer: Option<Viewer>,
    reports: Reports,
}

impl Live {
    /// The terminal is taken over when counting has begun.
    #[must_use]
    pub fn new(about: About, plan: ViewPlan, outputs: OutputPlan) -> Self {
        Self { about, plan, viewer: None, reports: Reports::new(outputs) }
    }
}

impl Observer for Live {
    type Error = Error;

    fn open(&mut self, pid: Option<Pid>) -> Result<(), Error> {
        Ok(self.reports.open(pid)?)
    }

    fn attached(&mut self) -> Result<(), Error> {
        let viewer = Viewer::open(self.about.clone(), self.plan.clone()).map_err(Error::Terminal)?;
        self.viewer = Some(viewer);
        Ok(())
    }

    fn shows_some_first(&self) -> bool {
        true
    }

    fn progress(&mut self, step: Option<Step>) {
        self.reports.progress(step);
    }

    fn notify(&mut self, notice: &Notice<'_>) {
        self.reports.notify(notice);
    }

    fn begin_snapshot(&mut self) {
        self.viewer.iter_mut().for_each(Viewer::begin_snapshot);
    }

    fn pace(&self) -> Pace {
        Pace::InTurn
    }

    fn pause(&self) -> Option<Duration> {
        self.viewer.as_ref().and_then(Viewer::pause)
    }

    fn snapshot(&mut self, profiles: Vec<Profile>) -> bool {
        self.reports.keep(&profiles);
        self.viewer.as_mut().is_some_and(|viewer| viewer.show(profiles))
    }

    fn ended(&mut self, profiles: &[Profile], _following: Following) {
        self.reports.keep(profiles);
        self.viewer.iter().for_each(|viewer| viewer.show_ended(profiles));
    }

    fn reads_ended(&self, _following: Following) -> bool {
        self.viewer.as_ref().is_some_and(Viewer::shows_ended) || self.reports.omits_nothing()
    }

    fn stays(&mut self) -> bool {
        self.viewer.as_ref().is_some_and(Viewer::end)
    }

    async fn leaving(&mut self) {
        match &mut self.viewer {
            Some(viewer) => viewer.leaving().await,
            None => std::future::pending().await,
        }
    }

    fn last(&mut self, running: &[Profile], ended: &[Profile], _following: Following) {
        self.viewer.iter_mut().for_each(Viewer::close);
        // Until now, the view had the terminal.
        self.reports.print_kept(ended);
        self.reports.report(running);
    }

    fn finish(&mut self, profiles: &[Profile]) -> Result<(), Error> {
        Ok(self.reports.finish(profiles)?)
    }
}
