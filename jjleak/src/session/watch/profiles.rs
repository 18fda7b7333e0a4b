//! Profiles of the processes: at intervals, to prepare later verdicts, and at the end of a process.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use jjleak_common::counter::Counter;
use jjleak_common::process::ImageId;

use super::Watch;
use super::accounting::Accounting;
use super::eviction::{Shown, Use};
use super::jvm::name_generated;
use super::overhead::unjudge_unknown;
use super::perf_map::Urgency;
use super::process::Watched;
use super::stacks::Stacks;
use super::threads::{ThreadRoots, name_of};
use crate::analyze::Pace;
use crate::attach::now_ns;
use crate::collect::Collector;
use crate::cost::Bound;
use crate::own_memory;
use crate::processes::{MemoryLimit, Pid, Resident, ResidentMemory};
use crate::profile::{Coverage, InWindows, Memory, MemoryKind, Profile, Totals, standard_error};
use crate::session::{Error, Source};
use crate::snapshot::{BlockFilter, NamedStack};

/// Maximum number of a view's snapshots with verdicts, within the time after which allocations are old enough to be
/// judged. More snapshots would say nothing about what is old, and they cost more than those with figures only.
const JUDGED_IN_SETTLE: u32 = 4;
/// Maximum time between verdicts on new allocations, however long that time is.
const JUDGED_AGAIN: Duration = Duration::from_secs(4);

/// Number of newly named stacks after which free memory is returned to the system.
const RELEASED_AFTER: u32 = 1000;

/// State of an image's history.
struct Past {
    /// Last instant that divides its history.
    divided_ns: Option<u64>,
    /// True if another instant would tell more.
    is_due: bool,
}

impl Past {
    /// Returns true if a new verdict is worth its cost, after the last one at `judged_ns`. Snapshots taken since then
    /// for the history only count in favour.
    fn tells_more(&self, judged_ns: u64, now_ns: u64, settle: Duration) -> bool {
        let least = nanoseconds((settle / JUDGED_IN_SETTLE).min(JUDGED_AGAIN));
        let is_more_known = self.divided_ns > Some(judged_ns.saturating_add(least));
        now_ns.saturating_sub(judged_ns) >= least && (self.is_due || is_more_known)
    }
}

/// The live tables of the kernel side, as a source.
impl Source for Watch {
    /// Takes profiles of all processes.
    fn profiles(&mut self, pace: Pace) -> Result<Vec<Profile>, Error> {
        // A history of minutes has few instants. The snapshots between them have figures only.
        let now_ns = now_ns();
        let is_glanced = |watched: &Watched| {
            pace == Pace::InTurn
                && !self.accounting.coverage.combined
                && !self.is_to_be_judged(watched, now_ns)
        };
        let glanced: BTreeSet<_> = self.images(is_glanced).into_iter().collect();
        self.accounting.collector.leave_undivided(glanced.clone());
        let use_of = if self.stacks.is_last { Use::End } else { Use::Report };
        let profiles = self.take_but(&BTreeSet::new(), use_of);
        self.accounting.collector.leave_undivided(BTreeSet::new());
        let mut profiles = profiles?;
        for watched in self.processes.values_mut().filter(|watched| !glanced.contains(&watched.image)) {
            watched.judged = Some((watched.image, now_ns));
        }
        let images = self.images(|_| true);
        self.accounting.collector.keep_timelines(&images);
        for profile in &mut profiles {
            self.accounting.growth.measure(profile);
            if profile.instants_ns.is_empty() {
                self.accounting.histories.refresh(profile);
            } else {
                self.accounting.histories.judge(profile, pace);
            }
            unjudge_unknown(profile);
        }
        self.measure_cost(&mut profiles);
        Ok(profiles)
    }
}

