//! Snapshots: the content of the tables at one instant, for each process.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::mem;

use jjleak_common::counter::Counter;
use jjleak_common::names;
use jjleak_common::process::ImageId;

use super::live::Blocks;
use super::timelines::Places;
use super::{Collector, counters, freed, spill, stacks, windows};
use crate::attach::{Attachment, Error, now_ns};
use crate::fast_map::fast_map;
use crate::snapshot::sums::{self, Live, Selection, Sum};
use crate::snapshot::{BlockFilter, Snapshot, StackUse, Timeline};

impl Collector {
    /// Takes snapshots of these images, all of the same instant.
    pub fn snapshots(
        &mut self,
        attachment: &Attachment,
        images: &[ImageId],
        view: BlockFilter,
    ) -> Result<BTreeMap<ImageId, Snapshot>, Error> {
        let AtInstant { taken_ns, timelines, allocated, live, live_variance } = if self.combined {
            let taken_ns = now_ns();
            let timelines = self.timelines.up_to(images, taken_ns);
            AtInstant { taken_ns, timelines, ..AtInstant::default() }
        } else {
            self.at_instant(attachment, images, view)?
        };
        let allocated = match &self.windows {
            Some(windows) => windows.allocated(allocated, taken_ns),
            None => allocated,
        };
        // The blocks were read first: each live block has been counted for its stack by now.
        let expected = self.stacks_read / images.len().max(1);
        let stacks = stacks::read(&self.stacks, images, self.sampling, expected);
        self.stacks_read = stacks.iter().map(Vec::len).sum();
        let mut live = live.into_iter();
        let stacks = stacks.into_iter().map(|mut stacks| {
            if self.combined {
                for (row, used) in &mut stacks {
                    used.live = stacks::totals(&self.totals, *row, self.sampling);
                }
            }
            put_in(&mut stacks, live.next().unwrap_or_default());
            for (row, used) in &mut stacks {
                if !allocated.is_empty() {
                    // The table had no such row at the instant if it has doubled since.
                    let (objects, bytes) = allocated.get(*row as usize).unwrap_or(&(0, 0));
                    // A call that was recording its block at the instant may have been counted afterwards.
                    used.allocated_objects = used.live.objects.max(*objects);
                    used.allocated_bytes = used.live.bytes.max(*bytes);
                }
            }
            // Stacks that first allocated after the instant.
            stacks.retain(|(_, used)| used.allocated_objects > 0);
            stacks
        });
        let stacks: Vec<_> = stacks.collect();
        self.receive_frames();
        let (missed_runs, removed_rows) = (attachment.missed_runs(), attachment.removed_rows());
        let snapshot = |((image, timeline), stacks): ((&ImageId, &Timeline), _)| {
            let image = *image;
            let mut counters = counters::read(&self.counters, image);
            counters.insert(Counter::MissedRun, missed_runs);
            counters.insert(Counter::UnwindRowsRemoved, removed_rows);
            let stacks = merge_rows(self.with_final_hashes(stacks), view.blocks_per_stack);
            let youngest_ns = taken_ns.saturating_sub(view.older_ns);
            let blocks_per_stack = view.blocks_per_stack;
            let instants_ns = timeline.instants_ns().into();
            let snapshot = Snapshot {
                taken_ns,
                instants_ns,
                youngest_ns,
                blocks_per_stack,
                live_variance,
                image,
                stacks,
                counters,
            };
            (image, snapshot)
        };
        Ok(images.iter().zip(&timelines).zip(stacks).map(snapshot).collect())
    }

    /// Gives finished stacks the identity that their frames have.
    fn with_final_hashes(&self, mut stacks: Vec<(u32, StackUse)>) -> Vec<(u32, StackUse)> {
        if !self.finished.is_empty() {
            for (row, used) in &mut stacks {
                used.hash = self.finished.get(row).copied().unwrap_or(used.hash);
            }
        }
        stacks
    }

