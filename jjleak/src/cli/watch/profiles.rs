//! Profiles of the processes: at an interval, for the sake of later verdicts, and the last ones of those that have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use jjleak_common::counter::Counter;
use jjleak_common::process::ImageId;

use super::Watch;
use super::jvm::name_generated;
use super::overhead::unjudge_estimates;
use super::perf_map::Urgency;
use super::process::Watched;
use super::threads::name_of;
use crate::analyze::Pace;
use crate::attach::now_ns;
use crate::cli::Failure;
use crate::collect::View;
use crate::processes::MemoryLimit;
use crate::profile::{Coverage, InWindows, Memory, MemoryKind, Profile};

/// Most looks of a view that tell apart what was allocated since, in the time at which allocations are old enough to be judged:
/// more would say nothing of what is old, and they are dearer than those that have figures only.
const LOOKS_IN_SETTLE: u32 = 4;

impl Watch {
    /// Takes profiles of all processes.
    pub(in crate::cli) fn profiles(&mut self, pace: Pace) -> Result<Vec<Profile>, Failure> {
        // A past of minutes is told by few instants: what is between them is looked at for its figures.
        let now_ns = now_ns();
        let images = self.images(|_| pace == Pace::InTurn && !self.coverage.combined);
        let glanced = images.into_iter().filter(|image| !self.tells_of_past(*image, now_ns)).collect();
        self.collector.leave_undivided(glanced);
        let profiles = self.take_but(&BTreeSet::new());
        self.collector.leave_undivided(BTreeSet::new());
        let mut profiles = profiles?;
        let images = self.images(|_| true);
        self.collector.keep_timelines(&images);
        for profile in &mut profiles {
            self.growth.measure(profile);
            if profile.instants_ns.is_empty() {
                self.histories.glance(profile);
            } else {
                self.histories.judge(profile, pace);
            }
            unjudge_estimates(profile);
        }
        self.measure_cost(&mut profiles);
        Ok(profiles)
    }

    /// Whether a view's look shall tell apart what an image has allocated since the one before.
    fn tells_of_past(&self, image: ImageId, now_ns: u64) -> bool {
        let least = nanoseconds(self.coverage.settle / LOOKS_IN_SETTLE);
        let before = self.collector.last_divided_ns(image);
        self.collector.is_due(image, now_ns) && before.is_none_or(|at| now_ns.saturating_sub(at) >= least)
    }

    /// Looks at what lives, for the sake of later verdicts, in processes whose past is told apart by that; whether there were
    /// any. The longer a process has been watched, the rarer that is.
    pub(in crate::cli) fn look_at_past(&mut self) -> Result<bool, Failure> {
        let now_ns = now_ns();
        let known: BTreeSet<_> = self.images(|_| true).into_iter().collect();
        let (due, resting): (BTreeSet<_>, _) =
            known.into_iter().partition(|image| self.collector.is_due(*image, now_ns));
        if due.is_empty() {
            return Ok(false);
        }
        for profile in self.take_but(&resting)? {
            self.histories.remember(&profile);
        }
        Ok(true)
    }

