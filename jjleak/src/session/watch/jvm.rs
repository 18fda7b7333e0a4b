//! JVMs: the location and layout of the code that they generate.

use std::rc::Rc;
use std::time::Instant;

use jjleak_common::jvm::{CodeCache, CodeHeap, Continuations};
use jjleak_common::process::ProcessSlot;
use jjleak_common::unwind::{Row, RowKind, layer};

use super::jvm_start::{Awaited, JvmLibraries, LEAST_REST, Outcome};
use super::perf_map::{Urgency, name_by_perf_map};
use super::process::Watched;
use super::{Scan, Watch};
use crate::collect::Collector;
use crate::error_chain::chain;
use crate::jvm::{self, Blob, JavaCode, Jvm, ProcessMemory};
use crate::processes::{FileVersion, Mapping, Module, ModuleTable, Pid, living_thread};
use crate::session::Error;
use crate::symbolize::{JavaNames, KnownJava, StackNames};
use crate::unwind::Code;

/// State of the JVM in a process, if there is one.
#[derive(Default)]
pub(super) struct WatchedJvm {
    stage: Stage,
    /// Code heaps; empty while there are none.
    heaps: Vec<CodeHeap>,
    /// Code that stays where it is, for stacks that are finished when the JVM has ended.
    lasting: Vec<Blob>,
    /// Layout last sent to the kernel side.
    reported: CodeCache,
    names: KnownJava,
    /// Its library, until the code that it frees is counted.
    library: Option<Rc<Module>>,
}

/// Progress of reading a JVM.
#[derive(Default)]
enum Stage {
    /// The process maps no JVM library.
    #[default]
    None,
    /// The JVM seems to be starting.
    Awaited(Box<Awaited>),
    /// The JVM can be read.
    Known(Box<Jvm<ProcessMemory>>),
    /// The JVM in this file cannot be read and will not be tried again.
    Unknown(FileVersion),
}

/// Result of a check of a JVM.
enum News {
    /// Nothing has changed.
    Nothing,
    /// The JVM generates code in this place and layout.
    Code(Box<CodeCache>),
    /// The layout of the code is unknown, and not expected to become known.
    Unknown,
}

impl WatchedJvm {
    /// Returns true if there is a JVM that can be read.
    pub(super) fn is_known(&self) -> bool {
        match &self.stage {
            Stage::Known(_) => true,
            Stage::Awaited(awaited) => awaited.has_described_itself(),
            Stage::None | Stage::Unknown(_) => false,
        }
    }

    /// Returns true if the process maps a JVM's library.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self.stage, Stage::None)
    }

    /// Returns true if the layout of its code is known.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.stage, Stage::Known(_)) && !self.heaps.is_empty()
    }

    /// Returns true if a JVM is expected to describe its code soon. Until then, nothing can unwind through that code.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(&self.stage, Stage::Awaited(awaited) if awaited.is_starting())
    }

    /// Code at an address in memory without a file; `None` if a JVM has none there now. As for the kernel side, code that is not a
    /// JVM's is unwound by frame pointers.
    pub(super) fn code_at(&self, address: u64) -> Option<Code> {
        let by_frame_pointer = Code::Known(Row::plain(0, RowKind::FramePointer), layer::NO_FILE);
        match &self.stage {
            Stage::Awaited(awaited) if awaited.is_starting() => Some(Code::Unknown),
            Stage::None | Stage::Awaited(_) | Stage::Unknown(_) => Some(by_frame_pointer),
            Stage::Known(_) if !self.heaps.iter().any(|heap| (heap.begin..heap.end).contains(&address)) => {
                Some(by_frame_pointer)
            }
            Stage::Known(jvm) => {
                let lasting = self.lasting.iter().find(|blob| blob.code.contains(&address)).cloned();
                let blob = lasting.or_else(|| jvm.find(&self.heaps, address.checked_add(1)?))?;
                Some(match blob.unwinding(address + 1)? {
                    JavaCode::By(row) => Code::Known(row, blob.layer()),
                    JavaCode::Wrapper(words) => Code::Wrapper(words, blob.layer()),
                    JavaCode::Interpreted => Code::Interpreter,
                })
            }
        }
    }

    /// Number of frames that could not be named.
    pub(super) const fn unnamed(&self) -> u64 {
        self.names.unnamed
    }

    /// The JVM, if it can be read.
    pub(super) fn jvm(&self) -> Option<&Jvm<ProcessMemory>> {
        if let Stage::Known(jvm) = &self.stage { Some(jvm) } else { None }
    }

    /// Detects a mapped JVM library.
    pub(super) fn notice(&mut self, mappings: &[Mapping], modules: &ModuleTable) {
        let given_up = match self.stage {
            Stage::None => None,
            // The library may have been only the one that loads the JVM.
            Stage::Unknown(library) => Some(library),
            Stage::Awaited(_) | Stage::Known(_) => return,
        };
        if let Some((library, bias)) = jvm::library(mappings, modules)
            && Some(library.version) != given_up
        {
            self.stage = Stage::Awaited(Box::new(Awaited::new(library, bias)));
        }
    }

    /// Checks for a new layout of the code. It becomes known while the JVM starts.
    fn check(&mut self, thread: Pid, libraries: &mut JvmLibraries) -> News {
        if let Stage::Awaited(awaited) = &mut self.stage {
            match awaited.check(thread, libraries) {
                Outcome::Awaited => return News::Nothing,
                // The layout of the library stays known, in case the JVM starts after all.
                Outcome::Stalled => return News::Unknown,
                Outcome::Unknown => {
                    self.stage = Stage::Unknown(awaited.library().version);
                    return News::Unknown;
                }
                Outcome::Known(jvm) => {
                    self.library = Some(Rc::clone(awaited.library()));
                    self.stage = Stage::Known(jvm);
                }
            }
        }
        self.look_for_code().map_or(News::Nothing, |code| News::Code(Box::new(code)))
    }

    /// Time of the next check without another reason.
    fn next_check(&self) -> Option<Instant> {
        if let Stage::Awaited(awaited) = &self.stage { awaited.next_check() } else { None }
    }

    /// Returns true if an awaited JVM can be read now, or never will be. A quick check.
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
        let (cache, lasting) = (jvm.code_cache(&heaps), jvm.lasting(&heaps));
        (self.heaps, self.lasting) = (heaps, lasting);
        let unknown = |error: &jvm::Error| {
            tracing::warn!(
                "Java code is unwound by frame pointers, because the code layout of this JVM is unknown: {error}"
            );
        };
        self.reported = cache.inspect_err(unknown).ok()?;
        Some(self.continuations().unwrap_or(self.reported))
    }

    /// The last sent layout with that of virtual threads' frames added, if this has become known: the JVM determines
    /// it after it has made the code cache.
    fn continuations(&mut self) -> Option<CodeCache> {
        if self.reported == CodeCache::default() || self.reported.continuations != Continuations::default() {
            return None;
        }
        self.reported.continuations = self.jvm()?.continuations()?;
        Some(self.reported)
    }
}

