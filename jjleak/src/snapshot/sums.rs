//! Sums of live blocks.

use std::collections::HashMap;

use jjleak_common::live::{Key, Record};
use jjleak_common::process::ImageId;
use jjleak_common::sampling::{Sampling, WEIGHT_BITS, WEIGHT_ONE, weighted};
use smallvec::SmallVec;

use super::timeline::Intervals;
use crate::sample_windows::{Seen, Weighted};

/// Sums of live blocks; estimates when sampling.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LiveBlocks {
    /// Number of blocks.
    pub objects: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Allocation time of the oldest block, in nanoseconds of `CLOCK_MONOTONIC`; 0 without blocks.
    pub oldest_ns: u64,
    /// Allocation time of the newest block, likewise.
    pub newest_ns: u64,
    /// Estimated variance of the number of blocks; 0 if exact.
    pub objects_variance: f64,
    /// Estimated variance of the bytes; 0 if exact.
    pub bytes_variance: f64,
}

impl LiveBlocks {
    /// Adds a block of weight 1.
    pub fn add(&mut self, record: &Record) {
        let (objects, bytes, time_ns) = (1, record.size, record.time_ns);
        self.merge(&Self { objects, bytes, oldest_ns: time_ns, newest_ns: time_ns, ..Self::default() });
    }

    /// Adds other sums.
    pub fn merge(&mut self, other: &Self) {
        if self.objects == 0 || other.objects == 0 {
            *self = if self.objects == 0 { *other } else { *self };
            return;
        }
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.newest_ns = self.newest_ns.max(other.newest_ns);
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.objects_variance += other.objects_variance;
        self.bytes_variance += other.bytes_variance;
    }
}

/// Sums of blocks that are counted on the user side.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    pub(crate) live: LiveBlocks,
    pub(crate) cohorts: Cohorts,
}

impl Counted {
    /// Adds a block of this size and time; `instants_ns` divide cohorts.
    pub(crate) fn add(&mut self, size: u64, time_ns: u64, instants_ns: &[u64]) {
        self.live.add(&Record { size, time_ns, stack: 0, reserved: 0 });
        let interval = instants_ns.partition_point(|instant| *instant < time_ns);
        if interval < instants_ns.len()
            && let Ok(interval) = u16::try_from(interval)
        {
            let cohort = cohort_of(&mut self.cohorts, interval);
            cohort.objects += 1;
            cohort.bytes += size;
        }
    }
}

/// Live blocks allocated between two consecutive instants; estimates when sampling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cohort {
    /// Index of the later instant.
    pub interval: u16,
    /// Number of blocks.
    pub objects: u64,
    /// Requested bytes.
    pub bytes: u64,
}

/// Cohorts in the order of intervals. Most stacks have few, and each snapshot has thousands of stacks: few
/// cohorts are stored inline.
pub type Cohorts = SmallVec<[Cohort; 4]>;

/// Adds cohorts of the same instants.
pub(crate) fn merge_cohorts(cohorts: &mut Cohorts, others: &[Cohort]) {
    for other in others {
        let cohort = cohort_of(cohorts, other.interval);
        cohort.objects += other.objects;
        cohort.bytes += other.bytes;
    }
}

/// The cohort of an interval, in a list ordered by interval. Most stacks have none in most intervals.
pub(crate) fn cohort_of(cohorts: &mut Cohorts, interval: u16) -> &mut Cohort {
    let place = match cohorts.binary_search_by_key(&interval, |cohort| cohort.interval) {
        Ok(place) => place,
        Err(place) => {
            cohorts.insert(place, Cohort { interval, ..Cohort::default() });
            place
        }
    };
    &mut cohorts[place]
}

/// A live block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Address.
    pub address: u64,
    /// Requested bytes.
    pub size: u64,
    /// Allocation time, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
}

/// Running sum over the blocks of one stack.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sum {
    /// With [`WEIGHT_BITS`] fractional bits.
    objects: u64,
    image: Option<ImageId>,
    live: LiveBlocks,
    /// Counts have [`WEIGHT_BITS`] fractional bits.
    cohorts: Cohorts,
    blocks: Vec<Block>,
    /// Counts by window index.
    seen: Option<HashMap<usize, Seen>>,
}

/// Rules that selected blocks for counting.
#[derive(Clone, Copy)]
pub(crate) struct Selection<'a> {
    pub(crate) sampling: Sampling,
    pub(crate) windows: Option<&'a Weighted>,
}

impl Sum {
    /// Adds a block, and keeps it if it is among the `kept` largest.
    pub(crate) fn add(
        &mut self,
        key: Key,
        record: &Record,
        intervals: &Intervals<'_>,
        selection: Selection<'_>,
        kept: usize,
    ) {
        let Record { size: recorded, time_ns, .. } = *record;
        let mut weight = selection.sampling.weight(recorded);
        let size = selection.sampling.bytes(recorded);
        if let Some(windows) = selection.windows {
            // A block from outside the windows (a resized one) was not selected.
            let Some(window) = windows.of(time_ns) else { return };
            weight = windows.fixed_weight(window);
            let seen = self.seen.get_or_insert_default().entry(window).or_default();
            seen.objects += 1;
            seen.bytes += size;
        }
        let live = &mut self.live;
        live.oldest_ns = if self.objects == 0 { time_ns } else { live.oldest_ns.min(time_ns) };
        live.newest_ns = live.newest_ns.max(time_ns);
        live.bytes += weighted(size, weight);
        self.objects += weight;
        self.image = Some(key.image());
        if let Some(interval) = intervals.of(time_ns) {
            let cohort = cohort_of(&mut self.cohorts, interval);
            cohort.objects += weight;
            cohort.bytes += weighted(size, weight);
        }
        if weight != WEIGHT_ONE && selection.windows.is_none() {
            let (objects, bytes) = selection.sampling.variances(recorded);
            live.objects_variance += objects;
            live.bytes_variance += bytes;
        }
        if kept > 0 {
            self.blocks.push(Block { address: selection.sampling.address(key.address()), size, time_ns });
            if self.blocks.len() >= 2 * kept {
                largest_first(&mut self.blocks, kept);
            }
        }
    }

