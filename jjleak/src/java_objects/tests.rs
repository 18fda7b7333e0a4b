//! Estimates from the objects that simulated threads announce.

use std::collections::HashMap;

use jjleak_common::java_heap::{Reason, Record};
use jjleak_common::sampling::WEIGHT_ONE;

use super::{Objects, SampledHeap};

/// A class: its number, its share of all objects, and the range of their sizes in bytes.
type Class = (u64, f64, std::ops::Range<u64>);

/// A thread with buffers of this size, as HotSpot has them.
struct Allocating<'a> {
    heap: &'a mut SampledHeap,
    random: fastrand::Rng,
    buffer: u64,
    /// Size of the current buffer, and its used bytes.
    current: (u64, u64),
    /// Size of its first object.
    first: u64,
    in_buffers: u64,
    /// The same at the last announcement.
    announced: u64,
    /// Bytes of each class.
    ledger: HashMap<u64, u64>,
}

impl Allocating<'_> {
    fn allocate(&mut self, (class, _, sizes): &Class) {
        let size = self.random.u64(sizes.clone()) / 8 * 8;
        *self.ledger.entry(*class).or_default() += size;
        let limit = self.buffer / 64;
        let (end, used, first) = (self.current.0, self.current.1, self.first);
        let record = Record {
            class: *class,
            class_name: *class,
            size,
            weight: WEIGHT_ONE,
            thread: 1,
            buffer: end - first,
            ..Record::NONE
        };
        let add = |heap: &mut SampledHeap, reason: Reason, stands_for| {
            heap.add(&Record { stands_for, because: reason as u32, ..record });
        };
        if used + size <= end {
            self.current.1 += size;
            self.in_buffers += size;
        } else if end - used > limit {
            add(self.heap, Reason::Outside, size);
        } else {
            self.in_buffers += size;
            add(self.heap, Reason::of_buffer(end, used, size), self.in_buffers - self.announced);
            self.announced = self.in_buffers;
            (self.current, self.first) = ((self.buffer + size, size), size);
        }
    }

    /// A collection takes the buffer away; the thread continues with an object of this class.
    fn collect(&mut self, next: &Class) {
        let (end, used, first) = (self.current.0, self.current.1, self.first);
        if end == 0 {
            return;
        }
        let size = self.random.u64(next.2.clone()) / 8 * 8;
        *self.ledger.entry(next.0).or_default() += size;
        self.in_buffers += size;
        let record = Record {
            class: next.0,
            class_name: next.0,
            size,
            weight: WEIGHT_ONE,
            thread: 1,
            buffer: end - first,
            stands_for: self.in_buffers - self.announced,
            because: Reason::of_buffer(end, used, size) as u32,
            ..Record::NONE
        };
        self.heap.add(&record);
        self.announced = self.in_buffers;
        (self.current, self.first) = ((self.buffer, size), size);
    }
}

/// Estimates and true bytes by class, for a thread that allocates this number of objects.
fn estimated(
    seed: u64,
    classes: &[Class],
    objects: u32,
    collected_every: u32,
) -> HashMap<u64, (Objects, u64)> {
    let mut heap = SampledHeap::new(&HashMap::from([(1, 0)]));
    let mut thread = Allocating {
        heap: &mut heap,
        random: fastrand::Rng::with_seed(seed),
        buffer: 256 << 10,
        current: (0, 0),
        first: 0,
        in_buffers: 0,
        announced: 0,
        ledger: HashMap::new(),
    };
    for number in 0..objects {
        if collected_every > 0 && number % collected_every == collected_every - 1 {
            thread.collect(&classes[0]);
        }
        let mut chance = thread.random.f64();
        let class = classes.iter().find(|class| {
            chance -= class.1;
            chance < 0.
        });
        thread.allocate(class.unwrap_or(&classes[0]));
    }
    let ledger = thread.ledger;
    heap.name_classes(|class, _| Some(class.to_string()), |_| String::new());
    let objects = heap.objects().into_iter().map(|objects| {
        let class = objects.class.parse().unwrap();
        (class, (objects, ledger[&class]))
    });
    objects.collect()
}

