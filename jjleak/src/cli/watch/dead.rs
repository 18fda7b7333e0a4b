//! Slots of processes that are gone, until nothing is left of them in the kernel side's tables.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jjleak_common::process::ProcessSlot;

use crate::attach::{self, Attachment};
use crate::collect::Collector;

/// A probe that was hit just before its process was let go can still be writing for so long, and a thousand times less.
const GRACE: Duration = Duration::from_millis(50);
/// The most images that a process may have had since what they left was thrown away last: a quarter of those that can be
/// told apart.
const MAX_UNSWEPT: u32 = 32;

/// Whether anything has been left, and whose slots wait to be given back.
#[derive(Default)]
pub(super) struct Dead {
    leavings: bool,
    slots: Vec<(ProcessSlot, Instant)>,
}

impl Dead {
    /// An image runs no more.
    pub(super) const fn add_image(&mut self) {
        self.leavings = true;
    }

    /// A process is gone.
    pub(super) fn add_process(&mut self, slot: ProcessSlot) {
        self.leavings = true;
        self.slots.push((slot, Instant::now()));
    }

    pub(super) fn has(&self, slot: ProcessSlot) -> bool {
        self.slots.iter().any(|(of, _)| *of == slot)
    }

    /// How many slots wait to be given back.
    pub(super) const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Whether it is time to throw away what has been left.
    pub(super) fn is_urgent(attachment: &Attachment) -> bool {
        attachment.processes().images().unswept() > MAX_UNSWEPT
    }

    /// Throws away what images have left that run no more, and returns the rows of their stacks. What is dead is told by
    /// the table of processes, whatever has been seen of them.
    pub(super) fn sweep(
        &mut self,
        attachment: &mut Attachment,
        collector: &mut Collector,
    ) -> Result<BTreeSet<u32>, attach::Error> {
        if !self.leavings && self.slots.is_empty() {
            return Ok(BTreeSet::new());
        }
        self.leavings = false;
        let begin = Instant::now();
        let rows = collector.forget(attachment)?;
        let is_over = |since: &mut (ProcessSlot, Instant)| begin.duration_since(since.1) > GRACE;
        for (slot, _) in self.slots.extract_if(.., is_over) {
            collector.reset(slot);
            attachment.processes_mut().release(slot)?;
        }
        Ok(rows)
    }
}
