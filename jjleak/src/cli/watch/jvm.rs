//! JVMs: where they generate code, and what it is.

use std::time::Instant;

use jjleak_common::jvm::{CodeCache, CodeHeap, Continuations};
use jjleak_common::process::ProcessSlot;

use super::awaited::{Awaited, JvmLibraries, LEAST_REST, Outcome};
use super::perf_map::{Urgency, name_by_perf_map};
use super::process::Watched;
use super::{Look, Watch};
use crate::cli::Failure;
use crate::collect::Collector;
use crate::jvm::{self, Jvm, ProcessMemory};
use crate::processes::{FileVersion, Mapping, ModuleTable, Pid, living_thread};
use crate::symbolize::{JavaNames, KnownJava, StackNames};

/// What is known of the JVM in a process, if there is one.
#[derive(Default)]
pub(super) struct WatchedJvm {
    stage: Stage,
    /// Where its code is; empty before it has any.
    heaps: Vec<CodeHeap>,
    /// What the kernel side has been told of it.
    told: CodeCache,
    names: KnownJava,
}

/// How far a JVM is with being known.
#[derive(Default)]
enum Stage {
    /// The process maps none.
    #[default]
    None,
    /// It is just starting, as far as can be told.
    Awaited(Box<Awaited>),
    /// It can be looked into.
    Known(Box<Jvm<ProcessMemory>>),
    /// This one cannot, and will not.
    Unknown(FileVersion),
}

/// What a look at a JVM leads to.
enum News {
    /// Nothing has changed.
    Nothing,
    /// This is where and how it generates code.
    Code(Box<CodeCache>),
    /// It is not known, nor to be expected, what its code is.
    Unknown,
}

impl WatchedJvm {
    /// Whether there is one.
    pub(super) fn is_known(&self) -> bool {
        match &self.stage {
            Stage::Known(_) => true,
            Stage::Awaited(awaited) => awaited.has_described_itself(),
            Stage::None | Stage::Unknown(_) => false,
        }
    }

    /// Whether there is a JVM of which it is to be expected that it soon tells what its code is, and which has not: nobody can
    /// say how to unwind through that code then.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(&self.stage, Stage::Awaited(awaited) if awaited.is_starting())
    }

    /// Frames that could not be named.
    pub(super) const fn unnamed(&self) -> u64 {
        self.names.unnamed
    }

    fn jvm(&self) -> Option<&Jvm<ProcessMemory>> {
        if let Stage::Known(jvm) = &self.stage { Some(jvm) } else { None }
    }

    /// Takes notice of a JVM's library.
    pub(super) fn notice(&mut self, mappings: &[Mapping], modules: &ModuleTable) {
        let given_up = match self.stage {
            Stage::None => None,
            // It may only have led to the JVM.
            Stage::Unknown(library) => Some(library),
            Stage::Awaited(_) | Stage::Known(_) => return,
        };
        if let Some((library, bias)) = jvm::library(mappings, modules)
            && Some(library.version) != given_up
        {
            self.stage = Stage::Awaited(Box::new(Awaited::new(library, bias)));
        }
    }

    /// Where code is, if that is another place than the last time: it is settled while the JVM starts.
    fn look(&mut self, thread: Pid, libraries: &mut JvmLibraries) -> News {
        if let Stage::Awaited(awaited) = &mut self.stage {
            match awaited.look(thread, libraries) {
                Outcome::Awaited => return News::Nothing,
                // It is known where it will be, should it start after all.
                Outcome::Stalled => return News::Unknown,
                Outcome::Unknown => {
                    self.stage = Stage::Unknown(awaited.library());
                    return News::Unknown;
                }
                Outcome::Known(jvm) => self.stage = Stage::Known(jvm),
            }
        }
        self.look_for_code().map_or(News::Nothing, |code| News::Code(Box::new(code)))
    }

    /// When to look at it without being asked to.
    fn next_look(&self) -> Option<Instant> {
        if let Stage::Awaited(awaited) = &self.stage { awaited.next_look() } else { None }
    }

    /// Whether an awaited JVM has come so far that it can be looked into, or never will. Costs next to nothing.
    fn is_settled(&mut self, pid: Pid, libraries: &mut JvmLibraries) -> bool {
        match &mut self.stage {
            Stage::Awaited(awaited) => awaited.is_settled(|| living_thread(pid), libraries),
            _ => false,
        }
    }

    fn look_for_code(&mut self) -> Option<CodeCache> {
        let jvm = self.jvm()?;
        let heaps = jvm.heaps().ok()?;
        if heaps == self.heaps {
            return self.continuations();
        }
        let cache = jvm.code_cache(&heaps);
        self.heaps = heaps;
        let unknown = |error: &jvm::Error| {
            tracing::warn!(
                "Java code is unwound by frame pointers, since this JVM lays it out in another way: {error}"
            );
        };
        self.told = cache.inspect_err(unknown).ok()?;
        Some(self.continuations().unwrap_or(self.told))
    }

    /// The same with where frames of virtual threads are, if that has come to be known: the JVM settles it after it has made
    /// the code cache.
    fn continuations(&mut self) -> Option<CodeCache> {
        if self.told == CodeCache::default() || self.told.continuations != Continuations::default() {
            return None;
        }
        self.told.continuations = self.jvm()?.continuations()?;
        Some(self.told)
    }
}

