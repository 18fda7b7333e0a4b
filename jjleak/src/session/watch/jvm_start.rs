//! JVMs that are starting. A JVM's library describes the JVM once it is loaded; the JVM makes its code heaps later,
//! and soon runs Java then. It is polled until it has them.

use std::collections::HashMap;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::jvm::{self, Jvm, ProcessMemory, Symbols};
use crate::processes::{FileVersion, Module, Pid};

/// Time between two polls of a starting JVM. From making its heaps to its first Java method, a JVM takes ten times as
/// long.
const BETWEEN_CHECKS: Duration = Duration::from_millis(2);
/// Minimum rest after a poll, as a multiple of the poll's duration: bounds the share of jjleak's time.
pub(super) const LEAST_REST: u32 = 2;
/// Time that a JVM may take to start; usually it takes some tenths of a second. Afterwards it is polled only for
/// other reasons, and if it does not describe itself by then, it is not expected to do so.
const STARTING: Duration = Duration::from_secs(10);
/// Time that the loader may take for a library; usually it takes some milliseconds after mapping it. A library that
/// cannot be read by then never can.
const LOADING: Duration = Duration::from_secs(3);
/// Maximum number of libraries whose symbols are kept: a host has a handful of JDKs.
const MAX_LIBRARIES: usize = 16;

/// Symbols of JVM libraries: the addresses of the variables that describe the JVM.
#[derive(Default)]
pub(super) struct JvmLibraries(HashMap<FileVersion, Rc<Symbols>>);

impl JvmLibraries {
    /// Adds symbols found ahead.
    pub(super) fn know(&mut self, ahead: HashMap<FileVersion, Symbols>) {
        self.0.extend(ahead.into_iter().map(|(library, symbols)| (library, Rc::new(symbols))));
    }

    /// Reads the symbols of a file that may be mapped soon, if it is a JVM library.
    pub(super) fn prepare(&mut self, module: &Module) {
        if jvm::has_name(module)
            && let Err(error) = self.symbols(module)
        {
            tracing::debug!(error, path = %module.path.display(), "cannot read the symbols of a JVM library");
        }
    }

    /// File offset of the function with which a JVM frees code; `None` if it is not known.
    pub(super) fn frees_code(&mut self, library: &Module) -> Option<u64> {
        library.offset_of_code(self.symbols(library).ok()?.frees_code()?)
    }

    fn symbols(&mut self, module: &Module) -> Result<Rc<Symbols>, String> {
        if let Some(known) = self.0.get(&module.version) {
            return Ok(Rc::clone(known));
        }
        let content = module.content().map_err(|error| error.to_string())?;
        let symbols = Rc::new(Symbols::of(&content).map_err(|error| error.to_string())?);
        if self.0.len() >= MAX_LIBRARIES {
            self.0.clear();
        }
        self.0.insert(module.version, Rc::clone(&symbols));
        Ok(symbols)
    }
}

/// A JVM whose library is mapped, and whose code layout is not known yet.
pub(super) struct Awaited {
    library: Rc<Module>,
    bias: u64,
    /// The JVM's last description of itself; perhaps incomplete, because the loader may not have finished.
    early: Option<Jvm<ProcessMemory>>,
    since: Instant,
    next: Instant,
    /// True once [`Outcome::Stalled`] was returned: a program can map the library and never create a JVM.
    has_stalled: bool,
}

/// Result of a poll.
pub(super) enum Outcome {
    /// There are no code heaps yet.
    Awaited,
    /// The JVM has not started for so long that other generated code should not wait for it. Returned once.
    Stalled,
    /// The JVM is known.
    Known(Box<Jvm<ProcessMemory>>),
    /// The JVM cannot be read.
    Unknown,
}

impl Awaited {
    pub(super) fn new(library: &Rc<Module>, bias: u64) -> Self {
        let now = Instant::now();
        Self {
            library: Rc::clone(library),
            bias,
            early: None,
            since: now,
            next: now + BETWEEN_CHECKS,
            has_stalled: false,
        }
    }