impl Watch {
    /// Returns true if a view's snapshot shall judge a process again, and distinguish what was allocated since the
    /// last verdict.
    fn is_to_be_judged(&self, watched: &Watched, now_ns: u64) -> bool {
        let judged = watched.judged.filter(|(image, _)| *image == watched.image);
        judged.is_none_or(|(image, judged_ns)| {
            let past = Past {
                divided_ns: self.accounting.collector.last_divided_ns(image),
                is_due: self.accounting.collector.is_due(image, now_ns),
            };
            past.tells_more(judged_ns, now_ns, self.accounting.coverage.settle)
        })
    }

    /// Takes snapshots of live blocks for the history of processes where one is due. Returns true if there were any.
    /// The longer a process has been watched, the rarer they are.
    pub(in crate::session) fn take_history(&mut self) -> Result<bool, Error> {
        let now_ns = now_ns();
        let known: BTreeSet<_> = self.images(|_| true).into_iter().collect();
        let (due, resting): (BTreeSet<_>, _) =
            known.into_iter().partition(|image| self.accounting.collector.is_due(*image, now_ns));
        if due.is_empty() {
            return Ok(false);
        }
        for profile in self.take_but(&resting, Use::History)? {
            self.accounting.histories.remember(&profile);
        }
        Ok(true)
    }

    /// Takes profiles of all images but `resting`, at an instant that divides their histories. If a process calls
    /// `exec` in between, stacks of the new program would get names from the old one's files; then profiles are taken
    /// again.
    fn take_but(&mut self, resting: &BTreeSet<ImageId>, use_of: Use) -> Result<Vec<Profile>, Error> {
        const ATTEMPTS: u32 = 3;
        self.update_all()?;
        self.await_perf_maps();
        let is_wanted = |watched: &Watched| !resting.contains(&watched.image);
        let mut profiles = self.take(is_wanted, use_of)?;
        for _ in 1..ATTEMPTS {
            if self.processes.values().all(|watched| self.is_current(watched)) {
                break;
            }
            self.update_all()?;
            profiles = self.take(is_wanted, use_of)?;
        }
        if let Some(taken_ns) = profiles.iter().find_map(|profile| profile.instants_ns.last()) {
            let images = self.images(is_wanted);
            self.accounting.collector.divide_at(&images, *taken_ns);
        }
        Ok(profiles)
    }

    fn images(&self, which: impl Fn(&Watched) -> bool) -> Vec<ImageId> {
        self.processes.values().filter(|watched| which(watched)).map(|watched| watched.image).collect()
    }

    fn is_current(&self, watched: &Watched) -> bool {
        let image = self.attachment.processes().image(watched.slot());
        watched.ended.is_some() || image.is_ok_and(|image| image == watched.image)
    }

    /// Takes the last profiles of processes that have ended, with or without their stacks, and stops accounting for them.
    pub(in crate::session) fn close(&mut self, with_stacks: bool) -> Result<Vec<Profile>, Error> {
        let ended = |watched: &Watched| watched.ended.is_some();
        let slots: Vec<_> =
            self.processes.iter().filter(|(_, watched)| ended(watched)).map(|(slot, _)| *slot).collect();
        self.close_images(&slots);
        self.judge_programs();
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        let mut profiles = self.take(ended, if with_stacks { Use::End } else { Use::Totals })?;
        for profile in &mut profiles {
            if with_stacks {
                self.accounting.growth.measure(profile);
                self.accounting.histories.judge(profile, Pace::Thorough);
            }
            self.accounting.growth.forget(&profile.process);
            self.accounting.histories.forget(&profile.process);
            unjudge_unknown(profile);
        }
        self.measure_cost(&mut profiles);
        slots.into_iter().try_for_each(|slot| self.let_go(slot))?;
        Ok(profiles)
    }

