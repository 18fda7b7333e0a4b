//! Estimates of the bytes that each class and stack has allocated in a Java heap, from the objects that the JVM announces.
//!
//! In: announced objects of the kernel side, names of classes, and what each thread has allocated. Out: estimates with their variances.
//! Pure: it reads no process. The chapter on Java describes the estimate.

mod loaders;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use jjleak_common::java_heap::{Reason, Record};
use jjleak_common::sampling::WEIGHT_ONE;
use loaders::Loaders;

/// Maximum number of classes of a process that are distinguished.
const MAX_CLASSES: usize = 1 << 16;
/// Maximum number of objects of a thread that wait for one that did not fit into a buffer.
const MAX_WAITING: usize = 16;

/// Name of classes that were unloaded, or whose process ended, before their names were read.
const UNNAMED: &str = "unknown class";
/// Name of objects of more classes than are distinguished.
const OTHERS: &str = "other classes";

/// Estimate of the objects of a class that a stack has allocated.
#[derive(Debug, Clone, PartialEq)]
pub struct Objects {
    /// Row of the stack.
    pub stack: u32,
    /// Name of the class.
    pub class: String,
    /// Bytes.
    pub bytes: u64,
    /// Variance of the bytes; 0 if they are exact.
    pub bytes_variance: f64,
    /// Number of objects, at least 1.
    pub objects: u64,
    /// Variance of the number.
    pub objects_variance: f64,
}

/// Objects of a process's Java heap.
#[derive(Debug, Default)]
pub struct SampledHeap {
    /// Threads, keyed by the address of HotSpot's `Thread`.
    threads: HashMap<u64, Thread>,
    /// Numbers of classes, keyed by `Klass` and the symbol that names it.
    classes: HashMap<(u64, u64), u32>,
    /// Names of classes by number; `None` before they are read.
    names: Vec<Option<String>>,
    loaders: Loaders,
    /// Sums, keyed by row of the stack and number of the class.
    sums: HashMap<(u32, u32), Sum>,
    unnamed: u64,
}

/// Allocations of a thread.
#[derive(Debug, Default)]
struct Thread {
    /// Bytes before jjleak began.
    before: u64,
    /// True once a buffer of the thread was announced.
    has_buffer: bool,
    /// Bytes since then that announced objects stand for.
    sampled: u64,
    /// First objects of buffers that were taken for another reason than a full buffer. The next object that does not fit takes over the
    /// bytes that they stand for.
    waiting: Vec<Sample>,
    /// The last object that did not fit into a buffer.
    last: Option<Sample>,
}

impl Thread {
    /// Waiting samples as they count if no further object fails to fit: for the last such object, if there is one.
    fn waiting(&self) -> impl Iterator<Item = Sample> {
        let standing = |sample: &Sample| Sample { others: sample.others, ..self.last.unwrap_or(*sample) };
        self.waiting.iter().map(standing)
    }
}

/// The first object in a buffer, which stands for others.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Row of the stack and number of the class.
    of: (u32, u32),
    /// Bytes of the others.
    others: f64,
    /// Bytes of the object.
    size: f64,
}

/// Objects of a class that a stack has allocated.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    announced: Announced,
    others: Others,
}

/// Announced objects: each counts, unless it was left out by sampling.
#[derive(Debug, Clone, Copy, Default)]
struct Announced {
    bytes: f64,
    objects: f64,
    bytes_variance: f64,
    objects_variance: f64,
}

/// Objects in buffers that announced ones stand for.
#[derive(Debug, Clone, Copy, Default)]
struct Others {
    /// Number of samples that stand for any.
    samples: f64,
    /// Their bytes, in total.
    total: f64,
    /// Bytes that samples stand for, by one rule for all.
    bytes: f64,
    objects: f64,
    squared_bytes: f64,
    squared_objects: f64,
}

