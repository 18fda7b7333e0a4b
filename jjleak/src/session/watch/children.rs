//! Removes the probes from children that are not followed.

use std::time::{Duration, Instant};

use jjleak_common::counter::Counter;

use super::Watch;

/// Rest after a round, as a multiple of the round's duration. In a round the kernel briefly blocks every process on
/// the host that maps the probed files, once per probe site.
const REST: u32 = 50;

/// State of the removal.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// True if there may be children with probes.
    are_waiting: bool,
    /// End and duration of the last round.
    last: Option<(Instant, Duration)>,
}

impl Children {
    fn is_resting(&self) -> bool {
        self.last.is_some_and(|(at, took)| at.elapsed() < took * REST)
    }
}

impl Watch {
    /// Removes the probes from children that are not followed. They wait while the rest after the last round lasts.
    pub(super) fn spare_children(&mut self) {
        for watched in self.processes.values_mut() {
            let forked = self
                .accounting
                .collector
                .counters(watched.slot())
                .get(&Counter::Fork)
                .copied()
                .unwrap_or_default();
            self.accounting.children.are_waiting |=
                forked != std::mem::replace(&mut watched.times_forked, forked);
        }
        if self.accounting.children.are_waiting && !self.accounting.children.is_resting() {
            let begun = Instant::now();
            self.attachment.spare_children();
            self.accounting.children =
                Children { are_waiting: false, last: Some((Instant::now(), begun.elapsed())) };
        }
    }
}
