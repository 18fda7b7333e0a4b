//! The cost of profiling: measures it for profiles, and keeps it within a bound.

use std::io;
use std::time::Instant;

use super::{Watch, Watched};
use crate::attach::{Measuring, Part};
use crate::cli::Failure;
use crate::cli::failure::PREFLIGHT;
use crate::cost::{Bound, Budget};
use crate::profile::Profile;

impl Watch {
    /// Adds the cost of being profiled to each profile.
    pub(super) fn measure_cost(&mut self, profiles: &mut [Profile]) {
        let prices = self.meter.prices(&self.attachment);
        for profile in profiles {
            let is_of = |watched: &&mut Watched| watched.pid().number().get() == profile.process.pid;
            if let Some(watched) = self.processes.values_mut().find(is_of) {
                let spent = self.bound.as_ref().map(|bound| bound.spent(&self.attachment, &self.meter));
                profile.cost = watched.spending.measure(profile, prices, spent);
            }
        }
    }

    /// Attaches without probing, until [`Self::keep_within`]: cost before the first measurement would not count
    /// against the budget. For a single process.
    pub(in crate::cli) fn rest_at_first(&mut self) -> Result<(), Failure> {
        self.can_rest()?;
        self.attachment.rest(Part::Allocations);
        self.attachment.rest(Part::Frees);
        Ok(())
    }

    /// Keeps the cost of profiling the only process within a budget.
    pub(in crate::cli) fn keep_within(&mut self, budget: Budget) -> Result<(), Failure> {
        self.can_rest()?;
        let Some(watched) = self.processes.values().next() else { return Ok(()) };
        if !self.meter.calibrate() {
            let what = "--max-overhead: what a breakpoint costs here could not be measured";
            return Err(Failure::new(
                PREFLIGHT,
                what,
                "try again, or go without the bound: --estimate says what that costs",
            ));
        }
        let measuring = Measuring::begin().map_err(|error| cannot_measure(&error))?;
        let bound =
            Bound::begin(budget, watched.pid(), measuring, &mut self.attachment, &mut self.collector)?;
        // Probes attached by now must be removable too.
        self.can_rest()?;
        self.bound = Some(bound);
        Ok(())
    }

    /// Returns true if the cost is bounded.
    pub(in crate::cli) const fn is_bounded(&self) -> bool {
        self.bound.is_some()
    }

    fn can_rest(&self) -> Result<(), Failure> {
        if self.attachment.can_rest() {
            return Ok(());
        }
        let what =
            "--max-overhead: this kernel has no uprobe-multi links, and takes seconds to take probes out";
        Err(Failure::new(PREFLIGHT, what, "use Linux 6.6 or newer"))
    }

    /// Time of the next [`Self::turn`]; `None` without a bound.
    pub(in crate::cli) fn next_turn(&self) -> Option<Instant> {
        self.bound.as_ref().map(Bound::next)
    }

    /// Returns true if probes are about to be taken out to stay within the bound. Slow work should wait until then,
    /// because the process pays for the delay.
    pub(in crate::cli) fn is_pressed(&self) -> bool {
        self.bound.as_ref().is_some_and(Bound::is_time_critical)
    }

    /// Takes probes out or puts them in, to stay within the bound.
    pub(in crate::cli) fn turn(&mut self) {
        let is_running = self.processes.values_mut().any(Watched::runs);
        let Some(bound) = self.bound.as_mut().filter(|_| is_running) else {
            self.bound = None;
            return;
        };
        let turned = if self.attachment.can_rest() {
            let turned = bound.advance(&mut self.attachment, &mut self.collector, &mut self.meter);
            turned.map_err(|error| crate::cli::chain(&error))
        } else {
            Err("its main thread has ended, and probes that are bound to another take seconds to go"
                .to_owned())
        };
        if let Err(why) = turned {
            self.give_up(&why);
        }
    }

    /// Ends the bound, and counting with it. The process may be ending: its report matters more than the bound.
    fn give_up(&mut self, why: &str) {
        let Some(bound) = self.bound.take() else { return };
        let out = bound.give_up(&mut self.attachment, &mut self.collector);
        tracing::warn!(
            "what profiling costs is not bounded any more, and what is allocated not counted: {why}"
        );
        if let Err(error) = out {
            tracing::warn!("probes may have been left in the process: {}", crate::cli::chain(&error));
        }
    }
}

/// Error if the kernel does not measure BPF programs.
fn cannot_measure(error: &io::Error) -> Failure {
    let (why, remedy) = if error.kind() == io::ErrorKind::PermissionDenied {
        ("that needs CAP_SYS_ADMIN, beside the capabilities that profiling needs", "run it as root")
    } else {
        ("this kernel does not do that", "use Linux 6.6 or newer")
    };
    let what = format!("--max-overhead: what BPF programs take cannot be measured ({error}): {why}");
    Failure::new(PREFLIGHT, what, remedy)
}

/// Drops the verdicts of a profile that was counted in windows: some frees are not seen.
pub(super) fn unjudge_estimates(profile: &mut Profile) {
    if profile.coverage.windows.is_some() {
        profile.unjudge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_is_named_and_not_the_kernel() {
        let forbidden = cannot_measure(&io::Error::from_raw_os_error(nix::libc::EPERM)).to_string();
        assert!(forbidden.contains("CAP_SYS_ADMIN") && !forbidden.contains("kernel"), "{forbidden}");
        let unknown = cannot_measure(&io::Error::from_raw_os_error(nix::libc::EINVAL)).to_string();
        assert!(unknown.contains("kernel"), "{unknown}");
    }
}