impl SampledHeap {
    /// A heap in which threads have allocated these numbers of bytes before.
    #[must_use]
    pub fn new(threads: &HashMap<u64, u64>) -> Self {
        let begun =
            |(thread, before): (&u64, &u64)| (*thread, Thread { before: *before, ..Thread::default() });
        Self { threads: threads.iter().map(begun).collect(), ..Self::default() }
    }

    /// Adds an announced object.
    pub fn add(&mut self, record: &Record) {
        let of = (record.stack, self.number_of(record.class, record.class_name));
        let (size, weight) = (float(record.size.max(1)), float(record.weight) / float(WEIGHT_ONE));
        let thread = self.threads.entry(record.thread).or_default();
        let mut stands_for = record.stands_for;
        if record.reason() == Reason::FirstBuffer {
            if thread.has_buffer || stands_for < thread.before {
                // A new thread has the address of one that has ended.
                let ended = std::mem::take(thread);
                for sample in ended.waiting() {
                    self.sums.entry(sample.of).or_default().others.add(&sample);
                }
            }
            thread.has_buffer = true;
            stands_for -= thread.before;
        }
        thread.sampled += stands_for;
        let sum = self.sums.entry(of).or_default();
        sum.announced.add(size, weight);
        if record.reason() == Reason::Outside {
            let others = float(record.buffer.saturating_sub(record.size)) * weight;
            sum.others.add(&Sample { of, others, size });
            return;
        }
        let others = float(stands_for.saturating_sub(record.size)) * weight;
        sum.others.total += others;
        let sample = Sample { of, others, size };
        // One as large as a buffer would not fit into any: it says nothing about what is in there.
        if record.reason() == Reason::Full && record.size < record.buffer {
            let waiting: f64 = thread.waiting.drain(..).map(|sample| sample.others).sum();
            sum.others.add(&Sample { others: others + waiting, ..sample });
            thread.last = Some(sample);
            return;
        }
        thread.waiting.push(sample);
        if thread.waiting.len() > MAX_WAITING {
            let oldest = thread.waiting.remove(0);
            let of = thread.last.unwrap_or(oldest);
            self.sums.entry(of.of).or_default().others.add(&Sample { others: oldest.others, ..of });
        }
    }

    fn number_of(&mut self, class: u64, name: u64) -> u32 {
        if let Some(number) = self.classes.get(&(class, name)) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        if self.names.len() == MAX_CLASSES {
            return number - 1;
        }
        self.names.push((self.names.len() + 1 == MAX_CLASSES).then(|| OTHERS.to_owned()));
        self.classes.insert((class, name), number);
        number
    }

    /// Names new classes by their `Klass` and the symbol that names them; `None` if it is not the class any more. Those of another
    /// loader than the first one of their name have the name of their loader behind their own.
    pub fn name_classes(
        &mut self,
        name_of: impl Fn(u64, u64) -> Option<String>,
        loader_of: impl Fn(u64) -> String,
    ) {
        let is_new = |number: u32| self.names.get(number as usize).is_some_and(Option::is_none);
        let mut new: Vec<_> = self.classes.iter().filter(|(_, number)| is_new(**number)).collect();
        new.sort_unstable_by_key(|(_, number)| **number);
        for ((class, name), number) in new {
            let named = name_of(*class, *name).map(|name| self.loaders.told_apart(name, loader_of(*class)));
            self.unnamed += u64::from(named.is_none());
            self.names[*number as usize] = Some(named.unwrap_or_else(|| UNNAMED.to_owned()));
        }
    }

    /// Number of classes whose names could not be read.
    #[must_use]
    pub const fn unnamed(&self) -> u64 {
        self.unnamed
    }

    /// Forgets threads that are not among these any more. Their waiting objects count.
    pub fn settle(&mut self, now: &HashMap<u64, u64>) {
        let Self { threads, sums, .. } = self;
        for (_, thread) in threads.extract_if(|thread, _| !now.contains_key(thread)) {
            for sample in thread.waiting() {
                sums.entry(sample.of).or_default().others.add(&sample);
            }
        }
    }

