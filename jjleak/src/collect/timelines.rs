//! A timeline per image, so that a new image has the same resolution as a long-watched one had at its start.

use std::collections::{BTreeMap, BTreeSet};

use jjleak_common::process::{ImageId, MAX_PROCESSES};

use crate::snapshot::Timeline;
use crate::snapshot::timeline::Intervals;

/// Timelines of images.
#[derive(Debug, Default)]
pub(super) struct Timelines {
    of: BTreeMap<ImageId, Timeline>,
    /// Images whose blocks are currently not divided.
    undivided: BTreeSet<ImageId>,
}

impl Timelines {
    /// Adds a later instant to the timelines of these images.
    pub(super) fn cut(&mut self, images: &[ImageId], now_ns: u64) {
        for image in images.iter().filter(|image| !self.undivided.contains(image)) {
            self.of.entry(*image).or_default().cut(now_ns);
        }
    }

    /// Drops the timelines of all other images.
    pub(super) fn keep(&mut self, images: &[ImageId]) {
        self.of.retain(|image, _| images.contains(image));
    }

    /// Returns whether another instant would refine an image's timeline now.
    pub(super) fn is_due(&self, image: ImageId, now_ns: u64) -> bool {
        self.of.get(&image).is_none_or(|timeline| timeline.is_due(now_ns))
    }

    /// Last instant at which an image's blocks were divided; `None` before the first.
    pub(super) fn last_ns(&self, image: ImageId) -> Option<u64> {
        self.of.get(&image)?.instants_ns().last().copied()
    }

    /// Leaves the blocks of these images undivided, and divides all others.
    pub(super) fn leave_undivided(&mut self, images: BTreeSet<ImageId>) {
        self.undivided = images;
    }

    /// The timelines of these images with one more instant; empty for undivided ones.
    pub(super) fn up_to(&self, images: &[ImageId], now_ns: u64) -> Vec<Timeline> {
        let up_to = |image: &ImageId| match self.of.get(image) {
            _ if self.undivided.contains(image) => Timeline::default(),
            known => known.cloned().unwrap_or_default().up_to(now_ns),
        };
        images.iter().map(up_to).collect()
    }
}

/// Index of images, with their intervals.
pub(super) struct Places<'a> {
    images: &'a [ImageId],
    intervals: Vec<Intervals<'a>>,
    /// By slot, which is unique among current images; out of range if absent.
    of_slot: Vec<u16>,
}

impl<'a> Places<'a> {
    /// Indexes images and their timelines.
    pub(super) fn new(images: &'a [ImageId], timelines: &'a [Timeline]) -> Self {
        let mut of_slot = vec![u16::MAX; MAX_PROCESSES as usize];
        for (place, image) in (0..).zip(images) {
            of_slot[usize::from(image.slot().0)] = place;
        }
        Self { images, intervals: timelines.iter().map(Timeline::intervals).collect(), of_slot }
    }

    /// Index of an image; `None` if it is not included.
    pub(super) fn of(&self, image: ImageId) -> Option<usize> {
        let place = usize::from(*self.of_slot.get(usize::from(image.slot().0))?);
        (self.images.get(place) == Some(&image)).then_some(place)
    }

    /// Intervals of an image; `None` if it is not included.
    pub(super) fn intervals(&self, image: ImageId) -> Option<&Intervals<'a>> {
        self.intervals.get(self.of(image)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jjleak_common::process::ProcessSlot;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_young_image_has_close_instants_beside_one_watched_for_a_day() {
        let [old, young] = [0, 1].map(|slot| ImageId::first(ProcessSlot(slot)));
        let mut timelines = Timelines::default();
        let day = 24 * 3600;
        for second in (1..=day).step_by(10) {
            if timelines.is_due(old, second * SECOND) {
                timelines.cut(&[old], second * SECOND);
            }
        }
        let kept = (1..=40).filter(|second| {
            let now_ns = (day + second) * SECOND;
            let due: Vec<_> =
                [old, young].into_iter().filter(|image| timelines.is_due(*image, now_ns)).collect();
            timelines.cut(&due, now_ns);
            due.contains(&young)
        });
        assert_eq!(kept.count(), 40);
        let [old_line, young_line] = &timelines.up_to(&[old, young], (day + 41) * SECOND)[..] else {
            panic!("two images, two timelines")
        };
        let gaps = |timeline: &Timeline| {
            timeline.instants_ns().windows(2).map(|pair| (pair[1] - pair[0]) / SECOND).max()
        };
        assert!(gaps(young_line) == Some(1), "{young_line:?}");
        assert!(gaps(old_line) >= Some(1000), "{old_line:?}");
        assert!(young_line.instants_ns()[0] > day * SECOND);
    }

    #[test]
    fn an_undivided_image_has_no_instants_and_its_timeline_stays() {
        let [one, other] = [0, 1].map(|slot| ImageId::first(ProcessSlot(slot)));
        let mut timelines = Timelines::default();
        timelines.cut(&[one, other], 5);
        timelines.leave_undivided(BTreeSet::from([one]));
        let [undivided, divided] = &timelines.up_to(&[one, other], 9)[..] else { panic!("two timelines") };
        assert_eq!((undivided.instants_ns(), divided.instants_ns()), (&[][..], &[5, 9][..]));
        timelines.cut(&[one, other], 9);
        timelines.leave_undivided(BTreeSet::new());
        assert_eq!(timelines.up_to(&[one], 11)[0].instants_ns(), [5, 11]);
    }

    #[test]
    fn an_image_that_is_gone_leaves_no_timeline_in_its_slot() {
        let first = ImageId::first(ProcessSlot(3));
        let mut timelines = Timelines::default();
        timelines.cut(&[first], 5);
        let next = first.next();
        timelines.keep(&[next]);
        assert_eq!(timelines.up_to(&[first, next], 9)[0].instants_ns(), [9]);
        let images = [next];
        let lines = timelines.up_to(&images, 9);
        let places = Places::new(&images, &lines);
        assert_eq!((places.of(next), places.of(first)), (Some(0), None));
        assert_eq!(places.of(ImageId::first(ProcessSlot(4))), None);
    }
}