    /// Counts by window index.
    pub(crate) fn seen(&self) -> impl Iterator<Item = (usize, Seen)> {
        self.seen.iter().flat_map(|seen| seen.iter()).map(|(window, seen)| (*window, *seen))
    }

    /// Image of the blocks; `None` without blocks.
    pub(crate) const fn image(&self) -> Option<ImageId> {
        self.image
    }

    /// Returns the sums and the kept blocks.
    pub(crate) fn finish(mut self, kept: usize, windows: Option<&Weighted>) -> Live {
        if let Some(windows) = windows {
            let seen: Vec<_> = self.seen().collect();
            (self.live.objects_variance, self.live.bytes_variance) = windows.variances(&seen);
        }
        largest_first(&mut self.blocks, kept);
        for cohort in &mut self.cohorts {
            cohort.objects = rounded(cohort.objects);
        }
        let blocks = LiveBlocks { objects: rounded(self.objects), ..self.live };
        Live { blocks, cohorts: self.cohorts, largest: self.blocks }
    }
}

/// Live blocks of one stack.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Live {
    pub(crate) blocks: LiveBlocks,
    pub(crate) cohorts: Cohorts,
    /// The largest blocks; of equal ones, the older first.
    pub(crate) largest: Vec<Block>,
}

/// Rounds a number with [`WEIGHT_BITS`] fractional bits.
pub(crate) const fn rounded(objects: u64) -> u64 {
    (objects + WEIGHT_ONE / 2) >> WEIGHT_BITS
}

pub(crate) fn largest_first(blocks: &mut Vec<Block>, kept: usize) {
    blocks.sort_unstable_by_key(|block| (std::cmp::Reverse(block.size), block.time_ns, block.address));
    blocks.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Timeline;

    fn sum(sizes_and_times: &[(u64, u64)], sampling: Sampling, kept: usize) -> (LiveBlocks, Vec<Block>) {
        let mut sum = Sum::default();
        let mut timeline = Timeline::default();
        timeline.cut(350);
        timeline.cut(1_000);
        for (address, &(size, time_ns)) in (1..).zip(sizes_and_times) {
            sum.add(
                Key::new(ImageId(1), address),
                &Record { size, time_ns, stack: 1, reserved: 0 },
                &timeline.intervals(),
                Selection { sampling, windows: None },
                kept,
            );
        }
        let Live { blocks, cohorts, largest } = sum.finish(kept, None);
        assert_eq!(cohorts.iter().map(|cohort| cohort.bytes).sum::<u64>(), blocks.bytes);
        (blocks, largest)
    }

    #[test]
    fn blocks_of_the_same_interval_are_a_cohort() {
        let mut timeline = Timeline::default();
        for instant in [100, 200, 300] {
            timeline.cut(instant);
        }
        let mut sum = Sum::default();
        for (address, (size, time_ns)) in (1..).zip([(1, 50), (2, 100), (4, 101), (8, 250), (16, 300)]) {
            let record = Record { size, time_ns, stack: 1, reserved: 0 };
            sum.add(
                Key::new(ImageId(1), address),
                &record,
                &timeline.intervals(),
                Selection { sampling: Sampling::Off, windows: None },
                0,
            );
        }
        let cohorts = sum.finish(0, None).cohorts;
        assert_eq!(
            cohorts.iter().map(|cohort| (cohort.interval, cohort.objects, cohort.bytes)).collect::<Vec<_>>(),
            [(0, 2, 3), (1, 1, 4), (2, 2, 24)]
        );
    }

    #[test]
    fn blocks_sum_up_with_their_extreme_ages() {
        let (live, kept) = sum(&[(10, 500), (20, 300), (30, 400)], Sampling::Off, 0);
        let exact =
            LiveBlocks { objects: 3, bytes: 60, oldest_ns: 300, newest_ns: 500, ..LiveBlocks::default() };
        assert_eq!((live, kept), (exact, Vec::new()));
    }

    #[test]
    fn sampled_blocks_stand_for_more_and_say_how_sure_that_is() {
        let (live, _) = sum(&[(100, 1); 25], Sampling::Rate(4), 0);
        assert_eq!((live.objects, live.bytes), (100, 10_000));
        assert_eq!((live.objects_variance, live.bytes_variance), (300., 3_000_000.));
    }

    #[test]
    fn a_block_that_sampling_always_takes_is_certain() {
        let (live, _) = sum(&[(1 << 20, 1)], Sampling::Bytes(1 << 10), 0);
        assert_eq!((live.objects, live.bytes, live.bytes_variance), (1, 1 << 20, 0.));
    }

    #[test]
    fn the_largest_blocks_are_kept_the_older_first() {
        let sizes_and_times: Vec<_> = (0..100).map(|index| (index % 10, 1_000 - index)).collect();
        let (live, kept) = sum(&sizes_and_times, Sampling::Off, 3);
        assert_eq!(live.objects, 100);
        let kept: Vec<_> = kept.iter().map(|block| (block.size, block.time_ns)).collect();
        assert_eq!(kept, [(9, 901), (9, 911), (9, 921)]);
    }
}
