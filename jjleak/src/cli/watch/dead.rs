//! What has ended, until nothing is left of it in the kernel side's tables.

use std::collections::BTreeSet;

use jjleak_common::process::{ImageId, ProcessSlot};

use crate::attach::{self, Attachment};
use crate::collect::Collector;

/// How often an image's leavings are looked for. A probe that was hit just before the end can still be writing when
/// they are looked for at first; by the second time, at least one look at all processes later, it has long ended.
const SWEEPS: u32 = 2;

/// Images that run no more, and slots whose processes are gone.
#[derive(Default)]
pub(super) struct Dead(Vec<Remains>);

struct Remains {
    image: ImageId,
    /// Given back once nothing is left.
    slot: Option<ProcessSlot>,
    sweeps: u32,
}

impl Dead {
    pub(super) fn add(&mut self, image: ImageId, slot: Option<ProcessSlot>) {
        self.0.push(Remains { image, slot, sweeps: 0 });
    }

    pub(super) fn has(&self, slot: ProcessSlot) -> bool {
        self.0.iter().any(|remains| remains.slot == Some(slot))
    }

    /// How many slots they still have.
    pub(super) fn slots(&self) -> usize {
        self.0.iter().filter(|remains| remains.slot.is_some()).count()
    }

    /// The images.
    pub(super) fn images(&self) -> BTreeSet<ImageId> {
        self.0.iter().map(|remains| remains.image).collect()
    }

    /// Throws away what they have left, and returns the rows of their stacks.
    pub(super) fn sweep(
        &mut self,
        attachment: &mut Attachment,
        collector: &mut Collector,
    ) -> Result<BTreeSet<u32>, attach::Error> {
        if self.0.is_empty() {
            return Ok(BTreeSet::new());
        }
        let rows = collector.forget(attachment, &self.images())?;
        for remains in &mut self.0 {
            remains.sweeps += 1;
        }
        let gone: Vec<_> = self.0.extract_if(.., |remains| remains.sweeps == SWEEPS).collect();
        for slot in gone.into_iter().filter_map(|remains| remains.slot) {
            collector.reset(slot);
            attachment.processes_mut().release(slot)?;
        }
        Ok(rows)
    }
}
