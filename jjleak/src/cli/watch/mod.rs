//! The profiled processes: takes them in, keeps in step with them, and closes their books.
//!
//! In: processes by PID, commands, and what the kernel side tells of others. Out: profiles.

mod allocators;
mod asked;
mod awaited;
mod children;
mod code;
mod dead;
mod earlier;
mod entry;
mod jvm;
mod keep_up;
mod mappings;
mod overhead;
mod perf_map;
mod process;
mod threads;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::RawFd;
use std::time::Instant;

use jiff::Timestamp;
use jjleak_common::counter::Counter;
use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::unwind::CodeSeen;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Failure;
use super::choice::Choice;
use crate::analyze::{Growth, Histories, Pace};
use crate::attach::{Attachment, Drained, Following, MappedCode, Settings, Told, now_ns};
use crate::collect::{Collector, View};
use crate::cost::{Bound, Meter};
use crate::kept::KeptFiles;
use crate::processes::{Mapping, MemoryLimit, ModuleFiles, Pid};
use crate::profile::{Coverage, InWindows, Memory, MemoryKind, Profile};
use crate::symbolize::StackNames;
use allocators::Allocators;
use awaited::JvmLibraries;
use children::Children;
use code::{CodeFollower, cache_folder};
use dead::Dead;
use earlier::EarlierRuns;
use jvm::name_generated;
use mappings::Mappings;
use overhead::unjudge_estimates;
use perf_map::Urgency;
use process::Watched;
use threads::{ThreadRoots, name_of};

pub(super) use wanted::Wanted;

/// Processes that have ended may take up to this part of the table until the next regular clearing.
const CROWDED: usize = 4;

/// What a process maps.
struct Look {
    mappings: Vec<Mapping>,
    /// What there was to see.
    seen: CodeSeen,
}

/// The profiled processes.
pub(super) struct Watch {
    attachment: Attachment,
    collector: Collector,
    mappings: Mappings,
    files: ModuleFiles,
    allocators: Allocators,
    code: CodeFollower,
    jvm_libraries: JvmLibraries,
    /// Until when nothing is looked at only because a JVM is starting.
    rested_from_starting: Option<Instant>,
    earlier: EarlierRuns,
    names: StackNames,
    threads: ThreadRoots,
    following: Following,
    max_processes: usize,
    coverage: Coverage,
    growth: Growth,
    histories: Histories,
    meter: Meter,
    /// Keeps the cost below a bound, if there is to be one.
    bound: Option<Bound>,
    wanted: Wanted,
    /// Whether JVMs are asked to write down the names of their code.
    asks_for_perf_maps: bool,
    processes: BTreeMap<ProcessSlot, Watched>,
    children: Children,
    dead: Dead,
    /// What images map that have not been looked at yet.
    learned: HashMap<ImageId, Vec<MappedCode>>,
    /// Processes that have ended, as they do.
    endings: (UnboundedSender<ProcessSlot>, UnboundedReceiver<ProcessSlot>),
}

impl Watch {
    /// Loads the BPF programs. Needs a running tokio runtime.
    pub(super) fn new(
        settings: Settings,
        coverage: Coverage,
        wanted: Wanted,
        choice: Choice,
    ) -> Result<Self, Failure> {
        let mut attachment = Attachment::load(settings)?;
        let kept = KeptFiles::new(cache_folder());
        let mappings = Mappings::follow(settings.mappings, settings.sizes, &mut attachment)?;
        Ok(Self {
            collector: Collector::new(&mut attachment)?,
            mappings,
            meter: Meter::new(&attachment),
            bound: None,
            attachment,
            files: ModuleFiles::default(),
            allocators: Allocators::new(choice),
            code: CodeFollower::new(kept.clone()),
            jvm_libraries: JvmLibraries::default(),
            rested_from_starting: None,
            earlier: EarlierRuns::new(kept),
            names: StackNames::default(),
            threads: ThreadRoots::default(),
            following: settings.following,
            max_processes: settings.capacity.processes as usize,
            coverage,
            growth: Growth::default(),
            histories: Histories::default(),
            wanted,
            asks_for_perf_maps: false,
            processes: BTreeMap::new(),
            children: Children::default(),
            dead: Dead::default(),
            learned: HashMap::new(),
            endings: unbounded_channel(),
        })
    }

