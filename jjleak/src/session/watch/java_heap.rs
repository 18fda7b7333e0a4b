//! Sums up the objects that JVMs announce in their heaps, for `jjleak heap`: by class and stack.

use std::collections::HashMap;
use std::os::fd::RawFd;

use jjleak_common::counter::Counter;
use jjleak_common::java_heap::{FollowedHeap, HeapLayout, Record};
use jjleak_common::process::ImageId;
use jjleak_common::sampling::Sampling;
use jjleak_common::stack::lost_row;

use super::leading_frames::LeadingFrames;
use crate::attach::{Attachment, Drained, Images, Programs, Records, now_ns};
use crate::collect::{Collector, CountedStack};
use crate::cost::{Change, Meter, ObjectBound};
use crate::java_objects::{Objects, SampledHeap};
use crate::jvm::{Jvm, ProcessMemory};
use crate::session::Error;
use crate::snapshot::{Frame, LiveBlocks, Snapshot, StackUse};

/// Name of what no announced object stands for yet.
const NOT_SAMPLED: &str = "not sampled yet";

/// Objects of each image; `None` if they are not followed.
pub(super) struct JavaHeap(Option<Followed>);

struct Followed {
    objects: Records<Record>,
    /// `None` for a JVM that cannot be followed.
    images: HashMap<ImageId, Option<Heap>>,
    /// Bound of the cost, if one is set.
    bound: Option<ObjectBound>,
    /// Distance between recorded objects that the bound needs, in bytes; 0 if all are recorded.
    distance: u64,
    /// The largest distance until now.
    longest: u64,
    /// Time at which following ended because the bound could not be kept, in nanoseconds of `CLOCK_MONOTONIC`.
    stopped_ns: Option<u64>,
}

/// The heap of a JVM.
struct Heap {
    layout: HeapLayout,
    objects: SampledHeap,
}

impl JavaHeap {
    /// Follows objects of Java heaps if the attachment was loaded for it.
    pub(super) fn follow(attachment: &mut Attachment) -> Result<Self, Error> {
        if attachment.settings().programs != Programs::JavaHeap {
            return Ok(Self(None));
        }
        let objects = attachment.java_objects()?;
        let images = HashMap::new();
        Ok(Self(Some(Followed { objects, images, bound: None, distance: 0, longest: 0, stopped_ns: None })))
    }

    /// Returns true if objects are followed.
    pub(super) const fn is_followed(&self) -> bool {
        self.0.is_some()
    }

    /// A descriptor that becomes readable with new objects; `None` if they are not followed.
    pub(super) fn waiting(&self) -> Option<RawFd> {
        self.0.as_ref().map(|followed| followed.objects.descriptor())
    }

    /// Adds announced objects.
    pub(super) fn receive(&mut self) -> Drained {
        let Some(Followed { objects, images, .. }) = &mut self.0 else { return Drained::Empty };
        objects.take(|record| {
            if let Some(Some(heap)) = images.get_mut(&record.image) {
                heap.objects.add(record);
            }
        })
    }

    /// Keeps the cost within a bound from now on.
    pub(super) fn keep_within(&mut self, bound: ObjectBound) {
        if let Some(followed) = &mut self.0 {
            followed.bound = Some(bound);
        }
    }

    /// Records as much as the bound permits. Returns the share that breakpoints alone take if that is nothing: the bound ends then.
    pub(super) fn adjust(
        &mut self,
        attachment: &mut Attachment,
        meter: &Meter,
    ) -> Result<Option<f64>, Error> {
        let Some(followed) = &mut self.0 else { return Ok(None) };
        match followed.bound.as_mut().and_then(|bound| bound.adjust(attachment, meter)) {
            Some(Change::Distance(bytes)) => {
                followed.distance = bytes;
                followed.longest = followed.longest.max(bytes);
                for (image, heap) in &followed.images {
                    if let Some(Heap { layout, .. }) = heap {
                        attachment.set_java_heap(image.slot(), &FollowedHeap::sampled(*layout, bytes))?;
                    }
                }
                Ok(None)
            }
            Some(Change::Hopeless(share)) => {
                followed.bound = None;
                followed.stopped_ns = Some(now_ns());
                Ok(Some(share))
            }
            None => Ok(None),
        }
    }

    /// The end of what a snapshot of this time counts: following may have ended before.
    pub(super) fn counted_until(&self, taken_ns: u64) -> u64 {
        self.0.as_ref().and_then(|followed| followed.stopped_ns).map_or(taken_ns, |at| at.min(taken_ns))
    }