    fn take(&mut self, which: impl Fn(&Watched) -> bool, use_of: Use) -> Result<Vec<Profile>, Error> {
        let images = self.images(&which);
        let Self { processes, attachment, files, stacks, accounting, .. } = self;
        let Accounting { collector, mappings, touched, java_heap, coverage, bound, .. } = accounting;
        let Stacks { names, threads, evicted, listing, .. } = stacks;
        let allocators = &files.allocators;
        mappings.receive();
        touched.receive();
        java_heap.receive();
        for watched in processes.values_mut().filter(|watched| which(watched)) {
            watched.spending.read_cpu_time(watched.pid());
        }
        let coverage = Coverage {
            windows: in_windows(collector, bound.as_ref()),
            sampling: java_heap.sampling().unwrap_or(coverage.sampling),
            ..*coverage
        };
        // Of many processes, each report has few new stacks: what was read of their files is not kept.
        let keeps_child = images.len() <= 1;
        if !keeps_child {
            names.end_child();
        }
        let mut snapshots = collector.snapshots(attachment, &images, block_filter(coverage))?;
        // Naming stacks takes memory, too.
        collector.release_live(use_of == Use::End);
        // The last profile is the largest: what it does not need leaves the memory to it.
        let is_last_of_all = use_of == Use::End && processes.len() == 1;
        let now = (Timestamp::now(), now_ns());
        let mut taken = 0_u32;
        let profiles = processes.values_mut().filter_map(|watched| {
            let mut snapshot = snapshots.remove(&watched.image)?;
            let exe = &watched.process.exe;
            mappings
                .add_to(&mut snapshot, collector, |stack| allocators.are_in(stack, &watched.modules, exe));
            let pages = touched.add_to(&mut snapshot, collector, watched.pid());
            if let Some(jvm) = watched.jvm.jvm() {
                java_heap.name_classes(watched.image, jvm);
            }
            let objects = java_heap.add_to(&mut snapshot, collector, watched.jvm.jvm());
            name_generated(names, collector, watched, Urgency::Now);
            watched.complete(&mut snapshot.counters);
            if coverage.windows.is_some() {
                // Uncounted blocks are freed, and counted blocks are freed unseen, after which their addresses are
                // used again. Calls in progress when probes are put in or taken out are seen only in part.
                let seen_by_half =
                    [Counter::UnknownFree, Counter::MissedFree, Counter::StalePending, Counter::MutedCall];
                for counter in seen_by_half {
                    snapshot.counters.insert(counter, 0);
                }
            }
            if !allocators.are_c_libraries(&watched.modules, &watched.process.exe) {
                // The program itself may have freed these blocks.
                snapshot.counters.remove(&Counter::FreedByCLibrary);
            }
            if coverage.threads && watched.ended.is_none() {
                collector.rename_threads(watched.image, name_of(watched.pid()));
            }
            let evicted = Shown::of(evicted, watched.image, *listing, use_of);
            let complete = evicted.complete(&mut snapshot, collector);
            watched.unnamed.clear();
            let mut names = names.of_process(&watched.modules);
            let is_named = use_of != Use::Totals;
            if is_named {
                names.look_up(snapshot.stacks.iter().map(|(row, _)| *row), |row| collector.stack(row));
            }
            if is_last_of_all {
                names.end_child();
            }
            let name = |row, hash| {
                if !is_named {
                    return NamedStack::lost();
                }
                if collector.stack(row).is_none()
                    && let Some((known, thread)) = evicted.name(hash)
                {
                    return ThreadRoots::below(collector.thread_of(watched.image, thread), known);
                }
                let mut stack = names.name(row, || {
                    taken += 1;
                    collector.take_stack(row)
                });
                if let Some(thread) = collector.thread(watched.image, row) {
                    threads.put_below(row, thread, &mut stack);
                }
                objects.put_before(hash, pages.put_before(hash, stack))
            };
            let span = watched.span(java_heap.counted_until(snapshot.taken_ns), now);
            let mut profile = Profile::build(snapshot, watched.info(), span, coverage, name);
            let below = |stack, thread| ThreadRoots::below(collector.thread_of(watched.image, thread), stack);
            evicted.add_to(&mut profile, &complete, collector, below);
            profile.set_lost(Counter::SymbolsLost, names.lost_files());
            profile.ended.clone_from(&watched.ended);
            profile.resident = resident(watched.pid());
            profile.memory = MemoryLimit::of(watched.pid()).map(memory);
            Some(profile)
        });
        let profiles = profiles.collect();
        if is_last_of_all || !keeps_child {
            names.end_child();
        }
        if taken >= RELEASED_AFTER {
            // The addresses of these stacks are not needed any more.
            own_memory::release();
        }
        Ok(profiles)
    }
}