    /// Bytes that these threads have allocated since their last samples; each has allocated this much since its start.
    #[must_use]
    pub fn not_sampled(&self, now: &HashMap<u64, u64>) -> u64 {
        let since = |(thread, bytes): (&u64, &u64)| {
            let (before, sampled) =
                self.threads.get(thread).map_or((0, 0), |thread| (thread.before, thread.sampled));
            bytes.saturating_sub(before).saturating_sub(sampled)
        };
        now.iter().map(since).sum()
    }

    /// Objects by stack and name of the class: a class that was loaded anew can have the name of an earlier one.
    #[must_use]
    pub fn objects(&self) -> Vec<Objects> {
        let mut sums: HashMap<(u32, &str), Sum> = HashMap::new();
        let mut all = Others::default();
        let name = |class: u32| self.names.get(class as usize).and_then(Option::as_deref).unwrap_or(UNNAMED);
        for ((stack, class), sum) in &self.sums {
            sums.entry((*stack, name(*class))).or_default().merge(sum);
            all.merge(&sum.others);
        }
        for sample in self.threads.values().flat_map(Thread::waiting) {
            let (stack, class) = sample.of;
            sums.entry((stack, name(class))).or_default().others.add(&sample);
            all.add(&sample);
        }
        let objects = |((stack, class), sum): ((u32, &str), Sum)| sum.objects(stack, class, &all);
        sums.into_iter().map(objects).collect()
    }
}

impl Announced {
    fn add(&mut self, size: f64, weight: f64) {
        self.bytes += size * weight;
        self.objects += weight;
        // A block's contribution to the variance of a Horvitz-Thompson estimate.
        self.bytes_variance += weight * (weight - 1.) * size * size;
        self.objects_variance += weight * (weight - 1.);
    }

    fn merge(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.objects += other.objects;
        self.bytes_variance += other.bytes_variance;
        self.objects_variance += other.objects_variance;
    }
}

impl Others {
    fn add(&mut self, sample: &Sample) {
        let bytes = sample.others;
        let objects = bytes / sample.size;
        self.samples += f64::from(u8::from(bytes > 0.));
        self.bytes += bytes;
        self.objects += objects;
        self.squared_bytes += bytes * bytes;
        self.squared_objects += objects * objects;
    }

    fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.total += other.total;
        self.bytes += other.bytes;
        self.objects += other.objects;
        self.squared_bytes += other.squared_bytes;
        self.squared_objects += other.squared_objects;
    }
}

impl Sum {
    fn merge(&mut self, other: &Self) {
        self.announced.merge(&other.announced);
        self.others.merge(&other.others);
    }

    /// The estimate. The bytes of all unannounced objects together are known: samples share them in proportion.
    fn objects(&self, stack: u32, class: &str, all: &Others) -> Objects {
        let Self { announced, others } = self;
        let (scale, share) =
            if all.bytes > 0. { (all.total / all.bytes, others.bytes / all.bytes) } else { (0., 0.) };
        let variance =
            |own: f64, rest: f64| scale.powi(2) * (own * (1. - share).powi(2) + rest * share.powi(2));
        // Of an average object of the class.
        let size = if others.objects > 0. { others.bytes / others.objects } else { 1. };
        let rest = (all.squared_bytes - others.squared_bytes).max(0.);
        // One sample more than were found: a class that was found rarely by chance would seem to be known well (as in Agresti and
        // Coull's interval).
        let one = if others.samples > 0. { all.squared_bytes / all.samples } else { 0. };
        Objects {
            stack,
            class: class.to_owned(),
            bytes: rounded(announced.bytes + others.bytes * scale),
            bytes_variance: announced.bytes_variance + variance(others.squared_bytes + one, rest),
            objects: rounded(announced.objects + others.objects * scale).max(1),
            objects_variance: announced.objects_variance
                + variance(others.squared_objects + one / size.powi(2), rest / size.powi(2)),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "estimates")]
const fn float(number: u64) -> f64 {
    number as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "estimates that are not negative"
)]
fn rounded(number: f64) -> u64 {
    number.round() as u64
}