    /// The largest distance between recorded objects that the bound has needed.
    pub(super) fn sampling(&self) -> Option<Sampling> {
        let longest = self.0.as_ref().map_or(0, |followed| followed.longest);
        (longest > 0).then_some(Sampling::Bytes(longest))
    }

    /// Begins with an image whose JVM has become known: the kernel side needs the layout of its structures. Of a command that was just
    /// started, all that its threads have allocated counts.
    pub(super) fn begin(
        &mut self,
        image: ImageId,
        jvm: &Jvm<ProcessMemory>,
        is_started: bool,
        attachment: &mut Attachment,
    ) -> Result<(), Error> {
        let Some(Followed { images, distance, .. }) = &mut self.0 else { return Ok(()) };
        if images.contains_key(&image) {
            return Ok(());
        }
        let Some(layout) = jvm.heap_layout() else {
            tracing::warn!(
                "this JVM does not describe what its threads allocate: its Java heap is not followed"
            );
            images.insert(image, None);
            return Ok(());
        };
        let before = if is_started { None } else { jvm.allocated_by_threads() };
        let objects = SampledHeap::new(&before.unwrap_or_default());
        images.insert(image, Some(Heap { layout, objects }));
        Ok(attachment.set_java_heap(image.slot(), &FollowedHeap::sampled(layout, *distance))?)
    }

    /// Reads the names of new classes, before they are unloaded.
    pub(super) fn name_classes(&mut self, image: ImageId, jvm: &Jvm<ProcessMemory>) {
        self.receive();
        if let Some(Some(heap)) = self.0.as_mut().and_then(|followed| followed.images.get_mut(&image)) {
            heap.objects
                .name_classes(|class, name| jvm.class_name(class, name), |class| jvm.loader_name(class));
        }
    }

    /// Adds the objects of an image to a snapshot that was just taken.
    pub(super) fn add_to(
        &mut self,
        snapshot: &mut Snapshot,
        collector: &Collector,
        jvm: Option<&Jvm<ProcessMemory>>,
    ) -> LeadingFrames {
        let image = snapshot.image;
        let Some(followed) = &mut self.0 else { return LeadingFrames::default() };
        let all_recorded = collector.counts_all() && followed.longest == 0 && followed.stopped_ns.is_none();
        let Some(Heap { objects: heap, .. }) = followed.images.get_mut(&image).and_then(Option::as_mut)
        else {
            // Nothing stands for them.
            let unread = snapshot.counters.insert(Counter::JavaObjectEarly, 0).unwrap_or_default();
            *snapshot.counters.entry(Counter::JavaObjectLost).or_default() += unread;
            return LeadingFrames::default();
        };
        // A JVM that has ended has no threads.
        let threads = jvm.and_then(Jvm::allocated_by_threads);
        if let Some(threads) = &threads {
            heap.settle(threads);
        }
        let stack = |objects: Objects| {
            let live = LiveBlocks {
                bytes_variance: objects.bytes_variance,
                objects_variance: objects.objects_variance,
                ..LiveBlocks::default()
            };
            let (allocated_bytes, allocated_objects) = (objects.bytes, objects.objects);
            let used = StackUse { live, allocated_objects, allocated_bytes, ..StackUse::default() };
            CountedStack { row: objects.stack, of: objects.class, is_without_stack: false, used }
        };
        let mut stacks: Vec<_> = heap.objects().into_iter().map(stack).collect();
        // Sampling leaves out objects: the bytes that they stand for are unknown.
        let threads = threads.filter(|_| all_recorded);
        let allocated_bytes = threads.map_or(0, |threads| heap.not_sampled(&threads));
        if allocated_bytes > 0 {
            let used = StackUse { allocated_bytes, ..StackUse::default() };
            let (row, of) = (lost_row(image.slot()), NOT_SAMPLED.to_owned());
            stacks.push(CountedStack { row, of, is_without_stack: true, used });
        }
        *snapshot.counters.entry(Counter::UnnamedClass).or_default() += heap.unnamed();
        *snapshot.counters.entry(Counter::UnfollowedAllocator).or_default() +=
            u64::from(followed.stopped_ns.is_some());
        let identities = collector.add_counted(snapshot, &stacks);
        let frame = |name: &str| Frame::of_class(name.to_owned());
        LeadingFrames::of(identities.into_iter().zip(&stacks), frame, None)
    }

    /// Drops the objects of images that are over.
    pub(super) fn forget(&mut self, images: &Images) {
        if let Some(followed) = &mut self.0 {
            followed.images.retain(|image, _| images.is_current(*image));
        }
    }
}