/// The windows in which a run under a bound has counted; `None` if it has counted all the time.
fn in_windows(collector: &Collector, bound: Option<&Bound>) -> Option<InWindows> {
    let windows = collector.windows().filter(|windows| !windows.is_whole())?;
    let (objects, bytes) = windows.allocated_variances(now_ns());
    Some(InWindows {
        weight: windows.mean_weight(now_ns()),
        needed_percent: bound.and_then(Bound::needed_percent),
        windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
        follows_frees: windows.follows_frees(),
        allocated_error: Totals { bytes: standard_error(bytes), objects: standard_error(objects) },
        ..InWindows::default()
    })
}

/// Resident memory of a process; `None` if it has ended.
fn resident(pid: Pid) -> Option<u64> {
    match ResidentMemory::open(pid).and_then(|file| file.read()) {
        Ok(Resident::Bytes(bytes)) => Some(bytes),
        Ok(Resident::Ended) | Err(_) => None,
    }
}

/// Memory limit of a process.
const fn memory(MemoryLimit { is_cgroup, limit, available }: MemoryLimit) -> Memory {
    Memory { kind: if is_cgroup { MemoryKind::Cgroup } else { MemoryKind::Ram }, limit, available }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Extent of a snapshot for this coverage.
fn block_filter(coverage: Coverage) -> BlockFilter {
    let older_ns = nanoseconds(coverage.older);
    BlockFilter { older_ns, blocks_per_stack: coverage.blocks_per_stack }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest time between verdicts of a view, with snapshots for the history in between.
    fn longest_unjudged(interval: Duration, settle: Duration, spacing: Duration) -> Duration {
        let (mut divided, mut judged, mut longest) = (0, 0, 0);
        let [interval, of_past, spacing] = [interval, settle / 2, spacing].map(nanoseconds);
        let mut snapshots: Vec<_> = (1..200).map(|number| (number * interval, true)).collect();
        snapshots
            .extend((1..).map(|number| (number * of_past, false)).take_while(|(at, _)| *at < 200 * interval));
        snapshots.sort_unstable();
        for (at, is_view) in snapshots {
            let is_due = at - divided >= spacing;
            let past = Past { divided_ns: Some(divided), is_due };
            if is_view && past.tells_more(judged, at, settle) {
                longest = longest.max(at - judged);
                (judged, divided) = (at, at);
            } else if !is_view && is_due {
                divided = at;
            }
        }
        Duration::from_nanos(longest)
    }

    #[test]
    fn snapshots_for_the_history_keep_no_view_from_judging() {
        let seconds = Duration::from_secs_f64;
        assert_eq!(longest_unjudged(seconds(1.), seconds(15.), Duration::ZERO), seconds(4.));
        for interval in [7.6, 8., 15., 30.] {
            assert_eq!(longest_unjudged(seconds(interval), seconds(15.), Duration::ZERO), seconds(interval));
            let rare = longest_unjudged(seconds(interval), seconds(15.), seconds(40.));
            assert!(rare <= seconds(40. + 7.5 + interval), "{rare:?}");
        }
        assert_eq!(longest_unjudged(seconds(1.), seconds(600.), Duration::ZERO), seconds(4.));
    }
}