    pub(super) const fn attachment_mut(&mut self) -> &mut Attachment {
        &mut self.attachment
    }

    pub(super) const fn collector_mut(&mut self) -> &mut Collector {
        &mut self.collector
    }

    /// A descriptor that is readable when memory was mapped or unmapped; none when that is not followed.
    pub(super) fn mappings_waiting(&self) -> Option<RawFd> {
        self.mappings.waiting()
    }

    /// Takes in what was mapped and unmapped.
    pub(super) fn receive_mappings(&mut self) -> Drained {
        self.mappings.receive()
    }

    /// Waits until a process has ended. Can be dropped and called again.
    pub(super) async fn next_ending(&mut self) {
        // The sender is kept, so that the channel is never closed.
        if let Some(slot) = self.endings.1.recv().await {
            self.note_ending(slot);
        }
        while let Ok(slot) = self.endings.1.try_recv() {
            self.note_ending(slot);
        }
    }

    /// The process that was in this slot has ended; by now another one can be there.
    fn note_ending(&mut self, slot: ProcessSlot) {
        if let Some(watched) = self.processes.get_mut(&slot) {
            watched.runs();
        }
    }

    /// Takes in what the kernel side hints at; whether anything was new.
    pub(super) fn follow(&mut self, told: Told) -> Result<bool, Failure> {
        for code in told.code {
            self.learned.entry(code.image).or_default().push(code);
        }
        self.look_at(&told.slots)
    }

    /// Looks at the processes in these slots, and takes in those that are new; whether anything was.
    fn look_at(&mut self, slots: &BTreeSet<ProcessSlot>) -> Result<bool, Failure> {
        let mut news = self.adopt_new()?;
        for slot in slots {
            news |= self.keep_up(*slot)?;
        }
        Ok(news)
    }

    /// Looks at all processes, and throws away what the dead ones have left.
    pub(super) fn look_at_all(&mut self) -> Result<(), Failure> {
        let slots: BTreeSet<_> = self.processes.keys().copied().collect();
        self.look_at(&slots)?;
        self.spare_children();
        self.name_new();
        self.ask_jvms();
        self.meter.tick(&self.attachment);
        self.mappings.receive();
        let images = self.attachment.processes().images();
        self.mappings.forget(&images);
        self.learned.retain(|image, _| images.is_current(*image));
        let rows = self.dead.sweep(&mut self.attachment, &mut self.collector)?;
        self.names.forget(&rows);
        self.threads.forget(&rows);
        self.processes.values_mut().for_each(|watched| watched.perf_map.forget(&rows));
        Ok(())
    }

    fn is_counted(&self, watched: &Watched) -> bool {
        watched.modules.iter().any(|(_, module)| self.allocators.is_profiled(module))
    }

    /// Stops accounting a process.
    fn let_go(&mut self, slot: ProcessSlot) -> Result<(), Failure> {
        if let Some(watched) = self.processes.remove(&slot) {
            self.note_mapped(&watched);
            self.attachment.processes_mut().disarm(slot)?;
            self.attachment.forget_generated(slot);
            self.allocators.forget(slot);
            self.dead.add_process(slot);
        }
        Ok(())
    }

    /// Prepares for the files that a process is likely to map, so that stacks lead through them from the first instruction
    /// on. Such a process shall be one that was started for the sake of its profile: for others, what they load counts
    /// less than what that costs.
    fn expect_code(&mut self, watched: &mut Watched) {
        let folders = watched.modules.folders().len();
        if watched.folders == folders {
            return;
        }
        watched.folders = folders;
        let earlier = watched.started.as_ref().map(|program| self.earlier.of(program)).unwrap_or_default();
        let Watched { process, modules, .. } = &*watched;
        for module in self.files.expected(process.pid, &process.exe, modules, &earlier) {
            self.code.expect(&module, &mut self.attachment);
            self.jvm_libraries.expect(&module);
            // That takes its time, and meanwhile the process runs on.
            self.collector.receive_frames();
        }
    }