    /// The library.
    pub(super) const fn library(&self) -> &Rc<Module> {
        &self.library
    }

    /// Returns true if it is certain to be a JVM that can be read.
    pub(super) const fn has_described_itself(&self) -> bool {
        self.early.is_some()
    }

    /// Returns true if the JVM may still be starting.
    pub(super) fn is_starting(&self) -> bool {
        self.since.elapsed() <= STARTING
    }

    /// Returns true if the JVM's description is no longer expected to become readable.
    fn is_unreadable(&self) -> bool {
        self.early.is_none() && self.since.elapsed() > LOADING
    }

    /// Returns true once, when the JVM is first found not to be starting.
    fn stalls(&mut self) -> bool {
        !self.is_starting() && !mem::replace(&mut self.has_stalled, true)
    }

    /// Reads the JVM's description again.
    pub(super) fn check(&mut self, thread: Pid, libraries: &mut JvmLibraries) -> Outcome {
        let is_final = self.is_unreadable() || !jvm::describes_itself(&self.library);
        match self.open(thread, libraries) {
            Ok(jvm) if jvm.heaps().is_ok() => {
                let version = jvm.version();
                if let Some(lacking) = jvm.lacks() {
                    tracing::warn!("JDK {version} is only partly supported: {lacking} are not shown");
                }
                tracing::info!("Java methods of JDK {version} have names");
                if let Some(reason) = jvm.lacks_continuations() {
                    tracing::info!(
                        "stacks end at the heap frames of virtual threads in JDK {version} with ZGC: {reason}"
                    );
                }
                Outcome::Known(Box::new(jvm))
            }
            Ok(jvm) => {
                self.early = Some(jvm);
                if self.stalls() { Outcome::Stalled } else { Outcome::Awaited }
            }
            Err(error) if is_final => {
                let path = self.library.path.display();
                tracing::warn!("{path}: Java methods have no names, and stacks may end at them: {error}");
                Outcome::Unknown
            }
            Err(error) => {
                tracing::debug!(error, "the JVM does not describe its structures yet");
                Outcome::Awaited
            }
        }
    }

    fn open(&self, thread: Pid, libraries: &mut JvmLibraries) -> Result<Jvm<ProcessMemory>, String> {
        let symbols = libraries.symbols(&self.library)?;
        let memory = ProcessMemory::open(thread).map_err(|error| error.to_string())?;
        Jvm::described(memory, symbols.above(self.bias)).map_err(|error| error.to_string())
    }

    /// Time of the next poll with [`Self::is_settled`].
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.is_starting().then_some(self.next)
    }

    /// Returns true if the JVM seems to have code by now, or cannot be read. A quick check.
    pub(super) fn is_settled(
        &mut self,
        thread: impl FnOnce() -> Option<Pid>,
        libraries: &mut JvmLibraries,
    ) -> bool {
        let begin = Instant::now();
        if self.early.is_none() {
            self.early = thread().and_then(|thread| self.open(thread, libraries).ok());
        }
        let has_begun = self.early.as_ref().is_some_and(|jvm| jvm.heaps().is_ok());
        let end = Instant::now();
        self.next = end + BETWEEN_CHECKS.max((end - begin) * LEAST_REST);
        has_begun || self.is_unreadable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::{Mapping, ModuleFiles, ModuleTable};

    #[test]
    fn a_library_without_a_jvm_is_waited_for_only_as_long_as_one_starts() {
        let pid = Pid::new(std::process::id()).unwrap();
        let mut modules = ModuleTable::default();
        modules.refresh(&mut ModuleFiles::default(), pid, &Mapping::all(pid).unwrap());
        let mut awaited = Awaited::new(modules.iter().next().unwrap().1, 0);
        assert!(awaited.is_starting() && !awaited.stalls() && awaited.next_check().is_some());
        awaited.since = Instant::now().checked_sub(STARTING + Duration::from_secs(1)).unwrap();
        assert!(!awaited.is_starting() && awaited.next_check().is_none());
        // Returned once, so that the code is not scanned again every second.
        assert!(awaited.stalls() && !awaited.stalls());
    }
}