    /// The blocks of these images at one instant, summed by row of the stack table.
    fn at_instant(
        &mut self,
        attachment: &Attachment,
        images: &[ImageId],
        view: BlockFilter,
    ) -> Result<AtInstant, Error> {
        self.live.hold()?;
        let spill = attachment.map(names::SPILL)?;
        let mut sums: Vec<(u32, Sum)> = Vec::with_capacity(self.rows_with_blocks);
        let instant_ns = freed::begin(&self.freed);
        let allocated = stacks::allocated(&self.stacks, self.sampling);
        // A row belongs to one image: an index by row avoids searching. Most rows have no sum. Blocks of the instant have no others.
        let mut places_of_rows = vec![u32::MAX; allocated.len()];
        let timelines = self.timelines.up_to(images, instant_ns);
        let places = Places::new(images, &timelines);
        let youngest_ns = instant_ns.saturating_sub(view.older_ns);
        let weighted = self.windows.as_ref().map(|windows| windows.at(instant_ns));
        let selection = Selection { sampling: self.sampling, windows: weighted.as_ref() };
        let mut places_of_found = Vec::new();
        let blocks = Blocks::of_table(&self.live, instant_ns, |found| {
            places_of_found.clear();
            places_of_found.extend(found.iter().map(|(key, record)| {
                let is_of = places.of(key.image()).is_some() && record.time_ns <= youngest_ns;
                let place = places_of_rows.get_mut(record.stack as usize).filter(|_| is_of)?;
                if *place == u32::MAX {
                    *place = u32::try_from(sums.len()).unwrap_or_default();
                    sums.push((record.stack, Sum::default()));
                }
                Some(*place)
            }));
            // Loads the sums from memory all at once; while it adds blocks, the processor would wait for one after the other.
            let rows = places_of_found.iter().flatten().map(|place| sums[*place as usize].0);
            black_box(rows.fold(0, u32::wrapping_add));
            for ((key, record), place) in found.iter().zip(&places_of_found) {
                if let (Some(place), Some(intervals)) = (place, places.intervals(key.image())) {
                    let (_, sum) = &mut sums[*place as usize];
                    sum.add(*key, record, intervals, selection, view.blocks_per_stack);
                }
            }
        });
        // The kernel walks all buckets, which takes milliseconds even if they are empty.
        let spilled = if freed::has_spilled(&self.freed) { spill::read(spill) } else { Ok(Vec::new()) };
        let freed = freed::end(&self.freed, instant_ns);
        blocks.add(&spilled?, &freed);
        self.rows_with_blocks = sums.len();
        let live_variance = weighted.as_ref().map(|weighted| {
            let seen = sums.iter().flat_map(|(_, sum)| sum.seen()).collect::<Vec<_>>();
            windows::log(weighted, &seen);
            weighted.variances(&seen)
        });
        let image_of = |sum: &Sum| sum.image().and_then(|image| places.of(image));
        let mut counts = vec![0; images.len()];
        sums.iter().filter_map(|(_, sum)| image_of(sum)).for_each(|image| counts[image] += 1);
        let mut live: Vec<_> = counts.into_iter().map(Vec::with_capacity).collect();
        for place in places_of_rows.into_iter().filter(|place| *place != u32::MAX) {
            let (row, sum) = &mut sums[place as usize];
            if let Some(image) = image_of(sum) {
                live[image].push((*row, mem::take(sum).finish(view.blocks_per_stack, weighted.as_ref())));
            }
        }
        Ok(AtInstant { taken_ns: instant_ns, timelines, allocated, live, live_variance })
    }
}

/// The tables' content at an instant.
#[derive(Default)]
struct AtInstant {
    taken_ns: u64,
    /// One per image.
    timelines: Vec<Timeline>,
    /// Objects and bytes allocated, by row of the stack table.
    allocated: Vec<(u64, u64)>,
    /// Live blocks of each image, in the order of rows.
    live: Vec<Vec<(u32, Live)>>,
    /// See [`Snapshot::live_variance`].
    live_variance: Option<(f64, f64)>,
}

/// Adds live blocks to stacks; both are in the order of rows.
fn put_in(stacks: &mut Vec<(u32, StackUse)>, live: Vec<(u32, Live)>) {
    let (known, mut place) = (stacks.len(), 0);
    for (row, Live { blocks: live, cohorts, largest: blocks }) in live {
        while place < known && stacks[place].0 < row {
            place += 1;
        }
        if place < known && stacks[place].0 == row {
            let used = &mut stacks[place].1;
            (used.live, used.cohorts, used.blocks) = (live, cohorts, blocks);
        } else {
            stacks.push((row, StackUse { live, cohorts, blocks, ..StackUse::default() }));
        }
    }
    if stacks.len() > known {
        stacks.sort_by_key(|(row, _)| *row);
    }
}

/// Merges later rows of a stack into its first one.
pub(super) fn merge_rows(mut stacks: Vec<(u32, StackUse)>, blocks_per_stack: usize) -> Vec<(u32, StackUse)> {
    let mut firsts = fast_map(stacks.len());
    let mut later = Vec::new();
    for (place, (_, used)) in stacks.iter().enumerate().filter(|(_, (_, used))| used.hash != 0) {
        let first = *firsts.entry(used.hash).or_insert(place);
        if first != place {
            later.push((place, first));
        }
    }
    for (place, first) in &later {
        let later = mem::take(&mut stacks[*place].1);
        let first = &mut stacks[*first].1;
        first.live.merge(&later.live);
        sums::merge_cohorts(&mut first.cohorts, &later.cohorts);
        first.blocks.extend(later.blocks);
        sums::largest_first(&mut first.blocks, blocks_per_stack);
        first.allocated_objects += later.allocated_objects;
        first.allocated_bytes += later.allocated_bytes;
    }
    let mut gone = later.into_iter().map(|(place, _)| place).peekable();
    let mut places = 0..;
    stacks.retain(|_| places.next().is_none_or(|place| gone.next_if_eq(&place).is_none()));
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Cohorts, LiveBlocks};

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
            cohorts: Cohorts::new(),
            blocks: Vec::new(),
            allocated_objects,
            allocated_bytes: 10 * allocated_objects,
        };
        let merged = merge_rows(vec![(1, used(0, 9)), (2, used(7, 1)), (5, used(0, 3)), (6, used(7, 2))], 0);
        assert_eq!(merged.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1, 2, 5]);
        let (_, used) = &merged[1];
        assert_eq!((used.allocated_objects, used.live.objects), (3, 2));
    }
}
