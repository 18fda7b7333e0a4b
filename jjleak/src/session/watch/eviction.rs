//! Evicts stacks from the kernel side's table, and adds them to profiles.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jjleak_common::counter::Counter;
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::unwind::layer;

use super::Watch;
use super::process::Watched;
use super::stacks::symbolizer;
use super::threads::ThreadRoots;
use crate::analyze::call_site;
use crate::collect::{Collector, EvictedRow};
use crate::own_memory;
use crate::profile::Profile;
use crate::session::{Error, Listing};
use crate::snapshot::{Allocated, NamedStack, RawStack, Snapshot, StackUse};
use crate::symbolize::{EvictedStacks, StackNames};

/// Maximum number of rounds without a turn for other work.
const ROUNDS: u32 = 4;
/// Number of stacks that are named between two reads of the frames of new ones.
const NAMED_AT_ONCE: usize = 1024;
/// Maximum number of evicted stacks that each profile lists, if only the last one has to.
const MAX_LISTED: usize = 40_000;

/// Evicted stacks of each image.
pub(super) type EvictedByImage = HashMap<ImageId, EvictedStacks>;

impl Watch {
    /// Evicts stacks from the kernel side's table if it may fill up soon.
    pub(in crate::session) fn make_room_for_stacks(&mut self) -> Result<(), Error> {
        for _ in 0..ROUNDS {
            if !self.accounting.collector.is_crowded() || !self.evict()? {
                break;
            }
        }
        Ok(())
    }

    /// Evicts stacks. Returns true if there were any.
    fn evict(&mut self) -> Result<bool, Error> {
        self.name_new();
        let Self { attachment, processes, accounting, .. } = self;
        // Stacks that wait for names would never have them.
        let waiting: BTreeSet<_> =
            processes.values().flat_map(|watched| watched.perf_map.waiting()).copied().collect();
        let is_busy = |row, image: ImageId, stack: &RawStack| {
            let watched = processes.get(&image.slot()).filter(|watched| watched.image == image);
            waiting.contains(&row) || watched.is_none_or(|watched| leads_to_unknown_code(watched, stack))
        };
        let rows = accounting.collector.evict(attachment, is_busy)?;
        // Frames that were received meanwhile can be of code that is about to be discarded.
        self.name_new();
        let summed_up = self.summed_up();
        let mut by_process: BTreeMap<ProcessSlot, Vec<EvictedRow>> = BTreeMap::new();
        for row in rows {
            by_process.entry(row.image.slot()).or_default().push(row);
        }
        let mut emptied = 0;
        for (slot, rows) in by_process {
            for rows in rows.chunks(NAMED_AT_ONCE) {
                self.accounting.collector.receive_frames();
                let (kept, put_back) = self.keep_evicted(slot, rows);
                for row in &put_back {
                    self.accounting.collector.put_back(row);
                }
                // At once: naming takes time, and new stacks need rows.
                emptied += self.empty(&kept);
            }
        }
        if self.summed_up() > summed_up {
            self.stacks.names.forget_unused();
        }
        tracing::debug!(stacks = emptied, "stacks without live blocks have left the table");
        Ok(emptied > 0)
    }

    /// Frees rows for other stacks; returns their number.
    fn empty(&mut self, evicted: &[EvictedRow]) -> usize {
        let rows = self.accounting.collector.empty(evicted);
        self.stacks.names.forget_rows(&rows);
        self.stacks.threads.forget(&rows);
        self.processes.values_mut().for_each(|watched| watched.perf_map.forget(&rows));
        rows.len()
    }

    /// Keeps the names and sums of a process's stacks that leave the table. Returns their rows, and those of other images, which
    /// are not known.
    fn keep_evicted(&mut self, slot: ProcessSlot, rows: &[EvictedRow]) -> (Vec<EvictedRow>, Vec<EvictedRow>) {
        let Self { processes, stacks, accounting, .. } = self;
        let Some(watched) = processes.get(&slot) else { return (Vec::new(), rows.to_vec()) };
        let collector = &accounting.collector;
        let (known, others): (Vec<EvictedRow>, _) = rows.iter().partition(|row| row.image == watched.image);
        let of_image = stacks.evicted.entry(watched.image).or_default();
        let mut names = stacks.names.of_process(&watched.modules);
        names.look_up(known.iter().map(|evicted| evicted.row), |row| collector.stack(row));
        for evicted in &known {
            let EvictedRow { row, id, allocated, .. } = *evicted;
            let stack = collector.stack(row);
            // A call that had begun before its stack left the table has it again without a walk.
            if stack.is_none() && of_image.add_again(id, allocated) {
                continue;
            }
            let thread = stack.map_or(0, |stack| stack.thread);
            let stack = names.name(row, || stack.cloned());
            of_image.add(id, thread, allocated, &stack, call_site(&stack.frames.list()));
        }
        (known, others)
    }