    /// Takes profiles of all but these images, at an instant that their pasts are told by. An `exec` in between would leave
    /// stacks of the new program to the names of the old one's files: then profiles are taken again.
    fn take_but(&mut self, resting: &BTreeSet<ImageId>) -> Result<Vec<Profile>, Failure> {
        const ATTEMPTS: u32 = 3;
        self.look_at_all()?;
        self.await_perf_maps();
        let is_wanted = |watched: &Watched| !resting.contains(&watched.image);
        let mut profiles = self.take(is_wanted)?;
        for _ in 1..ATTEMPTS {
            if self.processes.values().all(|watched| self.is_current(watched)) {
                break;
            }
            self.look_at_all()?;
            profiles = self.take(is_wanted)?;
        }
        if let Some(taken_ns) = profiles.iter().find_map(|profile| profile.instants_ns.last()) {
            let images = self.images(is_wanted);
            self.collector.divide_at(&images, *taken_ns);
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

    /// Closes the books of processes that have ended: their last profiles.
    pub(in crate::cli) fn close(&mut self) -> Result<Vec<Profile>, Failure> {
        let ended = |watched: &Watched| watched.ended.is_some();
        let slots: Vec<_> =
            self.processes.iter().filter(|(_, watched)| ended(watched)).map(|(slot, _)| *slot).collect();
        if slots.is_empty() {
            return Ok(Vec::new());
        }
        let mut profiles = self.take(ended)?;
        for profile in &mut profiles {
            self.growth.measure(profile);
            self.growth.forget(profile);
            self.histories.judge(profile, Pace::Thorough);
            self.histories.forget(profile);
            unjudge_estimates(profile);
        }
        self.measure_cost(&mut profiles);
        slots.into_iter().try_for_each(|slot| self.let_go(slot))?;
        Ok(profiles)
    }

    fn take(&mut self, which: impl Fn(&Watched) -> bool) -> Result<Vec<Profile>, Failure> {
        let images = self.images(&which);
        let Self { processes, collector, attachment, names, threads, mappings, allocators, coverage, .. } =
            self;
        mappings.receive();
        for watched in processes.values_mut().filter(|watched| which(watched)) {
            watched.spending.look(watched.pid());
        }
        let windows = collector.windows().filter(|windows| !windows.is_whole());
        let windows = windows.map(|windows| InWindows {
            windows: u32::try_from(windows.len()).unwrap_or(u32::MAX),
            ..InWindows::default()
        });
        let coverage = Coverage { windows, ..*coverage };
        let mut snapshots = collector.snapshots(attachment, &images, view(coverage))?;
        let now = (Timestamp::now(), now_ns());
        let profiles = processes.values_mut().filter_map(|watched| {
            let mut snapshot = snapshots.remove(&watched.image)?;
            let exe = &watched.process.exe;
            mappings
                .add_to(&mut snapshot, collector, |stack| allocators.are_in(stack, &watched.modules, exe));
            name_generated(names, collector, watched, Urgency::Now);
            watched.complete(&mut snapshot.counters);
            if coverage.windows.is_some() {
                // Blocks that were not counted are freed, and others that were are freed without being seen: their addresses
                // come again. Calls that are in progress when probes are put in or taken out are seen by half, after or before
                // the window.
                let seen_by_half =
                    [Counter::UnknownFree, Counter::MissedFree, Counter::StalePending, Counter::MutedCall];
                for counter in seen_by_half {
                    snapshot.counters.insert(counter, 0);
                }
            }
            if !allocators.are_c_libraries(&watched.modules, &watched.process.exe) {
                // Whoever freed these may have been the program.
                snapshot.counters.remove(&Counter::FreedByCLibrary);
            }
            if coverage.threads && watched.ended.is_none() {
                collector.rename_threads(watched.image, name_of(watched.pid()));
            }
            let name = |row| {
                let mut stack = names.name(row, &watched.modules, || collector.stack(row).cloned());
                if let Some(thread) = collector.thread(watched.image, row) {
                    threads.put_below(row, thread, &mut stack);
                }
                stack
            };
            let span = watched.span(snapshot.taken_ns, now);
            let mut profile = Profile::build(snapshot, watched.info(), span, coverage, name);
            profile.ended.clone_from(&watched.ended);
            profile.memory = MemoryLimit::of(watched.pid()).map(memory);
            Some(profile)
        });
        Ok(profiles.collect())
    }
}

/// How much memory a process can have.
const fn memory(MemoryLimit { is_cgroup, limit, available }: MemoryLimit) -> Memory {
    Memory { kind: if is_cgroup { MemoryKind::Cgroup } else { MemoryKind::Ram }, limit, available }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What a snapshot has to show for this coverage.
fn view(coverage: Coverage) -> View {
    let older_ns = nanoseconds(coverage.older);
    View { older_ns, blocks_per_stack: coverage.blocks_per_stack }
}