impl Watch {
    /// Sends the place and layout of a process's generated code to the unwinder. Returns true if they were new to it.
    pub(super) fn keep_generated(
        &mut self,
        watched: &mut Watched,
        thread: Pid,
        scan: &Scan,
    ) -> Result<bool, Error> {
        let news = watched.jvm.check(thread, &mut self.stacks.jvm_libraries);
        if let Some(jvm) = watched.jvm.jvm() {
            let is_started = watched.started.is_some();
            self.accounting.java_heap.begin(watched.image, jvm, is_started, &mut self.attachment)?;
        }
        if let Some(library) = watched.jvm.library.take() {
            self.count_freed_code(watched, &library);
        }
        match news {
            News::Nothing => return Ok(false),
            News::Code(code) => self.attachment.set_generated(watched.slot(), &code),
            News::Unknown => {}
        }
        self.stacks.code.follow(watched, thread, scan, &mut self.attachment)?;
        Ok(true)
    }

    /// Counts from now on the code that the JVM of a process frees. If that fails, each of its stacks is walked.
    fn count_freed_code(&mut self, watched: &Watched, library: &Module) {
        let Some(offset) = self.stacks.jvm_libraries.frees_code(library) else {
            tracing::info!(
                "stacks through Java are walked at each allocation: {} has no symbol for the function that frees code",
                library.path.display()
            );
            return;
        };
        let path = library.stable_path();
        let noted = self.attachment.count_freed_code(watched.image, library.version, &path, offset);
        if let Err(error) = noted {
            tracing::info!("stacks through Java are walked at each allocation: {}", chain(&error));
        }
    }

    /// Time of the next check of starting JVMs; `None` if there are none.
    pub(in crate::session) fn next_check_of_starting(&self) -> Option<Instant> {
        let starting = self.processes.values().filter(|watched| watched.ended.is_none());
        let next = starting.filter_map(|watched| watched.jvm.next_check()).min()?;
        Some(self.stacks.rested_from_starting.map_or(next, |rested| next.max(rested)))
    }

    /// Checks starting JVMs. They run Java some milliseconds after they have described their code, and the kernel
    /// side needs the description by then.
    pub(in crate::session) fn check_starting(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let is_due = |watched: &Watched| watched.jvm.next_check().is_some_and(|next| next <= now);
        let due: Vec<ProcessSlot> =
            self.processes.iter().filter(|(_, watched)| is_due(watched)).map(|(slot, _)| *slot).collect();
        for slot in due {
            let Some(watched) = self.processes.get_mut(&slot) else { continue };
            if watched.jvm.is_settled(watched.process.pid, &mut self.stacks.jvm_libraries) {
                self.update_one(slot)?;
                // The JVM has run on: the stacks until now can be finished as well.
                self.update_one(slot)?;
            }
        }
        // With several JVMs starting at once, one is always due; this rest gives other work a turn.
        let end = Instant::now();
        self.stacks.rested_from_starting = Some(end + (end - now) * LEAST_REST);
        Ok(())
    }

    /// Names the generated code in new stacks, before it disappears.
    pub(in crate::session) fn name_new(&mut self) {
        self.accounting.collector.receive_frames();
        for watched in self.processes.values_mut() {
            if let Some(code) = watched.jvm.continuations() {
                self.attachment.set_generated(watched.slot(), &code);
            }
            if let Some(jvm) = watched.jvm.jvm() {
                self.accounting.java_heap.name_classes(watched.image, jvm);
            }
            name_generated(&mut self.stacks.names, &mut self.accounting.collector, watched, Urgency::Soon);
        }
    }
}

/// Names the generated code in a process's new stacks: by the JVM's own structures, and by the perf map where these
/// give no name.
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
    watched.unnamed.extend(new);
}
