//! The profiled processes: adds them, keeps their state up to date, and takes their last profiles.
//!
//! In: processes by PID, commands, and hints from the kernel side. Out: profiles.
//!
//! A process is updated from a *scan* of its mappings.

mod accounting;
mod agent_request;
mod allocators;
mod attach;
mod children;
mod code;
mod code_history;
mod earlier_runs;
mod ended;
mod eviction;
mod file_log;
mod files;
mod image_files;
mod java_heap;
mod jvm;
mod jvm_start;
mod leading_frames;
mod lifecycle;
mod mappings;
mod missed_files;
mod overhead;
mod perf_map;
mod perf_map_request;
mod process;
mod profiles;
mod programs;
mod recent_rows;
mod search_ahead;
mod stacks;
mod threads;
mod touched;
mod unfinished;
mod update;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use jjleak_common::process::ProcessSlot;
use jjleak_common::unwind::CodeSeen;

use crate::attach::{Attachment, Drained, Following, PendingHints, Scope, Settings, now_ns};
use crate::cache_folder::CacheFolder;
use crate::collect::Collector;
use crate::error_chain::chain;
use crate::jcmd::Agent;
use crate::processes::{Mapping, Module, Pid, Wanted, living_thread};
use crate::profile::Coverage;
use crate::session::{AllocatorChoice, Error, Listing, Probed};
use accounting::Accounting;
use ended::Dead;
use files::Files;
use lifecycle::{Lifecycle, to_reserve};
use process::Watched;
use search_ahead::SearchAhead;
use stacks::Stacks;

/// Inverse of the part of the process table that ended processes may fill until the next regular clearing.
const CROWDED: usize = 4;

/// The result of a scan of a process's mappings.
struct Scan {
    mappings: Vec<Mapping>,
    /// State of the process's code at the start of the scan.
    seen: CodeSeen,
    /// Start of the scan, below also in nanoseconds of `CLOCK_MONOTONIC`.
    at: Instant,
    at_ns: u64,
}

/// The profiled processes.
pub(super) struct Watch {
    attachment: Attachment,
    processes: BTreeMap<ProcessSlot, Watched>,
    lifecycle: Lifecycle,
    files: Files,
    stacks: Stacks,
    accounting: Accounting,
    /// Library that the processes have loaded on request.
    agent: Option<Agent>,
}

impl Watch {
    /// Loads the BPF programs, and meanwhile analyzes the files of processes to be attached to. Needs a running tokio
    /// runtime.
    pub(super) fn new(
        settings: Settings,
        coverage: Coverage,
        listing: Listing,
        wanted: Wanted,
        choice: AllocatorChoice,
        pids: &[Pid],
    ) -> Result<Self, Error> {
        let (cache, choice) = (CacheFolder::of_user(), Arc::new(choice));
        let ahead = SearchAhead::begin(pids, &choice, cache.as_ref());
        let settings = Settings { reserved: to_reserve(&wanted, &settings), ..settings };
        let mut attachment = Attachment::load(settings)?;
        let files = Files::new(choice, ahead, cache.clone());
        // Probes of a file apply to every process that runs its code, including those with a system call filter.
        if settings.following != Following::Nobody {
            attachment.try_returns()?;
        }
        Ok(Self {
            accounting: Accounting::new(&settings, coverage, &mut attachment)?,
            attachment,
            processes: BTreeMap::new(),
            lifecycle: Lifecycle::new(wanted, &settings),
            files,
            stacks: Stacks::new(cache, listing),
            agent: None,
        })
    }

    pub(super) const fn attachment_mut(&mut self) -> &mut Attachment {
        &mut self.attachment
    }

    pub(super) const fn collector_mut(&mut self) -> &mut Collector {
        &mut self.accounting.collector
    }

    /// A descriptor that becomes readable when memory was mapped or unmapped, or touched, or an object announced in a Java heap; none if
    /// none of these is followed.
    pub(super) fn memory_waiting(&self) -> Option<RawFd> {
        let Accounting { mappings, touched, java_heap, .. } = &self.accounting;
        mappings.waiting().or_else(|| touched.waiting()).or_else(|| java_heap.waiting())
    }

