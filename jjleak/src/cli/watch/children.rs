//! Takes the probes out of children that are not followed.

use std::time::{Duration, Instant};

use jjleak_common::counter::Counter;

use super::Watch;

/// Rounds may take so large a part of the time, as its inverse: in each, the kernel holds up every process on the machine that
/// maps the probed files, for a moment at each site.
const REST: u32 = 50;

/// When children were looked after.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// Whether there can be some with probes.
    are_waiting: bool,
    /// When the last round was over, and how long it took.
    last: Option<(Instant, Duration)>,
}

impl Children {
    fn is_resting(&self) -> bool {
        self.last.is_some_and(|(at, took)| at.elapsed() < took * REST)
    }
}

impl Watch {
    /// Takes the probes out of children that are not followed, unless so much time has gone into that lately that they
    /// have to wait.
    pub(super) fn spare_children(&mut self) {
        for watched in self.processes.values_mut() {
            let forked =
                self.collector.counters(watched.slot()).get(&Counter::Fork).copied().unwrap_or_default();
            self.children.are_waiting |= forked != std::mem::replace(&mut watched.times_forked, forked);
        }
        if self.children.are_waiting && !self.children.is_resting() {
            let begun = Instant::now();
            self.attachment.spare_children();
            self.children = Children { are_waiting: false, last: Some((Instant::now(), begun.elapsed())) };
        }
    }
}
