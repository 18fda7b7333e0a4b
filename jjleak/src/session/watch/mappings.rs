//! Follows the mappings of the profiled processes, for `--mmap`.

use std::collections::HashMap;
use std::os::fd::RawFd;

use jjleak_common::mapping::{Event, MappingKinds};
use jjleak_common::process::ImageId;

use crate::attach::{Attachment, Drained, Images, Records, SizeFilter};
use crate::collect::Collector;
use crate::mappings::TrackedMappings;
use crate::session::Error;
use crate::snapshot::{RawStack, Snapshot};

/// Mappings of each image; `None` without `--mmap`.
pub(super) struct Mappings(Option<Followed>);

struct Followed {
    events: Records<Event>,
    kinds: MappingKinds,
    sizes: SizeFilter,
    tables: HashMap<ImageId, TrackedMappings>,
}

impl Mappings {
    /// Follows the `wanted` kinds of mappings of armed processes. The attachment must have been loaded with the same
    /// setting.
    pub(super) fn follow(
        wanted: Option<MappingKinds>,
        sizes: SizeFilter,
        attachment: &mut Attachment,
    ) -> Result<Self, Error> {
        let Some(kinds) = wanted else { return Ok(Self(None)) };
        let events = attachment.mapping_events()?;
        Ok(Self(Some(Followed { events, kinds, sizes, tables: HashMap::new() })))
    }

    /// A descriptor that becomes readable with new events; `None` without `--mmap`.
    pub(super) fn waiting(&self) -> Option<RawFd> {
        self.0.as_ref().map(|followed| followed.events.descriptor())
    }

    /// Applies pending events.
    pub(super) fn receive(&mut self) -> Drained {
        let Some(Followed { events, kinds, sizes, tables }) = &mut self.0 else { return Drained::Empty };
        events.take(|event| {
            tables.entry(event.image).or_insert_with(|| TrackedMappings::new(*kinds, *sizes)).record(event);
        })
    }

    /// Adds live mappings to a snapshot that was just taken, except those whose stack `is_in_allocator`.
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

    /// Drops the mappings of images that are over.
    pub(super) fn forget(&mut self, images: &Images) {
        if let Some(Followed { tables, .. }) = &mut self.0 {
            tables.retain(|image, _| images.is_current(*image));
        }
    }
}
