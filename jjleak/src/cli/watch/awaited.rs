//! JVMs that are just starting. The library describes the JVM only once it is loaded, and the JVM makes its code heaps later.
//! It soon runs Java then, so that it is looked at again and again until it has them.

use std::collections::HashMap;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::jvm::{self, Jvm, ProcessMemory, Symbols};
use crate::processes::{FileVersion, Module, Pid};

/// Time between two looks at a JVM that is starting: from its heaps to the first Java method, it takes ten times as long.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// A look can take so much of jjleak's time at most: one part in so many.
pub(super) const LEAST_REST: u32 = 2;
/// A JVM starts in some tenths of a second. After this time one is looked at only when there is another reason, and one that does
/// not describe itself is not expected to do so any more.
const STARTING: Duration = Duration::from_secs(10);
/// The loader has made a library ready some milliseconds after mapping it: one that cannot be read by then never can.
const LOADING: Duration = Duration::from_secs(3);
/// Most libraries whose symbols are kept: a host has a handful of JDKs.
const MAX_LIBRARIES: usize = 16;

/// Where libraries have the variables that describe them, of those that were looked at.
#[derive(Default)]
pub(super) struct JvmLibraries(HashMap<FileVersion, Rc<Symbols>>);

impl JvmLibraries {
    /// Takes the symbols of libraries that are at hand already.
    pub(super) fn know(&mut self, ahead: HashMap<FileVersion, Symbols>) {
        self.0.extend(ahead.into_iter().map(|(library, symbols)| (library, Rc::new(symbols))));
    }

    /// Prepares for a library that may be mapped soon, if a file is one.
    pub(super) fn expect(&mut self, module: &Module) {
        if jvm::has_name(module)
            && let Err(error) = self.symbols(module)
        {
            tracing::debug!(error, path = %module.path.display(), "not prepared for it");
        }
    }

    fn symbols(&mut self, module: &Module) -> Result<Rc<Symbols>, String> {
        if let Some(known) = self.0.get(&module.version) {
            return Ok(Rc::clone(known));
        }
        let content = module.read().map_err(|error| error.to_string())?;
        let symbols = Rc::new(Symbols::of(&content).map_err(|error| error.to_string())?);
        if self.0.len() >= MAX_LIBRARIES {
            self.0.clear();
        }
        self.0.insert(module.version, Rc::clone(&symbols));
        Ok(symbols)
    }
}

/// A JVM whose library is mapped, and of which it is not known yet how its code is laid out.
pub(super) struct Awaited {
    library: Rc<Module>,
    bias: u64,
    /// What it said of itself when it was looked at last: perhaps half of it, for the loader may not have been done.
    early: Option<Jvm<ProcessMemory>>,
    since: Instant,
    next: Instant,
    /// Whether it has been told that it does not start: a program can map the library and never make a JVM.
    has_stalled: bool,
}

/// What has become of it.
pub(super) enum Outcome {
    /// There is no code yet.
    Awaited,
    /// Nor has there been any for so long that what else generates code should not wait for it. Told once.
    Stalled,
    /// It is known.
    Known(Box<Jvm<ProcessMemory>>),
    /// It cannot be looked into.
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
            next: now + BETWEEN_LOOKS,
            has_stalled: false,
        }
    }

    /// The file that it is in.
    pub(super) fn library(&self) -> FileVersion {
        self.library.version
    }

    /// Whether it is certain that it is a JVM that can be looked into.
    pub(super) const fn has_described_itself(&self) -> bool {
        self.early.is_some()
    }

    /// Whether it can be that it is just starting.
    pub(super) fn is_starting(&self) -> bool {
        self.since.elapsed() <= STARTING
    }

    /// Whether what it says of itself will not be understood any more.
    fn is_unreadable(&self) -> bool {
        self.early.is_none() && self.since.elapsed() > LOADING
    }

    /// Whether it is found just now that it does not start.
    fn stalls(&mut self) -> bool {
        !self.is_starting() && !mem::replace(&mut self.has_stalled, true)
    }

    /// Reads anew what it says of itself.
    pub(super) fn look(&mut self, thread: Pid, libraries: &mut JvmLibraries) -> Outcome {
        let is_final = self.is_unreadable() || !jvm::describes_itself(&self.library);
        match self.open(thread, libraries) {
            Ok(jvm) if jvm.heaps().is_ok() => {
                let version = jvm.version();
                if let Some(lacking) = jvm.lacks() {
                    tracing::warn!("JDK {version} is not known well: {lacking} are not shown");
                }
                tracing::info!("Java methods of JDK {version} are named");
                if let Some(reason) = jvm.lacks_continuations() {
                    tracing::info!(
                        "frames of virtual threads in the heap of JDK {version} with ZGC are not followed: {reason}"
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
                tracing::warn!("{path}: Java methods are not named, and stacks may end at them: {error}");
                Outcome::Unknown
            }
            Err(error) => {
                tracing::debug!(error, "a JVM cannot be looked into yet");
                Outcome::Awaited
            }
        }
    }

    fn open(&self, thread: Pid, libraries: &mut JvmLibraries) -> Result<Jvm<ProcessMemory>, String> {
        let symbols = libraries.symbols(&self.library)?;
        let memory = ProcessMemory::open(thread).map_err(|error| error.to_string())?;
        Jvm::described(memory, symbols.above(self.bias)).map_err(|error| error.to_string())
    }

    /// When to look whether [`Self::is_settled`].
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.is_starting().then_some(self.next)
    }

    /// Whether it has code by now, or cannot be looked into, as far as it can be told without much ado.
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
        self.next = end + BETWEEN_LOOKS.max((end - begin) * LEAST_REST);
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
        assert!(awaited.is_starting() && !awaited.stalls() && awaited.next_look().is_some());
        awaited.since = Instant::now().checked_sub(STARTING + Duration::from_secs(1)).unwrap();
        assert!(!awaited.is_starting() && awaited.next_look().is_none());
        // Told once, so that the code is not looked at anew every second.
        assert!(awaited.stalls() && !awaited.stalls());
    }
}