    /// Applies events of mapping, unmapping and touching memory, and of objects in Java heaps.
    pub(super) fn receive_memory(&mut self) -> Drained {
        let Accounting { mappings, touched, java_heap, .. } = &mut self.accounting;
        let all = [mappings.receive(), touched.receive(), java_heap.receive()];
        if all.contains(&Drained::Enough) { Drained::Enough } else { Drained::Empty }
    }

    /// Takes the records of mapped files.
    fn receive_files(&mut self) {
        self.files.log.receive(now_ns());
    }

    /// Waits until a process has ended, and meanwhile takes records of mapped files before there is no room for more.
    /// Cancel-safe.
    pub(super) async fn next_ending(&mut self) {
        loop {
            tokio::select! {
                // The channel never closes, because `self` keeps the sender.
                Some(slot) = self.lifecycle.endings.1.recv() => {
                    self.note_ending(slot);
                    break;
                }
                () = self.files.log.wait() => self.receive_files(),
            }
        }
        while let Ok(slot) = self.lifecycle.endings.1.try_recv() {
            self.note_ending(slot);
        }
    }

    /// Notes the end of the process in this slot. By now the slot may hold another process, so the process itself is
    /// checked.
    fn note_ending(&mut self, slot: ProcessSlot) {
        if let Some(watched) = self.processes.get_mut(&slot) {
            watched.runs();
        }
    }

    /// Applies hints from the kernel side. Returns true if anything was new.
    pub(super) fn follow(&mut self, hints: PendingHints) -> Result<bool, Error> {
        for code in hints.code {
            self.note_reported(code);
        }
        self.lifecycle.begun.extend(hints.programs);
        let news = self.update(&hints.slots)?;
        if self.accounting.collector.has_many_unfinished() {
            self.finish_stacks();
        }
        Ok(news)
    }

    /// Updates the processes in these slots, and adds new processes. Returns true if anything was new.
    fn update(&mut self, slots: &BTreeSet<ProcessSlot>) -> Result<bool, Error> {
        self.receive_files();
        let mut news = self.adopt_new()?;
        for slot in slots {
            news |= self.update_one(*slot)?;
        }
        self.judge_programs();
        Ok(news)
    }

    /// Updates all processes, and clears the entries of those that are gone.
    pub(super) fn update_all(&mut self) -> Result<(), Error> {
        let slots = self.processes.iter().filter(|(_, watched)| !self.is_closed(watched));
        let slots: BTreeSet<_> = slots.map(|(slot, _)| *slot).collect();
        self.update(&slots)?;
        self.finish_stacks();
        self.spare_children();
        self.name_new();
        self.ask_jvms();
        self.tell_agents();
        self.accounting.meter.tick(&self.attachment);
        self.adjust_objects()?;
        self.receive_memory();
        let images = self.attachment.processes().images();
        self.accounting.mappings.forget(&images);
        self.accounting.touched.forget(&images);
        self.accounting.java_heap.forget(&images);
        self.forget_reported();
        let pids: HashSet<u32> =
            self.processes.values().map(|watched| watched.pid().number().get()).collect();
        self.files.log.forget_others(now_ns(), |pid| pids.contains(&pid));
        let rows = self.lifecycle.dead.sweep(&mut self.attachment, &mut self.accounting.collector)?;
        self.stacks.names.forget(&rows);
        self.stacks.threads.forget(&rows);
        self.processes.values_mut().for_each(|watched| watched.perf_map.forget(&rows));
        self.forget_evicted();
        self.make_room_for_stacks()
    }

    /// Returns true if nothing more can become known of a process: it has ended, and its last program was searched for missed files.
    fn is_closed(&self, watched: &Watched) -> bool {
        watched.ended.is_some()
            && watched.closed == Some(watched.image)
            && self.attachment.processes().image(watched.slot()).is_ok_and(|image| image == watched.image)
    }

    fn is_counted(&self, watched: &Watched) -> bool {
        watched.modules.iter().any(|(_, module)| self.files.allocators.is_profiled(module))
    }

    /// Stops accounting for a process.
    fn let_go(&mut self, slot: ProcessSlot) -> Result<(), Error> {
        if let Some(watched) = self.processes.remove(&slot) {
            self.note_mapped(&watched);
            self.attachment.processes_mut().disarm(slot)?;
            self.attachment.release_code(slot);
            self.files.allocators.forget(slot);
            self.lifecycle.dead.add_process(slot);
        }
        Ok(())
    }

