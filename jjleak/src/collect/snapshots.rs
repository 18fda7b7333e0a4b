//! Snapshots: what the tables have at one instant, put together for each process.

use std::collections::BTreeMap;

use jjleak_common::counter::Counter;
use jjleak_common::names;
use jjleak_common::process::ImageId;

use super::live::Blocks;
use super::sums::{self, Draw, Sum};
use super::timeline::Timeline;
use super::timelines::Places;
use super::{Collector, Snapshot, StackUse, View, counters, freed, spill, stacks, windows};
use crate::attach::{Attachment, Error, now_ns};
use crate::quick_map::quick_map;

impl Collector {
    /// Takes a snapshot of each of these images, all of the same instant.
    pub fn snapshots(
        &mut self,
        attachment: &Attachment,
        images: &[ImageId],
        view: View,
    ) -> Result<BTreeMap<ImageId, Snapshot>, Error> {
        let AtInstant { taken_ns, timelines, allocated, sums } = if self.combined {
            let taken_ns = now_ns();
            let timelines = self.timelines.up_to(images, taken_ns);
            AtInstant { taken_ns, timelines, ..AtInstant::default() }
        } else {
            self.at_instant(attachment, images, view)?
        };
        let weighted = self.windows.as_ref().map(|windows| windows.at(taken_ns));
        let allocated = match &self.windows {
            Some(windows) => windows.allocated(allocated, taken_ns),
            None => allocated,
        };
        let live_variance = weighted.as_ref().map(|weighted| {
            let sums = sums.iter().flatten().flat_map(|(_, sum)| sum.seen());
            let seen = sums.collect::<Vec<_>>();
            windows::tell(weighted, &seen);
            weighted.variances(&seen)
        });
        // Blocks first: whatever is live has then been counted for its stack.
        let mut stacks = stacks::read(&self.stacks, images, self.sampling);
        if self.combined {
            for (row, used) in stacks.values_mut().flatten() {
                used.live = stacks::totals(&self.totals, *row, self.sampling);
            }
        }
        for (image, sums) in images.iter().zip(sums) {
            let Some(stacks) = stacks.get_mut(image) else { continue };
            for (row, sum) in sums {
                let used = stacks.entry(row).or_default();
                (used.live, used.cohorts, used.blocks) = sum.finish(view.blocks_per_stack, weighted.as_ref());
            }
        }
        for (row, used) in stacks.values_mut().flatten() {
            if let Some((objects, bytes)) = allocated.get(*row as usize) {
                // A call that was just booking its block when the instant came can have been counted after.
                used.allocated_objects = used.live.objects.max(*objects);
                used.allocated_bytes = used.live.bytes.max(*bytes);
            }
        }
        // Those that first allocated after the instant.
        for stacks in stacks.values_mut() {
            stacks.retain(|_, used| used.allocated_objects > 0);
        }
        self.receive_frames();
        let missed_runs = attachment.missed_runs();
        let snapshot = |(image, timeline): (&ImageId, &Timeline)| {
            let (image, stacks) = stacks.remove_entry(image)?;
            let mut counters = counters::read(&self.counters, image);
            counters.insert(Counter::MissedRun, missed_runs);
            let stacks = merge_rows(stacks, view.blocks_per_stack);
            let youngest_ns = taken_ns.saturating_sub(view.older_ns);
            let blocks_per_stack = view.blocks_per_stack;
            let instants_ns = timeline.instants_ns().into();
            Some((
                image,
                Snapshot {
                    taken_ns,
                    instants_ns,
                    youngest_ns,
                    blocks_per_stack,
                    live_variance,
                    image,
                    stacks,
                    counters,
                },
            ))
        };
        Ok(images.iter().zip(&timelines).filter_map(snapshot).collect())
    }

