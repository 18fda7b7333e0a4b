//! The cost of profiling: measures it for profiles, and keeps it within a bound.

use std::time::Instant;

use super::accounting::Accounting;
use super::{Watch, Watched};
use crate::attach::{Measuring, Part, Programs, now_ns};
use crate::cost::{Bound, Budget, ObjectBound};
use crate::error_chain::chain;
use crate::profile::Profile;
use crate::session::{BoundError, CostBound, Error};

impl Watch {
    /// Adds the cost of being profiled to each profile.
    pub(super) fn measure_cost(&mut self, profiles: &mut [Profile]) {
        // The price is that of allocations and frees, each of which is a hit. Samples stand for many.
        let are_samples = self.attachment.settings().programs == Programs::Samples;
        if are_samples || self.accounting.touched.is_followed() || self.accounting.java_heap.is_followed() {
            return;
        }
        let prices = self.accounting.meter.prices(&self.attachment);
        for profile in profiles {
            let is_of = |watched: &&mut Watched| watched.pid().number().get() == profile.process.pid;
            if let Some(watched) = self.processes.values_mut().find(is_of) {
                let spent = self
                    .accounting
                    .bound
                    .as_ref()
                    .map(|bound| bound.spent(&self.attachment, &self.accounting.meter));
                profile.cost = watched.spending.measure(profile, prices, spent);
            }
        }
    }

    /// Attaches without probing, until [`Self::keep_within`]: cost before the first measurement would not count
    /// against the budget. For a single process.
    pub(in crate::session) fn rest_at_first(&mut self) -> Result<(), Error> {
        if self.accounting.java_heap.is_followed() {
            return Ok(());
        }
        self.can_rest()?;
        self.attachment.rest(Part::Allocations);
        self.attachment.rest(Part::Frees);
        Ok(())
    }

    /// Keeps the cost of profiling the only process within a bound.
    pub(in crate::session) fn keep_within(&mut self, bound: CostBound) -> Result<(), Error> {
        if self.accounting.java_heap.is_followed() {
            return self.keep_objects_within(bound.share);
        }
        self.can_rest()?;
        let Some(watched) = self.processes.values().next() else { return Ok(()) };
        if !self.accounting.meter.calibrate() {
            return Err(BoundError::BreakpointCost.into());
        }
        let measuring = Measuring::begin().map_err(BoundError::measure)?;
        let CostBound { share, is_patient } = bound;
        let budget = if is_patient { Budget::patient(share) } else { Budget::new(share) };
        let bound = Bound::begin(
            budget,
            watched.pid(),
            measuring,
            &mut self.attachment,
            &mut self.accounting.collector,
        )?;
        // Probes attached by now must be removable too.
        self.can_rest()?;
        self.accounting.bound = Some(bound);
        Ok(())
    }

    fn keep_objects_within(&mut self, share: f64) -> Result<(), Error> {
        let Some(watched) = self.processes.values().next() else { return Ok(()) };
        if !self.accounting.meter.calibrate() {
            return Err(BoundError::BreakpointCost.into());
        }
        let measuring = Measuring::begin().map_err(BoundError::measure)?;
        let bound = ObjectBound::begin(share, watched.pid(), measuring, &self.attachment);
        self.accounting.java_heap.keep_within(bound);
        Ok(())
    }

    /// Records as many objects of a Java heap as the bound permits. To be called about once a second.
    pub(super) fn adjust_objects(&mut self) -> Result<(), Error> {
        let Accounting { java_heap, meter, .. } = &mut self.accounting;
        let Some(share) = java_heap.adjust(&mut self.attachment, meter)? else { return Ok(()) };
        tracing::warn!(
            "objects are no longer followed: breakpoints alone take {:.1} % of the process's CPU time, more than the bound (to do: a higher \
             --max-overhead)",
            100. * share
        );
        Ok(self.attachment.take_out()?)
    }

    /// Returns true if the cost is bounded.
    pub(in crate::session) const fn is_bounded(&self) -> bool {
        self.accounting.bound.is_some()
    }

    fn can_rest(&self) -> Result<(), BoundError> {
        if self.attachment.can_rest() { Ok(()) } else { Err(BoundError::SlowProbes) }
    }

    /// Time of the next [`Self::turn`]; `None` without a bound.
    pub(in crate::session) fn next_turn(&self) -> Option<Instant> {
        self.accounting.bound.as_ref().map(Bound::next)
    }

    /// Returns true if probes are about to be taken out to stay within the bound. Slow work should wait until then,
    /// because the process pays for the delay.
    pub(in crate::session) fn is_pressed(&self) -> bool {
        self.accounting.bound.as_ref().is_some_and(Bound::is_time_critical)
    }

    /// Takes probes out or puts them in, to stay within the bound.
    pub(in crate::session) fn turn(&mut self) {
        let is_running = self.processes.values_mut().any(Watched::runs);
        let Some(bound) = self.accounting.bound.as_mut().filter(|_| is_running) else {
            self.accounting.bound = None;
            return;
        };
        let turned = if self.attachment.can_rest() {
            let turned = bound.advance(
                &mut self.attachment,
                &mut self.accounting.collector,
                &mut self.accounting.meter,
            );
            turned.map_err(|error| chain(&error))
        } else {
            Err("its main thread has ended, and removing probes bound to another thread takes seconds"
                .to_owned())
        };
        match turned {
            Ok(true) => self.start_over(),
            Ok(false) => {}
            Err(why) => self.give_up(&why),
        }
    }

    /// Begins the figures of the only process anew: until now, frees were missed.
    fn start_over(&mut self) {
        tracing::warn!("frees can be followed within the cost bound from now on: the figures start over");
        for watched in self.processes.values_mut() {
            watched.since_ns = now_ns();
            let process = watched.info();
            self.accounting.histories.forget(&process);
            self.accounting.growth.forget(&process);
        }
    }

    /// Ends the bound, and counting with it. The process may be ending: its report matters more than the bound.
    fn give_up(&mut self, why: &str) {
        let Some(bound) = self.accounting.bound.take() else { return };
        let out = bound.give_up(&mut self.attachment, &mut self.accounting.collector);
        tracing::warn!(
            "the cost of profiling is no longer bounded, and allocations are no longer counted: {why}"
        );
        if let Err(error) = out {
            tracing::warn!("probes may have been left in the process: {}", chain(&error));
        }
    }
}

/// Drops the verdicts of a profile that cannot be judged: its live memory is unknown, or its figures are of pages.
pub(super) fn unjudge_unknown(profile: &mut Profile) {
    if !profile.coverage.knows_live() || !profile.coverage.source.is_judged() {
        profile.unjudge();
    }
}
