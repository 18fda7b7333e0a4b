//! Evicts stacks from the kernel side's table, and adds them to profiles.

use std::collections::{BTreeSet, HashMap};

use jjleak_common::counter::Counter;
use jjleak_common::process::ImageId;
use jjleak_common::stack::{EVICTED, StackStatus};

use super::Watch;
use super::threads::ThreadRoots;
use crate::analyze::call_site;
use crate::collect::{Collector, EvictedRow};
use crate::own_memory;
use crate::profile::{OTHER_STACKS, Profile};
use crate::session::{Error, Listing};
use crate::snapshot::{Allocated, Frame, NamedStack, Snapshot, StackUse};
use crate::symbolize::{EvictedStacks, StackNames};

/// Maximum number of rounds without a turn for other work.
const ROUNDS: u32 = 4;
/// Number of stacks that are named between two reads of the frames of new ones.
const NAMED_AT_ONCE: usize = 1024;
/// Maximum number of evicted stacks that each profile lists, if only the last one has to: as many as there can be with live
/// blocks.
const MAX_LISTED: usize = 40_000;

/// Evicted stacks of each image.
pub(super) type Evicted = HashMap<ImageId, EvictedStacks>;

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
        let rows = accounting.collector.evict(attachment, |row| waiting.contains(&row))?;
        // Frames that were received meanwhile can be of code that is about to be discarded.
        self.name_new();
        let mut evicted = Vec::with_capacity(rows.len());
        for (number, row) in rows.into_iter().enumerate() {
            if number % NAMED_AT_ONCE == 0 {
                self.accounting.collector.receive_frames();
            }
            if self.keep_evicted(&row) {
                evicted.push(row);
            } else {
                self.accounting.collector.put_back(&row);
            }
        }
        let rows = self.accounting.collector.empty(&evicted);
        self.stacks.names.forget_rows(&rows);
        self.stacks.threads.forget(&rows);
        self.processes.values_mut().for_each(|watched| watched.perf_map.forget(&rows));
        tracing::debug!(stacks = rows.len(), "stacks without live blocks have left the table");
        Ok(!rows.is_empty())
    }

    /// Keeps the names and sums of a stack that leaves the table. Returns false if its process is not known.
    fn keep_evicted(&mut self, evicted: &EvictedRow) -> bool {
        let Self { processes, stacks, accounting, .. } = self;
        let Some(watched) = processes.get(&evicted.image.slot()) else { return false };
        if watched.image != evicted.image {
            return false;
        }
        let collector = &accounting.collector;
        let stack = collector.stack(evicted.row);
        let thread = stack.map_or(0, |stack| stack.thread);
        let named = stacks.names.of_process(&watched.modules).name(evicted.row, || stack.cloned());
        let site = call_site(&named.frames);
        let of_image = stacks.evicted.entry(evicted.image).or_default();
        of_image.add(evicted.id, thread, evicted.allocated, &named, site);
        true
    }

    /// Lists all stacks in the profiles from now on, if they are needed at the end.
    pub(in crate::session) fn list_last(&mut self) {
        self.stacks.is_last = true;
    }

    /// Drops what is known of stacks, once the last profiles have been taken.
    pub(in crate::session) fn forget_stacks(&mut self) {
        let Self { stacks, accounting, .. } = self;
        stacks.names = StackNames::default();
        stacks.threads = ThreadRoots::default();
        stacks.evicted = Evicted::default();
        accounting.collector.forget_frames();
        own_memory::release();
    }

    /// Drops the evicted stacks of images that are over.
    pub(super) fn forget_evicted(&mut self) {
        let images = self.attachment.processes().images();
        self.stacks.evicted.retain(|image, _| images.is_current(*image));
    }
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
}

/// How a profile shows the evicted stacks of an image.
pub(super) struct Shown<'a> {
    stacks: Option<&'a EvictedStacks>,
    /// True if each is listed; otherwise they are summed up by call site.
    are_listed: bool,
}

impl<'a> Shown<'a> {
    /// `use_of` is what the profile is for.
    pub(super) fn of(evicted: &'a Evicted, image: ImageId, listing: Listing, use_of: Use) -> Self {
        let stacks = evicted.get(&image);
        let is_needed = match (listing, use_of) {
            (Listing::Always, Use::Report | Use::End) | (Listing::AtEnd, Use::End) => true,
            (Listing::AtEnd | Listing::Never, _) | (_, Use::History) => false,
        };
        Self { are_listed: is_needed || stacks.is_none_or(|stacks| stacks.len() <= MAX_LISTED), stacks }
    }

    /// Adds what the stacks of a snapshot had allocated before they were last evicted. Returns the hashes of these stacks.
    pub(super) fn complete(&self, snapshot: &mut Snapshot, collector: &Collector) -> BTreeSet<u64> {
        let Some(evicted) = self.stacks else { return BTreeSet::new() };
        snapshot.counters.insert(Counter::StackSummedUp, evicted.summed_up().stacks);
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

    /// Names of a stack that was evicted and is back without having been walked again: a call that began before has ended.
    pub(super) fn name(&self, hash: u64) -> Option<NamedStack> {
        let evicted = self.stacks?;
        evicted.get(hash).map(|stack| evicted.named(stack))
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
        let others = Frame { symbol: OTHER_STACKS.to_owned(), ..Frame::default() };
        let others = NamedStack { status: StackStatus::Lost, frames: [others.into()].into() };
        add(EVICTED, evicted.summed_up().allocated, others);
    }
}