impl Watch {
    /// Tells the unwinder where a process generates code; whether it did not know that yet.
    pub(super) fn keep_generated(
        &mut self,
        watched: &mut Watched,
        thread: Pid,
        look: &Look,
    ) -> Result<bool, Failure> {
        match watched.jvm.look(thread, &mut self.jvm_libraries) {
            News::Nothing => return Ok(false),
            News::Code(code) => self.attachment.set_generated(watched.slot(), &code),
            News::Unknown => {}
        }
        self.code.follow(watched, thread, look, &mut self.attachment)?;
        Ok(true)
    }

    /// When JVMs that are just starting are to be looked at; never when there are none.
    pub(in crate::cli) fn next_look_at_starting(&self) -> Option<Instant> {
        let starting = self.processes.values().filter(|watched| watched.ended.is_none());
        let next = starting.filter_map(|watched| watched.jvm.next_look()).min()?;
        Some(self.rested_from_starting.map_or(next, |rested| next.max(rested)))
    }

    /// Looks at JVMs that are just starting. They run Java some milliseconds after they have told what their code is, and by
    /// then the kernel side should know.
    pub(in crate::cli) fn look_at_starting(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        let is_due = |watched: &Watched| watched.jvm.next_look().is_some_and(|next| next <= now);
        let due: Vec<ProcessSlot> =
            self.processes.iter().filter(|(_, watched)| is_due(watched)).map(|(slot, _)| *slot).collect();
        for slot in due {
            let Some(watched) = self.processes.get_mut(&slot) else { continue };
            if watched.jvm.is_settled(watched.process.pid, &mut self.jvm_libraries) {
                self.keep_up(slot)?;
            }
        }
        // Of several that start at once, one is always due: others have their turn.
        let end = Instant::now();
        self.rested_from_starting = Some(end + (end - now) * LEAST_REST);
        Ok(())
    }

    /// Names the generated code in the stacks that are new: it can be gone soon.
    pub(in crate::cli) fn name_new(&mut self) {
        self.collector.receive_frames();
        for watched in self.processes.values_mut() {
            if let Some(code) = watched.jvm.continuations() {
                self.attachment.set_generated(watched.slot(), &code);
            }
            name_generated(&mut self.names, &mut self.collector, watched, Urgency::Soon);
        }
    }
}

/// Names the generated code in a process's stacks that are new: by the JVM's own structures, and what these do not tell by
/// the perf map.
pub(super) fn name_generated(
    names: &mut StackNames,
    collector: &mut Collector,
    watched: &mut Watched,
    urgency: Urgency,
) {
    let new = collector.take_new(watched.image);
    if let (WatchedJvm { stage: Stage::Known(jvm), heaps, names: known, .. }, false) =
        (&mut watched.jvm, new.is_empty())
    {
        let mut java = JavaNames::new(jvm, heaps, known);
        for (row, stack) in new.iter().filter_map(|row| Some((*row, collector.stack(*row)?))) {
            names.keep_generated(row, stack, |frame| java.frames(frame));
        }
    }
    name_by_perf_map(names, collector, watched, &new, urgency);
}
