//! Slots of processes that are gone, until the kernel side's tables have no entries of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jjleak_common::process::ProcessSlot;

use crate::attach::{self, Attachment};
use crate::collect::Collector;

/// Time until a slot is released. A probe hit just before its process was disarmed can still be writing; it takes a
/// thousandth of this.
const GRACE: Duration = Duration::from_millis(50);
/// Maximum number of images that a process may have had since its entries were last cleared: a quarter of the
/// distinguishable ones.
const MAX_UNSWEPT: u32 = 32;

/// Slots to be released, and a flag that there may be entries to clear.
#[derive(Default)]
pub(super) struct Dead {
    leavings: bool,
    slots: Vec<(ProcessSlot, Instant)>,
}

impl Dead {
    /// Notes that an image is over.
    pub(super) const fn add_image(&mut self) {
        self.leavings = true;
    }

    /// Notes that a process is gone.
    pub(super) fn add_process(&mut self, slot: ProcessSlot) {
        self.leavings = true;
        self.slots.push((slot, Instant::now()));
    }

    pub(super) fn has(&self, slot: ProcessSlot) -> bool {
        self.slots.iter().any(|(of, _)| *of == slot)
    }

    /// Number of slots to be released.
    pub(super) const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if entries should be cleared now.
    pub(super) fn is_urgent(attachment: &Attachment) -> bool {
        attachment.processes().images().unswept() > MAX_UNSWEPT
    }

    /// Clears the entries of images that are over, releases slots, and returns the rows of the cleared stacks. The
    /// process table says which images are over, even those that jjleak never scanned.
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
