//! JVMs: where they generate code, and what it is.

use jjleak_common::jvm::{CodeCache, CodeHeap};

use super::perf_map::{Urgency, name_by_perf_map};
use super::process::Watched;
use super::{Look, Watch};
use crate::cli::Failure;
use crate::collect::Collector;
use crate::jvm::{self, Jvm, ProcessMemory};
use crate::processes::{Mapping, ModuleTable, Pid};
use crate::symbolize::{JavaNames, KnownJava, StackNames};

/// How often a JVM's own description is tried to be read: while its library is being loaded, it is not there yet.
const ATTEMPTS: u32 = 10;

/// What is known of the JVM in a process, if there is one.
#[derive(Default)]
pub(super) struct WatchedJvm {
    jvm: Option<Jvm<ProcessMemory>>,
    attempts: u32,
    /// Where its code is; empty before it has any.
    heaps: Vec<CodeHeap>,
    names: KnownJava,
}

impl WatchedJvm {
    /// Whether there is one.
    pub(super) const fn is_known(&self) -> bool {
        self.jvm.is_some()
    }

    /// Frames that could not be named.
    pub(super) const fn unnamed(&self) -> u64 {
        self.names.unnamed
    }

    /// Where code is, if that is another place than the last time: it is settled while the JVM starts.
    fn look(&mut self, thread: Pid, mappings: &[Mapping], modules: &ModuleTable) -> Option<CodeCache> {
        self.open(thread, mappings, modules);
        let jvm = self.jvm.as_ref()?;
        let no_code = |error: &jvm::Error| tracing::debug!(%error, "a JVM has no code yet");
        let heaps = jvm.heaps().inspect_err(no_code).ok()?;
        if heaps == self.heaps {
            return None;
        }
        let cache = jvm.code_cache(&heaps);
        self.heaps = heaps;
        let unknown = |error: &jvm::Error| {
            tracing::warn!(
                "Java code is unwound by frame pointers, since this JVM lays it out in another way: {error}"
            );
        };
        cache.inspect_err(unknown).ok()
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
    /// Tells the unwinder where a process generates code; whether it did not know that yet.
    pub(super) fn keep_generated(
        &mut self,
        watched: &mut Watched,
        thread: Pid,
        look: &Look,
    ) -> Result<bool, Failure> {
        let Some(code) = watched.jvm.look(thread, &look.mappings, &watched.modules) else { return Ok(false) };
        self.attachment.set_generated(watched.slot(), &code);
        self.code.follow(watched, thread, look, &mut self.attachment)?;
        Ok(true)
    }

    /// Names the generated code in the stacks that are new: it can be gone soon.
    pub(in crate::cli) fn name_new(&mut self) {
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
    if let (WatchedJvm { jvm: Some(jvm), heaps, names: known, .. }, false) =
        (&mut watched.jvm, new.is_empty())
    {
        let mut java = JavaNames::new(jvm, heaps, known);
        for (row, stack) in new.iter().filter_map(|row| Some((*row, collector.stack(*row)?))) {
            names.keep_generated(row, stack, |frame| java.frames(frame));
        }
    }
    name_by_perf_map(names, collector, watched, &new, urgency);
}
