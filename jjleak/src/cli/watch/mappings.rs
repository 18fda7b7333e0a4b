//! Follows the mappings of the profiled processes, for `--mmap`.

use std::collections::HashMap;
use std::os::fd::RawFd;

use jjleak_common::mapping::MappingKinds;
use jjleak_common::process::ImageId;

use super::Failure;
use crate::attach::{Attachment, Drained, Images, MappingEvents, SizeFilter};
use crate::collect::{Collector, RawStack, Snapshot};
use crate::mappings::TrackedMappings;

/// The mappings of each image, or nothing without `--mmap`.
pub(super) struct Mappings(Option<Followed>);

struct Followed {
    events: MappingEvents,
    kinds: MappingKinds,
    sizes: SizeFilter,
    tables: HashMap<ImageId, TrackedMappings>,
}

impl Mappings {
    /// Follows the mappings of armed processes that are `wanted`, which the attachment must have been told.
    pub(super) fn follow(
        wanted: Option<MappingKinds>,
        sizes: SizeFilter,
        attachment: &mut Attachment,
    ) -> Result<Self, Failure> {
        let Some(kinds) = wanted else { return Ok(Self(None)) };
        let events = attachment.mapping_events()?;
        Ok(Self(Some(Followed { events, kinds, sizes, tables: HashMap::new() })))
    }

    /// A descriptor that is readable when something has happened; none without `--mmap`.
    pub(super) fn waiting(&self) -> Option<RawFd> {
        self.0.as_ref().map(|followed| followed.events.descriptor())
    }

    /// Enters what has happened.
    pub(super) fn receive(&mut self) -> Drained {
        let Some(Followed { events, kinds, sizes, tables }) = &mut self.0 else { return Drained::Empty };
        events.take(|event| {
            tables.entry(event.image).or_insert_with(|| TrackedMappings::new(*kinds, *sizes)).record(event);
        })
    }

    /// Adds what is mapped to a snapshot that has just been taken, but for the mappings of stacks that
    /// `is_in_allocator`.
    pub(super) fn add_to(
        &self,
        snapshot: &mut Snapshot,
        collector: &Collector,
        is_in_allocator: impl Fn(&RawStack) -> bool,
    ) {
        let Some(Followed { tables, .. }) = &self.0 else { return };
        if let Some(table) = tables.get(&snapshot.image) {
            collector.add_mappings(snapshot, table, is_in_allocator);
        }
    }

    /// Throws away what images had mapped that run no more.
    pub(super) fn forget(&mut self, images: &Images) {
        if let Some(Followed { tables, .. }) = &mut self.0 {
            tables.retain(|image, _| images.is_current(*image));
        }
    }
}
