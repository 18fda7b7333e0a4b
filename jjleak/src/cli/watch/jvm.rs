//! Keeps in step with the code that a JVM generates.

use std::time::{Duration, Instant};

use super::perf_map::{Urgency, name_by_perf_map};
use super::process::Watched;
use super::{Look, Watch};
use crate::cli::Failure;
use crate::collect::Collector;
use crate::jvm::{self, CodeView, Jvm, ProcessMemory};
use crate::processes::{Mapping, ModuleTable, Pid};
use crate::symbolize::{JavaNames, StackNames};
use crate::unwind::GeneratedRows;

/// How often a JVM's own description is tried to be read: while its library is being loaded, it is not there yet.
const ATTEMPTS: u32 = 10;

/// Why somebody looks at the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// A stack has met code that is not known.
    Miss,
    /// It is time to.
    Routine,
}

impl Reason {
    /// Times that a look may take of the time since the last one, as its inverse.
    const fn rest(self) -> u32 {
        match self {
            Self::Miss => 4,
            Self::Routine => 100,
        }
    }
}

/// What is known of the JVM in a process, if there is one.
#[derive(Default)]
pub(super) struct WatchedJvm {
    jvm: Option<Jvm<ProcessMemory>>,
    attempts: u32,
    code: CodeView,
    /// When the code was last looked at, and how long that took.
    last: Option<(Instant, Duration)>,
}

impl WatchedJvm {
    /// Whether there is one.
    pub(super) const fn is_known(&self) -> bool {
        self.jvm.is_some()
    }

    /// Whether an address is one of its generated code.
    pub(super) fn has_code_at(&self, address: u64) -> bool {
        self.code.contains(address)
    }

    /// Who names the code.
    pub(super) fn names(&self) -> Option<JavaNames<'_, ProcessMemory>> {
        self.jvm.as_ref().map(|jvm| JavaNames::new(jvm, &self.code))
    }

    /// The code as it is now, if it is another than the last time. Looking takes a bounded share of the time.
    pub(super) fn look(
        &mut self,
        thread: Pid,
        mappings: &[Mapping],
        modules: &ModuleTable,
        reason: Reason,
    ) -> Option<CodeView> {
        let rests = self.last.is_some_and(|(at, took)| at.elapsed() < took * reason.rest());
        if rests {
            return None;
        }
        self.open(thread, mappings, modules);
        let begun = Instant::now();
        let code = self
            .jvm
            .as_ref()?
            .view()
            .inspect_err(|error| tracing::debug!(%error, "a JVM has no code yet"))
            .ok()?;
        self.last = Some((Instant::now(), begun.elapsed()));
        tracing::debug!(blobs = code.blobs.len(), took = ?begun.elapsed(), "looked at the code of a JVM");
        (code != self.code).then_some(code)
    }

    /// From now on, names are of this code. Its rows.
    pub(super) fn take(&mut self, code: CodeView) -> Vec<GeneratedRows> {
        self.code = code;
        self.code.rows()
    }

    /// Finds out how the JVM's structures are laid out, once there is one.
    fn open(&mut self, thread: Pid, mappings: &[Mapping], modules: &ModuleTable) {
        if self.jvm.is_some() || self.attempts == ATTEMPTS {
            return;
        }
        let Some((module, bias)) = jvm::library(mappings, modules) else { return };
        self.attempts += 1;
        let opened = ProcessMemory::open(thread)
            .and_then(|memory| Ok((memory, module.read()?)))
            .map_err(|error| error.to_string())
            .and_then(|(memory, library)| {
                Jvm::open(memory, &library, bias).map_err(|error| error.to_string())
            });
        match opened {
            Ok(jvm) => {
                let version = jvm.version();
                if !jvm.knows_inlining() {
                    tracing::warn!(
                        "JDK {version} is not known well: its inlined methods and lines are not shown"
                    );
                }
                tracing::info!("Java methods of JDK {version} are named");
                self.jvm = Some(jvm);
            }
            Err(error) if self.attempts == ATTEMPTS => {
                let path = module.path.display();
                tracing::warn!("{path}: Java methods are not named, and stacks end at them: {error}");
            }
            Err(error) => tracing::debug!(%error, "a JVM cannot be looked into yet"),
        }
    }
}

impl Watch {
    /// Keeps in step with the code that a process generates; whether there is other code than before.
    pub(super) fn keep_generated(
        &mut self,
        watched: &mut Watched,
        thread: Pid,
        look: &Look,
        reason: Reason,
    ) -> Result<bool, Failure> {
        if !self.look_at_generated(watched, thread, &look.mappings, reason) {
            return Ok(false);
        }
        self.code.follow(watched.image, thread, look, &watched.modules, &mut self.attachment)?;
        Ok(true)
    }

    /// Gives the unwinder rows for the code that a process generates, if it is other code than before. It uses them once
    /// it is told again where the process maps code.
    pub(super) fn look_at_generated(
        &mut self,
        watched: &mut Watched,
        thread: Pid,
        mappings: &[Mapping],
        reason: Reason,
    ) -> bool {
        let Some(code) = watched.jvm.look(thread, mappings, &watched.modules, reason) else { return false };
        // What was taken until now is of the code that was known until now.
        self.collector.receive_frames();
        name_generated(&mut self.names, &mut self.collector, watched, Urgency::Soon);
        if let Err(full) = self.attachment.replace_generated(watched.slot(), &watched.jvm.take(code)) {
            tracing::warn!("Java code of process {} is unwound by frame pointers: {full}", watched.pid());
        }
        true
    }

    /// Names the generated code in the stacks that are new: it can be gone soon.
    pub(super) fn name_new(&mut self) {
        self.collector.receive_frames();
        for watched in self.processes.values_mut() {
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
    if let Some(mut java) = watched.jvm.names() {
        for (row, stack) in new.iter().filter_map(|row| Some((*row, collector.stack(*row)?))) {
            names.keep_generated(row, stack, |frame| java.frames(frame));
        }
    }
    name_by_perf_map(names, collector, watched, &new, urgency);
}