    /// Number of evicted stacks that were summed up.
    fn summed_up(&self) -> u64 {
        self.stacks.evicted.values().map(EvictedStacks::summed_up).sum()
    }

    /// Lists all stacks in the profiles from now on, if they are needed at the end.
    pub(in crate::session) fn list_last(&mut self) {
        self.stacks.is_last = true;
    }

    /// Drops what is known of stacks, once the last profiles have been taken.
    pub(in crate::session) fn forget_stacks(&mut self) {
        let Self { stacks, accounting, .. } = self;
        stacks.names = StackNames::new(symbolizer());
        stacks.threads = ThreadRoots::default();
        stacks.evicted = EvictedByImage::default();
        accounting.collector.forget_frames();
        own_memory::release();
    }

    /// Drops the evicted stacks of images that are over.
    pub(super) fn forget_evicted(&mut self) {
        let images = self.attachment.processes().images();
        self.stacks.evicted.retain(|image, _| images.is_current(*image));
    }
}

/// Returns true if a stack leads through mapped code that the process was not scanned for yet, so that it would have no names.
fn leads_to_unknown_code(watched: &Watched, stack: &RawStack) -> bool {
    stack.frames.iter().any(|frame| {
        let address = frame.address().saturating_sub(1);
        frame.layer() >= layer::FOUND
            && watched.modules.find_frame(address, frame.layer(), &stack.found).is_none()
    })
}

/// What a profile is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// Later verdicts only.
    History,
    /// A report.
    Report,
    /// The last report on the process.
    End,
    /// Totals of a process that has ended.
    Totals,
}

/// How a profile shows the evicted stacks of an image.
pub(super) struct Shown<'a> {
    stacks: Option<&'a EvictedStacks>,
    /// True if each is listed; otherwise they are summed up by call site.
    are_listed: bool,
}

impl<'a> Shown<'a> {
    /// `use_of` is what the profile is for.
    pub(super) fn of(evicted: &'a EvictedByImage, image: ImageId, listing: Listing, use_of: Use) -> Self {
        let stacks = evicted.get(&image);
        let is_needed = match (listing, use_of) {
            (Listing::Always, Use::Report | Use::End) | (Listing::AtEnd, Use::End) => true,
            (Listing::AtEnd | Listing::Never, _) | (_, Use::History | Use::Totals) => false,
        };
        Self { are_listed: is_needed || stacks.is_none_or(|stacks| stacks.len() <= MAX_LISTED), stacks }
    }

    /// Adds what the stacks of a snapshot had allocated before they were last evicted. Returns the hashes of these stacks.
    pub(super) fn complete(&self, snapshot: &mut Snapshot, collector: &Collector) -> BTreeSet<u64> {
        let Some(evicted) = self.stacks else { return BTreeSet::new() };
        snapshot.counters.insert(Counter::StackSummedUp, evicted.summed_up());
        let mut complete = BTreeSet::new();
        if self.are_listed {
            for (_, used) in &mut snapshot.stacks {
                if let Some(before) = evicted.get(used.hash)
                    && complete.insert(used.hash)
                {
                    let Allocated { objects, bytes } = collector.rounded(before.allocated);
                    used.allocated_objects += objects;
                    used.allocated_bytes += bytes;
                }
            }
        }
        complete
    }

    /// Frames and thread of a stack that was evicted and is back without having been walked again: a call that began before has
    /// ended.
    pub(super) fn name(&self, hash: u64) -> Option<(NamedStack, u64)> {
        let evicted = self.stacks?;
        evicted.get(hash).map(|stack| (evicted.named(stack), stack.thread))
    }

    /// Adds the other evicted stacks to a profile. `below` puts a stack below its thread.
    pub(super) fn add_to(
        &self,
        profile: &mut Profile,
        complete: &BTreeSet<u64>,
        collector: &Collector,
        below: impl Fn(NamedStack, u64) -> NamedStack,
    ) {
        let Some(evicted) = self.stacks else { return };
        if self.are_listed {
            profile.reserve(evicted.len().saturating_sub(complete.len()) + 1);
        }
        let mut add = |hash, allocated, named| {
            let Allocated { objects, bytes } = collector.rounded(allocated);
            let used =
                StackUse { hash, allocated_objects: objects, allocated_bytes: bytes, ..StackUse::default() };
            if objects > 0 {
                profile.add(used, named);
            }
        };
        if !self.are_listed {
            evicted.by_site().for_each(|(site, allocated, named)| add(site, allocated, named));
            return;
        }
        for stack in evicted.iter().filter(|stack| !complete.contains(&stack.hash)) {
            add(stack.hash, stack.allocated, below(evicted.named(stack), stack.thread));
        }
        evicted.summed_up_by_site().for_each(|(site, allocated, named)| add(site, allocated, named));
    }
}