    /// The blocks of these images at one instant, summed for each row of the stack table.
    fn at_instant(
        &mut self,
        attachment: &Attachment,
        images: &[ImageId],
        view: View,
    ) -> Result<AtInstant, Error> {
        let spill = attachment.map(names::SPILL)?;
        // A row is of one image: by row, a sum is found without searching. Most rows have none.
        let mut places_of_rows = vec![u32::MAX; self.stacks.len()];
        let mut sums: Vec<(u32, Sum)> = Vec::new();
        let instant_ns = freed::begin(&self.freed);
        let allocated = stacks::allocated(&self.stacks, self.sampling);
        let timelines = self.timelines.up_to(images, instant_ns);
        let places = Places::new(images, &timelines);
        let youngest_ns = instant_ns.saturating_sub(view.older_ns);
        let weighted = self.windows.as_ref().map(|windows| windows.at(instant_ns));
        let blocks = Blocks::of_table(&self.live, instant_ns, |key, record| {
            let Some(intervals) = places.intervals(key.image()) else { return };
            let Some(place) = places_of_rows.get_mut(record.stack as usize) else { return };
            if record.time_ns <= youngest_ns {
                if *place == u32::MAX {
                    *place = u32::try_from(sums.len()).unwrap_or_default();
                    sums.push((record.stack, Sum::default()));
                }
                let (_, sum) = &mut sums[*place as usize];
                let draw = Draw { sampling: self.sampling, windows: weighted.as_ref() };
                sum.add(key, record, intervals, draw, view.blocks_per_stack);
            }
        });
        // The kernel walks all of its buckets, which takes milliseconds also when nothing is in them.
        let spilled = if freed::has_spilled(&self.freed) { spill::read(spill) } else { Ok(Vec::new()) };
        let freed = freed::end(&self.freed, instant_ns);
        blocks.add(&spilled?, &freed);
        let mut of_images = vec![Vec::new(); images.len()];
        for (row, sum) in sums {
            if let Some(place) = sum.image().and_then(|image| places.of(image)) {
                of_images[place].push((row, sum));
            }
        }
        Ok(AtInstant { taken_ns: instant_ns, timelines, allocated, sums: of_images })
    }
}

/// What was there at an instant.
#[derive(Default)]
struct AtInstant {
    taken_ns: u64,
    /// Of each image.
    timelines: Vec<Timeline>,
    /// Objects and bytes allocated, by row of the stack table.
    allocated: Vec<(u64, u64)>,
    /// The blocks of each image, by row.
    sums: Vec<Vec<(u32, Sum)>>,
}

/// Adds a stack's later rows to its first one.
pub(super) fn merge_rows(
    mut stacks: BTreeMap<u32, StackUse>,
    blocks_per_stack: usize,
) -> BTreeMap<u32, StackUse> {
    let mut first_rows = quick_map(stacks.len());
    let mut later_rows = Vec::new();
    for (row, used) in stacks.iter().filter(|(_, used)| used.hash != 0) {
        let first = *first_rows.entry(used.hash).or_insert(*row);
        if first != *row {
            later_rows.push((*row, first));
        }
    }
    for (row, first) in later_rows {
        if let (Some(later), Some(first)) = (stacks.remove(&row), stacks.get_mut(&first)) {
            first.live.merge(&later.live);
            sums::merge_cohorts(&mut first.cohorts, &later.cohorts);
            first.blocks.extend(later.blocks);
            sums::largest_first(&mut first.blocks, blocks_per_stack);
            first.allocated_objects += later.allocated_objects;
            first.allocated_bytes += later.allocated_bytes;
        }
    }
    stacks
}

#[cfg(test)]
mod tests {
    use super::super::LiveBlocks;
    use super::*;

    #[test]
    fn a_stack_with_two_rows_is_one_stack_and_what_has_no_stack_is_not_merged() {
        let used = |hash, allocated_objects| StackUse {
            hash,
            live: LiveBlocks {
                objects: 1,
                bytes: 10,
                oldest_ns: hash + 1,
                newest_ns: hash + 1,
                ..LiveBlocks::default()
            },
            cohorts: Vec::new(),
            blocks: Vec::new(),
            allocated_objects,
            allocated_bytes: 10 * allocated_objects,
        };
        let stacks = BTreeMap::from([(1, used(0, 9)), (2, used(7, 1)), (5, used(0, 3)), (6, used(7, 2))]);
        let merged = merge_rows(stacks, 0);
        assert_eq!(merged.keys().copied().collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!((merged[&2].allocated_objects, merged[&2].live.objects), (3, 2));
    }
}
