//! The profiled processes: takes them in, keeps in step with them, and closes their books.
//!
//! In: processes by PID, commands, and what the kernel side tells of others. Out: profiles.

mod ahead;
mod allocators;
mod asked;
mod awaited;
mod children;
mod code;
mod dead;
mod earlier;
mod entry;
mod image_files;
mod jvm;
mod keep_up;
mod learn;
mod mappings;
mod overhead;
mod perf_map;
mod process;
mod profiles;
mod programs;
mod threads;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use jjleak_common::process::{ImageId, ProcessSlot};
use jjleak_common::unwind::CodeSeen;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Failure;
use super::choice::Choice;
use crate::analyze::{Growth, Histories};
use crate::attach::{Attachment, BegunProgram, Drained, Following, MappedCode, Settings, Told};
use crate::cache_folder::CacheFolder;
use crate::collect::Collector;
use crate::cost::{Bound, Meter};
use crate::processes::{Mapping, ModuleFiles, Pid, Process};
use crate::profile::Coverage;
use crate::symbolize::StackNames;
use ahead::LookAhead;
use allocators::Allocators;
use awaited::JvmLibraries;
use children::Children;
use code::{CodeFollower, cache_folder};
use dead::Dead;
use earlier::{EarlierRuns, Program};
use mappings::Mappings;
use process::Watched;
use threads::ThreadRoots;

pub(super) use wanted::Wanted;

/// Processes that have ended may take up to this part of the table until the next regular clearing.
const CROWDED: usize = 4;

/// What a process maps.
struct Look {
    mappings: Vec<Mapping>,
    /// What there was to see.
    seen: CodeSeen,
    /// When it was taken, also in nanoseconds of `CLOCK_MONOTONIC`.
    at: Instant,
    at_ns: u64,
}

/// The profiled processes.
pub(super) struct Watch {
    attachment: Attachment,
    ahead: LookAhead,
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
    /// Processes that ran already and have not been attached to yet.
    to_attach: VecDeque<Process>,
    /// Whether JVMs are asked to write down the names of their code.
    asks_for_perf_maps: bool,
    processes: BTreeMap<ProcessSlot, Watched>,
    children: Children,
    dead: Dead,
    /// What images map that have not been looked at yet.
    learned: HashMap<ImageId, Vec<MappedCode>>,
    /// Programs that have begun, and have not been judged yet.
    begun: Vec<BegunProgram>,
    /// The command that jjleak has started, if it is known again.
    started: Option<Program>,
    /// Processes that have ended, as they do.
    endings: (UnboundedSender<ProcessSlot>, UnboundedReceiver<ProcessSlot>),
}

impl Watch {
    /// Loads the BPF programs, and meanwhile looks into what these processes map, which are to be attached to. Needs a running
    /// tokio runtime.
    pub(super) fn new(
        settings: Settings,
        coverage: Coverage,
        wanted: Wanted,
        choice: Choice,
        pids: &[Pid],
    ) -> Result<Self, Failure> {
        let (kept, choice) = (cache_folder().map(CacheFolder::new), Arc::new(choice));
        let ahead = LookAhead::begin(pids, &choice, kept.as_ref());
        let mut attachment = Attachment::load(settings)?;
        // Whoever runs the file's code has probes that are in it, filtered or not.
        if settings.following != Following::Nobody {
            attachment.try_returns()?;
        }
        let mappings = Mappings::follow(settings.mappings, settings.sizes, &mut attachment)?;
        Ok(Self {
            collector: Collector::new(&mut attachment)?,
            mappings,
            meter: Meter::new(&attachment),
            bound: None,
            attachment,
            ahead,
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
            to_attach: VecDeque::new(),
            asks_for_perf_maps: false,
            processes: BTreeMap::new(),
            children: Children::default(),
            dead: Dead::default(),
            learned: HashMap::new(),
            begun: Vec::new(),
            started: None,
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
            self.note_reported(code);
        }
        self.begun.extend(told.programs);
        self.look_at(&told.slots)
    }

    /// Looks at the processes in these slots, and takes in those that are new; whether anything was.
    fn look_at(&mut self, slots: &BTreeSet<ProcessSlot>) -> Result<bool, Failure> {
        let mut news = self.adopt_new()?;
        for slot in slots {
            news |= self.keep_up(*slot)?;
        }
        self.judge_programs();
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
        self.forget_reported();
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
        // What a child maps, it is likely to map again when the command is started the next time.
        if let Some(program) = watched.started.as_ref().or(self.started.as_ref()) {
            self.earlier.add(program, watched.modules.iter().map(|(_, module)| module.path.clone()));
        }
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

fn executable(mappings: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    mappings.iter().filter(|mapping| mapping.executable)
}