    /// Prepares for the files that a process is likely to map, so that stacks lead through them from their first
    /// instruction on. Only for processes started to be profiled: for others, the preparation costs more than it
    /// saves.
    fn expect_code(&mut self, watched: &mut Watched) {
        let folders = watched.modules.folders().len();
        if watched.folders == folders {
            return;
        }
        watched.folders = folders;
        let earlier: Vec<_> =
            watched.prepared_as.iter().flat_map(|program| self.files.earlier.of(program)).collect();
        let Watched { process, modules, .. } = &*watched;
        for module in self.files.open.expected(process.pid, &process.exe, modules, &earlier) {
            self.stacks.code.prepare(&module, &mut self.attachment);
            self.stacks.jvm_libraries.prepare(&module);
            self.expect_java_heap(watched, &module);
            // Preparing takes time, and the process runs on meanwhile.
            self.accounting.collector.receive_frames();
        }
    }

    /// Probes a JVM's library before the process maps it: it allocates in its heap from its first milliseconds on.
    fn expect_java_heap(&mut self, watched: &Watched, module: &Rc<Module>) {
        if self.files.allocators.choice().probed != Probed::JavaHeap {
            return;
        }
        let scope = match (self.lifecycle.following, living_thread(watched.pid())) {
            (Following::Nobody, Some(thread)) => Scope::Process { slot: watched.slot(), thread },
            (Following::Nobody, None) => return,
            _ => Scope::File,
        };
        let Self { files, stacks, attachment, .. } = self;
        if let Err(error) = files.allocators.attach(module, scope, &mut stacks.names, attachment) {
            tracing::debug!(error = chain(&error), "cannot probe {} ahead", module.path.display());
        }
    }

    /// Saves the files that a program has mapped, for its next start.
    fn note_mapped(&self, watched: &Watched) {
        // Files of a child count for the command, which is likely to start the child again.
        if let Some(program) = watched.started.as_ref().or(self.lifecycle.started.as_ref()) {
            self.files.earlier.add(program, watched.modules.iter().map(|(_, module)| module.path.clone()));
        }
    }

    /// Returns true if no process is profiled, and none can be added.
    pub(super) fn is_over(&self) -> bool {
        self.processes.is_empty() && self.lifecycle.following != Following::Everyone
    }

    /// Returns true if ended processes fill so much of the table that there may soon be no slot for others.
    pub(super) fn is_crowded(&self) -> bool {
        let ended = self.processes.values().filter(|watched| watched.ended.is_some()).count();
        ended + self.lifecycle.dead.slots() > self.lifecycle.max_processes / CROWDED
            || Dead::is_urgent(&self.attachment)
    }

    /// Returns true if all known processes have ended.
    pub(super) fn have_all_ended(&self) -> bool {
        self.processes.values().all(|watched| watched.ended.is_some())
    }

    /// Which processes are followed, besides the named ones.
    pub(super) const fn following(&self) -> Following {
        self.lifecycle.following
    }

    /// Description of what is counted.
    pub(super) fn describe(&self) -> String {
        let describe = |watched: &Watched| {
            let counted = if self.accounting.touched.is_followed() {
                "page faults".to_owned()
            } else if self.accounting.java_heap.is_followed() {
                "objects in the Java heap".to_owned()
            } else if self.is_counted(watched) {
                self.files.allocators.describe(&watched.modules)
            } else {
                "no allocator yet".to_owned()
            };
            format!("{} (pid {}): {counted}", watched.process.comm, watched.pid())
        };
        match self.lifecycle.following {
            Following::Everyone => format!("{} processes", self.processes.len()),
            _ => self.processes.values().map(describe).collect::<Vec<_>>().join("; "),
        }
    }

    /// Commands started by jjleak that still run.
    pub(super) fn commands(&self) -> impl Iterator<Item = (&str, Pid)> {
        let started = self.processes.values().filter(|watched| watched.command.is_some());
        started.map(|watched| (watched.process.comm.as_str(), watched.pid()))
    }

    /// Stops counting. Dropping it detaches the probes.
    pub(super) fn disarm(&mut self) -> Result<(), Error> {
        self.processes.values().for_each(|watched| self.note_mapped(watched));
        Ok(self.attachment.disarm()?)
    }
}

fn executable(mappings: &[Mapping]) -> impl Iterator<Item = &Mapping> {
    mappings.iter().filter(|mapping| mapping.executable)
}