    /// What a program has mapped is of use when it is started the next time.
    fn note_mapped(&self, watched: &Watched) {
        if let Some(program) = &watched.started {
            self.earlier.add(program, &watched.modules);
        }
    }

    /// Takes profiles of all processes.
    pub(super) fn profiles(&mut self, pace: Pace) -> Result<Vec<Profile>, Failure> {
        let mut profiles = self.take_but(&BTreeSet::new())?;
        let images = self.images(|_| true);
        self.collector.keep_timelines(&images);
        for profile in &mut profiles {
            self.growth.measure(profile);
            self.histories.judge(profile, pace);
            unjudge_estimates(profile);
        }
        self.measure_cost(&mut profiles);
        Ok(profiles)
    }

    /// Looks at what lives, for the sake of later verdicts, in processes whose past is told apart by that; whether there were
    /// any. The longer a process has been watched, the rarer that is.
    pub(super) fn look_at_past(&mut self) -> Result<bool, Failure> {
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
        if let Some(taken_ns) = profiles.first().and_then(|profile| profile.instants_ns.last()) {
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
    pub(super) fn close(&mut self) -> Result<Vec<Profile>, Failure> {
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
            let mut profile = Profile::build(
                &snapshot,
                watched.info(),
                watched.span(snapshot.taken_ns, now),
                coverage,
                name,
            );
            profile.ended.clone_from(&watched.ended);
            profile.memory = MemoryLimit::of(watched.pid()).map(memory);
            Some(profile)
        });
        Ok(profiles.collect())
    }

    /// Whether there is nobody left to profile, and nobody to come.
    pub(super) fn is_over(&self) -> bool {
        self.processes.is_empty() && self.following != Following::Everyone
    }

    /// Whether processes that have ended take so much of the table that others may soon find no place.
    pub(super) fn is_crowded(&self) -> bool {
        let ended = self.processes.values().filter(|watched| watched.ended.is_some()).count();
        ended + self.dead.slots() > self.max_processes / CROWDED || Dead::is_urgent(&self.attachment)
    }

    /// Whether all that are known have ended.
    pub(super) fn have_all_ended(&self) -> bool {
        self.processes.values().all(|watched| watched.ended.is_some())
    }

    pub(super) fn follows_everyone(&self) -> bool {
        self.following == Following::Everyone
    }

    /// Whether more processes than those that were named can be among the profiled ones.
    pub(super) fn follows(&self) -> bool {
        self.following != Following::Nobody
    }

    /// What is being counted, for the user.
    pub(super) fn describe(&self) -> String {
        let describe = |watched: &Watched| {
            let counted = self.allocators.describe(&watched.modules);
            format!("{} (pid {}): {counted}", watched.process.comm, watched.pid())
        };
        match self.following {
            Following::Everyone => format!("{} processes", self.processes.len()),
            _ => self.processes.values().map(describe).collect::<Vec<_>>().join("; "),
        }
    }

    /// Who runs on, for the user; nothing of processes that were not started by jjleak.
    pub(super) fn commands(&self) -> impl Iterator<Item = (&str, Pid)> {
        let started = self.processes.values().filter(|watched| watched.command.is_some());
        started.map(|watched| (watched.process.comm.as_str(), watched.pid()))
    }

    /// Stops counting. Dropping it detaches the probes.
    pub(super) fn disarm(&mut self) -> Result<(), Failure> {
        self.processes.values().for_each(|watched| self.note_mapped(watched));
        Ok(self.attachment.disarm()?)
    }
}

/// How much memory a process can have.
const fn memory(MemoryLimit { is_cgroup, limit, available }: MemoryLimit) -> Memory {
    Memory { kind: if is_cgroup { MemoryKind::Cgroup } else { MemoryKind::Ram }, limit, available }
}

/// What a snapshot has to show for this coverage.
fn view(coverage: Coverage) -> View {
    let older_ns = u64::try_from(coverage.older.as_nanos()).unwrap_or(u64::MAX);
    View { older_ns, blocks_per_stack: coverage.blocks_per_stack }
}

fn executable(mappings: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    mappings.iter().filter(|mapping| mapping.executable)
}