/// Many runs: the share of intervals that contain the truth, and the mean error as a share of the truth.
fn coverage(classes: &[Class], collected_every: u32, class: u64) -> (f64, f64) {
    const RUNS: u32 = 120;
    let (mut contained, mut errors, mut all) = (0., 0., 0.);
    for seed in 0..u64::from(RUNS) {
        let estimates = estimated(seed, classes, 40_000, collected_every);
        let Some((objects, truth)) = estimates.get(&class) else { continue };
        let (bytes, truth) = (super::float(objects.bytes), super::float(*truth));
        contained += f64::from(u8::from((bytes - truth).abs() <= 1.96 * objects.bytes_variance.sqrt()));
        errors += bytes - truth;
        all += truth;
    }
    (contained / f64::from(RUNS), errors / all)
}

/// Asserts that estimates are right for objects of these classes, with and without collections.
fn assert_right(classes: &[Class], largest_bias: f64) {
    for collected_every in [0, 3000] {
        for class in 1..=3 {
            let (contained, bias) = coverage(classes, collected_every, class);
            let what = format!("class {class}, collected every {collected_every}: {contained} {bias}");
            assert!(contained > 0.88 && bias.abs() < largest_bias, "{what}");
        }
    }
}

#[test]
fn intervals_contain_the_truth_for_small_objects() {
    assert_right(&[(1, 0.3, 24..464), (2, 0.3, 16..1000), (3, 0.4, 240..248)], 0.05);
}

#[test]
fn the_interval_of_a_class_with_four_samples_is_wide_enough() {
    let (contained, _) = coverage(&[(1, 0.7, 240..248), (2, 0.2, 240..248), (3, 0.1, 240..248)], 0, 3);
    assert!(contained > 0.92, "{contained}");
}

#[test]
fn objects_larger_than_buffers_are_exact() {
    let classes = [(1, 0.5, 1024..2064), (2, 0.499, 1000..3000), (3, 0.001, 1_000_000..3_000_000)];
    for seed in 0..20 {
        let estimates = estimated(seed, &classes, 20_000, 3000);
        let (objects, truth) = &estimates[&3];
        assert_eq!((objects.bytes, objects.bytes_variance), (*truth, 0.));
    }
}

#[test]
fn objects_that_fill_a_part_of_a_buffer_are_about_right() {
    for class in [1, 2, 3] {
        let classes = [(1, 0.5, 1024..2064), (2, 0.49, 1000..3000), (3, 0.01, 40_000..100_000)];
        let (contained, bias) = coverage(&classes, 0, class);
        assert!(contained > 0.75 && bias.abs() < 0.06, "{class}: {contained} {bias}");
    }
}

#[test]
fn a_thread_that_is_never_seen_to_fill_a_buffer_counts_by_its_first_objects() {
    let mut heap = SampledHeap::new(&HashMap::new());
    let record = Record { size: 64, weight: WEIGHT_ONE, stack: 7, buffer: 1 << 20, ..Record::NONE };
    for (thread, class) in [(1, 1), (2, 2)] {
        let of = Record { thread, class, class_name: class, ..record };
        heap.add(&Record { stands_for: 64, because: Reason::FirstBuffer as u32, ..of });
        heap.add(&Record { stands_for: 5064, because: Reason::TakenAway as u32, ..of });
    }
    heap.name_classes(|class, _| (class == 1).then(|| "Known".to_owned()), |_| String::new());
    let mut objects = heap.objects();
    objects.sort_by(|a, b| a.class.cmp(&b.class));
    let figures: Vec<_> = objects.iter().map(|of| (of.class.as_str(), of.bytes, of.stack)).collect();
    assert_eq!(figures, [("Known", 5128, 7), ("unknown class", 5128, 7)]);
    assert_eq!(heap.unnamed(), 1);
    // A new thread at the address of the first one: what that one has allocated stays.
    let reused = Record { thread: 1, class: 1, class_name: 1, ..record };
    heap.add(&Record { stands_for: 128, because: Reason::FirstBuffer as u32, ..reused });
    assert_eq!(heap.objects().iter().map(|of| of.bytes).sum::<u64>(), 2 * 5128 + 128);
    let now = HashMap::from([(1, 1128), (3, 100)]);
    heap.settle(&now);
    assert_eq!(heap.not_sampled(&now), 1100);
}
